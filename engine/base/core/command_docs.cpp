// Help, manual and completion from the options that a program has declared.
#include "engine/base/core/command_docs.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <vector>

namespace thinwire {
namespace {

constexpr size_t kWidth = 80, kColumn = 26;

// The words between the braces of "TEXT:{text,svg}".
std::vector<std::string> choices(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find('{'), close = type.rfind('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

// What stands for the value of an option: text|svg, N, FILE; empty for a flag.
std::string value_name(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  std::string name = CLI::detail::join(choices(option), "|");
  if (name.empty()) name = option.get_type_name().substr(0, option.get_type_name().find(':'));
  if (name == "INT" || name == "UINT" || name == "FLOAT") name = "N";
  if (!option.nonpositional() && (name == "TEXT" || name == "N")) name.clear();  // the name says it
  if (option.get_items_expected_min() == 0) name = "[" + name + "]";
  return name + (option.get_items_expected_max() > 1 ? (name.empty() ? "..." : " ...") : "");
}

std::string head_of(const CLI::Option& option) {
  const std::string name = option.nonpositional() ? option.get_name(false, true) : option.get_name(true);
  const std::string value = value_name(option);
  return value.empty() ? name : name + " " + value;
}

std::string meaning_of(const CLI::Option& option) {
  std::string text = option.get_description();
  if (!option.get_default_str().empty()) text += (text.empty() ? "default " : "; default ") + option.get_default_str();
  if (option.get_required() && option.nonpositional()) text += text.empty() ? "needed" : " (needed)";
  return text;
}

class Style : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool) const override {
    std::string head = "  " + head_of(*option);
    const std::string meaning = meaning_of(*option);
    if (meaning.empty()) return head + "\n";
    if (head.size() + 2 > kColumn) return head + "\n" + filled(meaning, kColumn, kWidth);
    head.resize(kColumn, ' ');
    return filled(meaning, kColumn, kWidth, head);
  }
  std::string make_subcommand(const CLI::App* sub) const override {
    std::string head = "  " + sub->get_name();
    head.resize(std::max(kColumn, head.size() + 1), ' ');
    return filled(sub->get_description(), kColumn, kWidth, head);
  }
  std::string make_description(const CLI::App* app) const override { return filled(app->get_description(), 0, kWidth); }
};

std::vector<const CLI::Option*> options_of(const CLI::App& app, bool positional) {
  return app.get_options([positional](const CLI::Option* o) { return o->nonpositional() != positional; });
}

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::string synopsis(const CLI::App& app, const std::string& command) {
  std::string line = ".B " + roff(command) + "[\\fIoption\\fR ...]";
  for (const CLI::Option* o : options_of(app, true)) {
    const std::string head = roff(head_of(*o));
    line += o->get_required() ? " " + head.substr(0, head.size() - 1) : " [" + head.substr(0, head.size() - 1) + "]";
  }
  return line + "\n";
}

std::string entries(const CLI::App& app) {
  std::string out;
  for (const bool positional : {true, false})
    for (const CLI::Option* o : options_of(app, positional))
      if (!positional || !o->get_description().empty()) out += roff_entry(head_of(*o), meaning_of(*o));
  return out;
}

}  // namespace

std::string filled(const std::string& text, size_t indent, size_t width, const std::string& first) {
  std::string out, line = first.empty() ? std::string(indent, ' ') : first, word;
  bool begun = false;
  for (std::istringstream words(text); words >> word; begun = true) {
    if (begun && line.size() + 1 + word.size() > width) {
      out += line + "\n";
      line.assign(indent, ' ');
      begun = false;
    }
    line += (begun ? " " : "") + word;
  }
  return out + line + "\n";
}

std::string roff_lines(const std::string& text) {
  std::string out;
  bool at_start = true;
  for (const char c : text) {
    if (at_start && (c == '.' || c == '\'')) out += "\\&";
    at_start = c == '\n';
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out.empty() || at_start ? out : out + "\n";
}

std::string roff(const std::string& text) {
  return text.empty() ? "" : roff_lines(filled(text, 0, 72));
}

std::string roff_entry(const std::string& head, const std::string& meaning) {
  return ".TP\n.B " + roff(head) + roff(meaning);
}

void set_help_style(CLI::App& app) {
  const auto style = std::make_shared<Style>();
  style->column_width(kColumn);
  app.formatter(style);
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; })) sub->formatter(style);
}

std::string man_body(const CLI::App& app, const std::string& command) {
  const std::vector<const CLI::App*> subs = subcommands_of(app);
  std::string out = ".SH SYNOPSIS\n";
  if (subs.empty()) out += synopsis(app, command);
  for (const CLI::App* sub : subs)
    out += (sub == subs.front() ? "" : ".br\n") + synopsis(*sub, command + " " + sub->get_name());
  out += ".SH DESCRIPTION\n" + roff(app.get_description());
  for (const CLI::App* sub : subs)
    out += (sub == subs.front() ? ".SH COMMANDS\n" : "") + roff_entry(sub->get_name(), sub->get_description()) +
           ".RS\n" + entries(*sub) + ".RE\n";
  out += ".SH OPTIONS\n" + entries(app);
  if (!app.get_footer().empty()) out += ".SH NOTES\n.nf\n" + roff_lines(app.get_footer()) + ".fi\n";
  return out;
}

std::string completion_words(const CLI::App& app, const std::string& place) {
  std::string out = place + "\t", values;
  for (const CLI::Option* o : options_of(app, false)) {
    for (const std::string& name : o->get_lnames()) {
      out += "--" + name + " ";
      const std::vector<std::string> words = choices(*o);
      if (!words.empty()) values += place + " --" + name + "\t" + CLI::detail::join(words, " ") + "\n";
    }
  }
  for (const CLI::Option* o : options_of(app, true))
    if (o->get_name(true) == "overrides") out += "= ";
  for (const CLI::App* sub : subcommands_of(app)) {
    out += sub->get_name() + " ";
    values += completion_words(*sub, place + " " + sub->get_name());
  }
  return out + "\n" + values;
}

}  // namespace thinwire
