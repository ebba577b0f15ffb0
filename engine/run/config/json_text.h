// JSON as people type it (comments, trailing commas, Python's True), read strictly and with the line and column of
// every value.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace thinwire {

// Both count from 1; columns count characters (UTF-8 code points), as editors do.
struct TextPosition {
  int line = 1;
  int column = 1;
};

struct JsonMember;

// One value of the text. Which field holds it depends on `kind`.
struct JsonTree {
  enum class Kind { kNull, kBool, kInt, kReal, kString, kList, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0.0;
  std::string text;
  bool plain = false;  // of YAML: written without quotes; `text` is then what was written, whatever its kind
  std::vector<JsonTree> items;
  std::vector<JsonMember> members;  // in the order of the text; of duplicates the first, and all are reported
  TextPosition at;
};

struct JsonMember {
  std::string key;
  TextPosition at;
  JsonTree value;
};

struct JsonProblem {
  TextPosition at;
  std::string key;  // full dotted path for duplicate keys, empty for syntax
  std::string message;
};

struct JsonText {
  JsonTree root;
  std::vector<JsonProblem> problems;  // `root` is usable only where this holds nothing but duplicate keys
  bool syntax_ok() const;
};

constexpr int kMaxJsonDepth = 32;

// RFC 8259, and besides `//`, `/* */` and `#` comments, one comma behind the last value of a list or object, and the
// words True, False, None. Refuses what nlohmann::json refuses of the rest, and duplicate keys, nesting deeper than
// kMaxJsonDepth, integers beyond int64 and numbers that overflow a double. Stops at the first syntax error. Never
// throws on bad text.
JsonText parse_json_text(const std::string& text);

nlohmann::json to_json(const JsonTree& tree);
const char* kind_name(JsonTree::Kind kind);  // "an integer", "a string" ...

}  // namespace thinwire
