// YAML to a JsonTree, by libyaml's events. Plain scalars get the types that PyYAML gives them.
#include "engine/run/config/yaml_text.h"

#include <yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <regex>
#include <string_view>

namespace thinwire {
namespace {

constexpr int64_t kMaxValues = 1000000;  // aliases are copied: a few lines of aliases of aliases would fill the memory

TextPosition position(const yaml_mark_t& mark) {
  return {static_cast<int>(mark.line) + 1, static_cast<int>(mark.column) + 1};
}

std::string without(std::string text, char c) {
  std::erase(text, c);
  return text;
}

// YAML 1.1 reads "1:30:05" as a number of base 60.
double from_base_60(const std::string& text) {
  double value = 0.0;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(':', at), text.size());
    value = value * 60.0 + std::strtod(text.substr(at, end - at).c_str(), nullptr);
    at = end + 1;
  }
  return value;
}

// Reads digits of `base`, without a sign. False: they are none, or do not fit in 64 bits.
bool read_integer(const std::string& digits, int base, bool negative, int64_t& out) {
  const std::string signed_digits = (negative ? "-" : "") + digits;
  const auto end = signed_digits.data() + signed_digits.size();
  const auto result = std::from_chars(signed_digits.data(), end, out, base);
  return result.ec == std::errc() && result.ptr == end;
}

// Types a scalar without quotes by the patterns of PyYAML's resolver. What fits no pattern stays a string.
void type_plain(const std::string& text, JsonTree& tree) {
  using Kind = JsonTree::Kind;
  static const std::regex real(
      "[-+]?[0-9][0-9_]*\\.[0-9_]*([eE][-+][0-9]+)?|\\.[0-9][0-9_]*([eE][-+][0-9]+)?"
      "|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\\.[0-9_]*|[-+]?\\.(inf|Inf|INF)|\\.(nan|NaN|NAN)"),
      integer(
          "[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+|[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+");
  const auto among = [&](std::initializer_list<const char*> words) {
    return std::find(words.begin(), words.end(), text) != words.end();
  };
  const bool yes = among({"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"});
  const bool no = among({"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"});
  tree.kind = Kind::kString;
  tree.text = text;
  tree.plain = true;
  if (text.size() > 400) return;
  if (among({"~", "null", "Null", "NULL", ""})) {
    tree.kind = Kind::kNull;
  } else if (yes || no) {
    tree.kind = Kind::kBool;
    tree.boolean = yes;
  } else if (text.find_first_of("0123456789.") > 1) {
    // Not a number: those begin with a digit or a point, after a sign at most. Asked first because the patterns are
    // slow and most scalars are words.
  } else if (std::regex_match(text, integer)) {
    std::string digits = without(text, '_');
    const bool negative = digits[0] == '-';
    if (negative || digits[0] == '+') digits.erase(0, 1);
    bool fits = true;
    if (digits.find(':') != std::string::npos) {
      const double value = from_base_60(digits);
      fits = value < 9.2e18;
      if (fits) tree.integer = static_cast<int64_t>(value) * (negative ? -1 : 1);
    } else if (digits.rfind("0b", 0) == 0 || digits.rfind("0x", 0) == 0) {
      fits = read_integer(digits.substr(2), digits[1] == 'b' ? 2 : 16, negative, tree.integer);
    } else {
      fits = read_integer(digits, digits.size() > 1 && digits[0] == '0' ? 8 : 10, negative, tree.integer);
    }
    if (fits) tree.kind = Kind::kInt;
  } else if (std::regex_match(text, real)) {
    const std::string digits = without(text, '_');
    const bool base_60 = digits.find(':') != std::string::npos;
    const bool negative = base_60 && digits[0] == '-';
    if (digits.find("inf") != std::string::npos || digits.find("Inf") != std::string::npos ||
        digits.find("INF") != std::string::npos)
      tree.real = digits[0] == '-' ? -HUGE_VAL : HUGE_VAL;
    else if (digits.find_first_of("nN") != std::string::npos)
      tree.real = std::nan("");
    else
      tree.real = base_60 ? from_base_60(digits.substr(negative || digits[0] == '+' ? 1 : 0)) * (negative ? -1.0 : 1.0)
                          : std::strtod(digits.c_str(), nullptr);
    tree.kind = Kind::kReal;
  }
}

class YamlReader {
 public:
  YamlReader(const std::string& text, JsonText& out) : text_(text), out_(out) {
    if (yaml_parser_initialize(&parser_) == 0) throw std::bad_alloc();
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  ~YamlReader() {
    yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }
  YamlReader(const YamlReader&) = delete;
  YamlReader& operator=(const YamlReader&) = delete;

  void read() {
    next();  // the stream's start
    if (next() == YAML_STREAM_END_EVENT) {
      out_.root.kind = JsonTree::Kind::kObject;
      return;
    }
    next();
    read_value(out_.root, "", 1);
    if (out_.root.kind == JsonTree::Kind::kNull) out_.root.kind = JsonTree::Kind::kObject;
    next();  // the document's end
    if (next() != YAML_STREAM_END_EVENT) fail(event_.start_mark, "a second document begins here; one is read");
  }

 private:
  [[noreturn]] static void fail(const yaml_mark_t& mark, const std::string& message) {
    throw JsonProblem{position(mark), "", message};
  }

  yaml_event_type_t next() {
    yaml_event_delete(&event_);
    if (yaml_parser_parse(&parser_, &event_) == 0) {
      std::string why = parser_.problem != nullptr ? parser_.problem : "not YAML";
      if (parser_.context != nullptr) why += std::string(", ") + parser_.context;
      yaml_mark_t mark = parser_.problem_mark;
      if (parser_.error == YAML_READER_ERROR) {  // a byte that is no UTF-8: libyaml says only its offset
        const std::string_view before = std::string_view(text_).substr(0, parser_.problem_offset);
        mark.line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
        mark.column = before.size() - (before.rfind('\n') + 1);
      }
      fail(mark, why);
    }
    return event_.type;
  }

  static std::string words(const unsigned char* text) {
    return text == nullptr ? "" : reinterpret_cast<const char*>(text);
  }

  void refuse_tag(const unsigned char* tag) const {
    if (tag != nullptr) fail(event_.start_mark, "the tag " + words(tag).substr(0, 60) + " is not read: leave it out");
  }

  void count(const yaml_mark_t& mark, int64_t values) {
    values_ += values;
    if (values_ > kMaxValues) fail(mark, "more than a million values");
  }

  static int64_t size_of_tree(const JsonTree& tree) {
    int64_t size = 1;
    for (const JsonTree& item : tree.items) size += size_of_tree(item);
    for (const JsonMember& member : tree.members) size += size_of_tree(member.value);
    return size;
  }

  void remember(const std::string& anchor, const JsonTree& tree) {
    if (anchor.empty()) return;
    count(event_.start_mark, size_of_tree(tree));
    anchors_[anchor] = tree;
  }

  // Reads the value that begins with the current event. Afterwards the current event is the one that ends it.
  void read_value(JsonTree& tree, const std::string& path, int depth) {
    if (depth > kMaxJsonDepth)
      fail(event_.start_mark, "nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    count(event_.start_mark, 1);
    tree.at = position(event_.start_mark);
    switch (event_.type) {
      case YAML_ALIAS_EVENT: {
        const auto known = anchors_.find(words(event_.data.alias.anchor));
        if (known == anchors_.end()) fail(event_.start_mark, "nothing before this is called that");
        count(event_.start_mark, size_of_tree(known->second));
        const TextPosition here = tree.at;
        tree = known->second;
        tree.at = here;
        return;
      }
      case YAML_SCALAR_EVENT: {
        const auto& scalar = event_.data.scalar;
        refuse_tag(scalar.tag);
        const std::string text(reinterpret_cast<const char*>(scalar.value), scalar.length);
        if (scalar.plain_implicit != 0) {
          type_plain(text, tree);
          if (tree.kind == JsonTree::Kind::kReal && !std::isfinite(tree.real))
            fail(event_.start_mark, "infinities and NaN are no values of a configuration");
        } else {
          tree.kind = JsonTree::Kind::kString;
          tree.text = text;
        }
        return remember(words(scalar.anchor), tree);
      }
      case YAML_SEQUENCE_START_EVENT: {
        const std::string anchor = words(event_.data.sequence_start.anchor);
        refuse_tag(event_.data.sequence_start.tag);
        tree.kind = JsonTree::Kind::kList;
        while (next() != YAML_SEQUENCE_END_EVENT) read_value(tree.items.emplace_back(), path, depth + 1);
        return remember(anchor, tree);
      }
      case YAML_MAPPING_START_EVENT: {
        const std::string anchor = words(event_.data.mapping_start.anchor);
        refuse_tag(event_.data.mapping_start.tag);
        read_members(tree, path, depth);
        return remember(anchor, tree);
      }
      default:
        fail(event_.start_mark, "a value is missing here");
    }
  }

  void read_members(JsonTree& tree, const std::string& path, int depth) {
    tree.kind = JsonTree::Kind::kObject;
    std::map<std::string, int> seen;  // key, its line
    while (next() != YAML_MAPPING_END_EVENT) {
      JsonMember member;
      JsonTree key;
      read_value(key, path, depth + 1);
      member.at = key.at;
      member.key = key.text;
      if (key.kind != JsonTree::Kind::kString)
        throw JsonProblem{key.at, "", std::string("a key is a word, not ") + kind_name(key.kind)};
      if (member.key == "<<") throw JsonProblem{key.at, "", "merging by << is not read: write the keys out"};
      const std::string full = path.empty() ? member.key : path + "." + member.key;
      const auto [first, once] = seen.emplace(member.key, member.at.line);
      if (!once)
        out_.problems.push_back(
            {member.at, full, "given twice in the same object, first in line " + std::to_string(first->second)});
      next();
      read_value(member.value, full, depth + 1);
      if (once) tree.members.push_back(std::move(member));
    }
  }

  const std::string& text_;
  yaml_parser_t parser_{};
  yaml_event_t event_{};
  std::map<std::string, JsonTree> anchors_;
  JsonText& out_;
  int64_t values_ = 0;
};

}  // namespace

JsonText parse_yaml_text(const std::string& text) {
  JsonText result;
  try {
    YamlReader(text, result).read();
  } catch (const JsonProblem& problem) {
    result.problems.push_back(problem);
  }
  return result;
}

bool is_yaml_name(const std::string& name) {
  return name.ends_with(".yml") || name.ends_with(".yaml");
}

}  // namespace thinwire
