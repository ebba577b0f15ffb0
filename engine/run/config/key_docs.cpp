// The table of keys as text for --help-keys, the manual and completion, as a JSON schema, and as a page of
// documentation.
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/base/core/command_docs.h"
#include "engine/base/core/text.h"
#include "engine/run/config/check_value.h"
#include "engine/run/config/key_table.h"

namespace thinwire {
namespace {

using nlohmann::ordered_json;

std::string default_of(const KeySpec& key) {
  if (!key.default_text.empty()) return key.default_text;
  if (key.required) return "required";
  return key.default_json == "null" ? "none" : key.default_json;
}

const char* scope_name(KeyScope scope) {
  constexpr const char* names[] = {"model", "data", "layout", "runtime"};
  return names[static_cast<int>(scope)];
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '|') out += '\\';
    if (c == '<')
      out += "&lt;";
    else
      out += c;
  }
  return out;
}

// Groups foreign keys by their reason, in the order of the table.
std::vector<std::pair<std::string, std::vector<const KeySpec*>>> by_reason(const KeyTopic& topic) {
  std::vector<std::pair<std::string, std::vector<const KeySpec*>>> groups;
  for (const KeySpec& key : topic.keys) {
    bool found = false;
    for (auto& [reason, keys] : groups) {
      if (reason != key.doc) continue;
      keys.push_back(&key);
      found = true;
    }
    if (!found) groups.push_back({key.doc, {&key}});
  }
  return groups;
}

bool is_foreign(const KeyTopic& topic) {
  const KeyStatus status = topic.keys.front().status;
  return status == KeyStatus::kNoted || status == KeyStatus::kRefused;
}

// Every site has the same rule keys, and `sum` repeats those of its rule: documents show the first site's, and of `sum`
// only the codec.
bool is_repeated_rule(const KeySpec& key) {
  const std::vector<std::string> path = key_path(key.name);
  if (path.front() != "compression" || path.size() < 3) return false;
  return path[1] != compression_sites().front() || (path[2] == "sum" && path.back() != "codec");
}

// The words that a key takes; empty: any value of its type.
std::string words_of(const KeySpec& key, const std::string& between) {
  const std::string words = join(key.allowed, between);
  return words.empty() || (key.types & kBoolKey) == 0 ? words : words + between + "true" + between + "false";
}

std::string values_of(const KeySpec& key, const std::string& between) {
  return key.allowed.empty() ? types_text(key.types) + (key.ramp    ? " or ramp"
                                                        : key.share ? " or share"
                                                                    : "")
                             : words_of(key, between);
}

std::string shown_name(const KeySpec& key) {
  const std::string first = "compression." + compression_sites().front() + ".";
  return key.name.rfind(first, 0) == 0 ? "compression.<site>." + key.name.substr(first.size()) : key.name;
}

constexpr size_t kHelpWidth = 100;

// How one kind of document writes a list of keys.
struct KeyWriter {
  std::function<std::string(const std::string& title)> heading;
  std::function<std::string(const std::string& text)> paragraph;
  std::function<std::string(const std::string& name, const std::string& meaning)> entry;
};

bool name_matches(const KeySpec& key, const std::string& pattern) {
  const std::string wanted = "*" + normalised_key(pattern) + "*";
  std::vector<std::string> names = key.aliases;
  names.insert(names.end(), {key.name, shown_name(key)});
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return fnmatch(wanted.c_str(), name.c_str(), FNM_CASEFOLD) == 0; });
}

bool doc_matches(const KeySpec& key, const std::string& pattern) {
  return fnmatch(("*" + pattern + "*").c_str(), key.doc.c_str(), FNM_CASEFOLD) == 0;
}

// Keys whose name contains the pattern (empty: all keys); where there is none, keys whose doc contains it, or "".
std::string list_keys(const KeyWriter& write, const std::string& pattern) {
  std::vector<bool (*)(const KeySpec&, const std::string&)> searches = {name_matches};
  if (!pattern.empty()) searches.push_back(doc_matches);
  for (const auto matches : searches) {
    std::string out;
    for (const KeyTopic& topic : key_table().topics()) {
      std::string entries;
      if (is_foreign(topic)) {
        for (const auto& [reason, keys] : by_reason(topic)) {
          std::string names;
          for (const KeySpec* key : keys)
            if (matches(*key, pattern)) names += (names.empty() ? "" : " ") + key->name;
          if (!names.empty()) entries += write.paragraph(reason + ": " + names);
        }
      } else {
        for (const KeySpec& key : topic.keys) {
          // A pattern with a dot may name one site; its keys are then shown by their own names.
          const bool repeated = is_repeated_rule(key);
          if ((repeated && pattern.find('.') == std::string::npos) || !matches(key, pattern)) continue;
          std::string facts = values_of(key, " | ");
          if (key.status == KeyStatus::kUsed) facts += "; default " + default_of(key);
          if (!key.unit.empty()) facts += "; " + key.unit;
          const std::string aliases = key.aliases.empty() ? "" : " (" + join(key.aliases, ", ") + ")";
          entries += write.entry(shown_name(key) + aliases, key.doc + " [" + facts + "]");
        }
      }
      if (entries.empty()) continue;
      const bool with_intro = pattern.empty() && !topic.intro.empty();
      out += write.heading(topic.title) + (with_intro ? write.paragraph(topic.intro) : "") + entries;
    }
    if (!out.empty()) return out;
  }
  return "";
}

ordered_json type_schema(const KeySpec& key) {
  if (key.types == kAnyKey) return ordered_json::object();
  ordered_json types = ordered_json::array();
  const bool list_of_numbers = key.types == (kListKey | kRealKey);
  unsigned bits = list_of_numbers ? key.types & ~kRealKey : key.types;
  if (key.ramp) bits |= kListKey;
  if (key.share) bits |= kRealKey;
  for (const std::string& word : type_words(bits)) types.push_back(word == "list" ? "array" : word);
  types.push_back("null");
  ordered_json schema;
  schema["type"] = types;
  ordered_json bounds;
  if (std::isfinite(key.bounds.min)) bounds[key.bounds.open_min ? "exclusiveMinimum" : "minimum"] = key.bounds.min;
  if (std::isfinite(key.bounds.max)) bounds[key.bounds.open_max ? "exclusiveMaximum" : "maximum"] = key.bounds.max;
  if (list_of_numbers) {
    schema["items"] = bounds;
    schema["items"]["type"] = "number";
  } else if (!bounds.is_null()) {
    schema.update(bounds);
  }
  if (!key.allowed.empty()) {
    ordered_json values = key.allowed;
    for (const auto& [theirs, ours] : key.value_aliases) values.push_back(theirs);
    values.push_back(nullptr);
    // Editors complete from the list; other spellings (RMSNorm, 1F1B) stay valid.
    schema["anyOf"] = ordered_json::array({{{"enum", values}}, {{"type", "string"}}});
    // Beside words the key may take numbers or booleans.
    if (types.size() > 2) schema["anyOf"].push_back({{"type", types}});
  }
  return schema;
}

void place_schema(ordered_json& root, const std::string& name, const ordered_json& schema) {
  std::vector<std::string> path = key_path(name);
  const std::string leaf = path.back();
  path.pop_back();
  ordered_json* node = &root["properties"];
  std::string section;
  for (const std::string& part : path) {
    section += (section.empty() ? "" : ".") + part;
    ordered_json& child = (*node)[part];
    if (child.is_null()) {
      const bool plain = !key_table().section_value_key(section).empty();
      child["type"] = plain ? ordered_json({"object", "string", "boolean", "null"}) : ordered_json({"object", "null"});
      child["additionalProperties"] = false;
      child["properties"] = ordered_json::object();
    }
    node = &child["properties"];
  }
  (*node)[leaf] = schema;
}

}  // namespace

std::string bounds_text(const KeySpec& key) {
  const KeyBounds& b = key.bounds;
  std::string text;
  if (std::isfinite(b.min)) text += (b.open_min ? "above " : "at least ") + number_text(b.min);
  if (std::isfinite(b.max))
    text += (text.empty() ? "" : ", ") + std::string(b.open_max ? "below " : "at most ") + number_text(b.max);
  return text;
}

std::string help_keys(const std::string& pattern) {
  const std::string keys = list_keys(
      {.heading = [](const std::string& title) { return "\n" + title + "\n"; },
       .paragraph = [](const std::string& text) { return filled(text, 2, kHelpWidth); },
       .entry = [](const std::string& name,
                   const std::string& meaning) { return "  " + name + "\n" + filled(meaning, 6, kHelpWidth); }},
      pattern);
  if (keys.empty()) return "";
  return "Configuration keys (JSON or YAML; '-' equals '_'; key.sub=value on the command line):\n" + keys;
}

std::string man_keys() {
  return ".SH CONFIGURATION KEYS\n" +
         list_keys({.heading = [](const std::string& title) { return ".SS " + roff(title); },
                    .paragraph = [](const std::string& text) { return roff(text); },
                    .entry = roff_entry},
                   "");
}

std::string completion_keys() {
  std::string out;
  for (const KeyTopic& topic : key_table().topics()) {
    for (const KeySpec& key : topic.keys) {
      if (key.status == KeyStatus::kNoted || key.status == KeyStatus::kRefused) continue;
      std::string words = words_of(key, " ");
      if (words.empty() && key.types == kBoolKey) words = "true false";
      std::vector<std::string> names = key.aliases;
      names.push_back(key.name);
      const std::string section = key.name.substr(0, key.name.rfind('.'));
      if (section != key.name && key_table().section_value_key(section) == key.name) names.push_back(section);
      for (const std::string& name : names) out += "=" + name + "\t" + words + "\n";
    }
  }
  return out;
}

std::string markdown() {
  std::string out =
      "# Configuration keys\n\n"
      "This page is generated from the table that loads configurations (`config_docs` writes it; a test compares). "
      "Keys are spelled as in GPT-NeoX and DeepSpeed, Megatron's names are aliases, `-` equals `_`. Comments (`//`, "
      "`/* */`, `#`), trailing commas and Python's `True`, `False`, `None` are accepted; unknown and duplicate keys "
      "are not. `null` means \"not given\". "
      "Dotted names are nested objects: `zero_optimization.stage` is `\"zero_optimization\": {\"stage\": ...}`. "
      "On the command line, `key.sub=value` overrides files.\n\n"
      "Scope: a checkpoint must agree on **model** and **data** keys; **layout** and **runtime** keys may change "
      "between runs.\n";
  for (const KeyTopic& topic : key_table().topics()) {
    out += "\n## " + topic.title + "\n\n";
    if (!topic.intro.empty()) out += escaped(topic.intro) + "\n\n";
    if (is_foreign(topic)) {
      out += "| keys | reason |\n|---|---|\n";
      for (const auto& [reason, keys] : by_reason(topic)) {
        std::string names;
        for (const KeySpec* key : keys) {
          names += (names.empty() ? "`" : ", `") + key->name + "`";
          if (!key->neutral.empty()) names += " (" + escaped(join(key->neutral, ", ")) + " accepted)";
        }
        out += "| " + names + " | " + escaped(reason) + " |\n";
      }
      continue;
    }
    out += "| key | aliases | type and values | default | unit | scope | meaning |\n|---|---|---|---|---|---|---|\n";
    for (const KeySpec& key : topic.keys) {
      if (is_repeated_rule(key)) continue;
      std::string aliases;
      for (const std::string& a : key.aliases) aliases += (aliases.empty() ? "`" : ", `") + a + "`";
      std::string values = values_of(key, " \\| ");
      const std::string bounds = bounds_text(key);
      if (!bounds.empty()) values += ", " + bounds;
      const bool used = key.status == KeyStatus::kUsed;
      out += "| `" + shown_name(key) + "` | " + aliases + " | " + values + " | " +
             (used ? escaped(default_of(key)) : "") + " | " + escaped(key.unit) + " | " + scope_name(key.scope) +
             " | " + escaped(key.doc) + " |\n";
    }
  }
  out += "\nSites of compression rules: ";
  for (const std::string& site : compression_sites())
    out += (site == compression_sites().front() ? "`" : ", `") + site + "`";
  return out + ".\n";
}

std::string json_schema() {
  ordered_json root;
  root["$schema"] = "http://json-schema.org/draft-07/schema#";
  root["title"] = "Thinwire configuration";
  root["type"] = "object";
  root["additionalProperties"] = false;
  root["properties"]["$schema"] = {{"type", "string"}};
  root["properties"]["_notes"] = {{"type", "object"}};
  root["properties"]["config_version"] = {{"type", "integer"}};
  for (const KeyTopic& topic : key_table().topics()) {
    for (const KeySpec& key : topic.keys) {
      ordered_json schema = type_schema(key);
      std::string doc = key.doc;
      if (key.status == KeyStatus::kNoted) doc = "No effect here: " + doc;
      if (key.status == KeyStatus::kRefused) doc = "Not supported: " + doc;
      if (!key.unit.empty()) doc += " Unit: " + key.unit + ".";
      schema["description"] = doc;
      if (key.status == KeyStatus::kUsed && key.default_json != "null")
        schema["default"] = ordered_json::parse(key.default_json);
      place_schema(root, key.name, schema);
      for (const std::string& alias : key.aliases) {
        ordered_json other = schema;
        other["description"] = "Same as " + key.name + ". " + doc;
        place_schema(root, alias, other);
      }
    }
  }
  // All sites have the same fields.
  ordered_json& compression = root["properties"]["compression"]["properties"];
  const ordered_json rule = compression[compression_sites().front()];
  for (const std::string& site : compression_sites()) compression[site] = {{"$ref", "#/definitions/rule"}};
  root["definitions"]["rule"] = rule;
  return root.dump(1) + "\n";
}

}  // namespace thinwire
