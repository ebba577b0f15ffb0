// A small strict parser, which also takes comments, one trailing comma and Python's words.
#include "engine/run/config/json_text.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>

namespace thinwire {
namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
}

class Parser {
 public:
  Parser(const std::string& text, JsonText& out) : text_(text), out_(out) {}

  void parse() {
    if (text_.compare(0, 3, "\xef\xbb\xbf") == 0) offset_ = 3;  // byte order mark
    skip_blanks();
    if (at_end()) fail("the text is empty; a configuration is one JSON object { ... }");
    parse_value(out_.root, "", 1);
    skip_blanks();
    if (!at_end()) fail("unexpected text after the end of the value");
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw JsonProblem{here(), "", message}; }
  [[noreturn]] static void fail_at(TextPosition at, const std::string& message) { throw JsonProblem{at, "", message}; }

  bool at_end() const { return offset_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[offset_]; }
  TextPosition here() const { return at_; }

  void advance() {
    const unsigned char c = static_cast<unsigned char>(text_[offset_]);
    if (c == '\n') {
      ++at_.line;
      at_.column = 1;
    } else if ((c & 0xc0) != 0x80) {
      ++at_.column;
    }
    ++offset_;
  }

  // White space and comments.
  void skip_blanks() {
    while (!at_end()) {
      if (is_blank(peek())) {
        advance();
      } else if (peek() == '#' || text_.compare(offset_, 2, "//") == 0) {
        while (!at_end() && peek() != '\n') advance();
      } else if (text_.compare(offset_, 2, "/*") == 0) {
        const size_t end = text_.find("*/", offset_ + 2);
        if (end == std::string::npos) fail("the comment /* is not closed");
        while (offset_ < end + 2) advance();
      } else {
        return;
      }
    }
  }

  std::string shown_character() const {
    const unsigned char c = static_cast<unsigned char>(peek());
    if (c >= 0x20 && c < 0x7f) return std::string("'") + static_cast<char>(c) + "'";
    static const char* digits = "0123456789abcdef";
    return std::string("byte 0x") + digits[c >> 4] + digits[c & 15];
  }

  void parse_value(JsonTree& tree, const std::string& path, int depth) {
    if (depth > kMaxJsonDepth) fail("nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    tree.at = here();
    if (at_end()) fail("the text ends where a value is expected");
    const char c = peek();
    if (c == '{') return parse_object(tree, path, depth);
    if (c == '[') return parse_list(tree, path, depth);
    if (c == '"') {
      tree.kind = JsonTree::Kind::kString;
      tree.text = parse_string();
      return;
    }
    if (c == '-' || is_digit(c)) return parse_number(tree);
    if (c == '\'') fail("strings take double quotes, not single ones");
    if (c == '+') fail("a number has no leading plus sign");
    if (c == '.') fail("a number starts with a digit: write 0.5, not .5");
    if (is_word(c)) return parse_word(tree);
    if (c == '}' || c == ']' || c == ',' || c == ':') fail(std::string("a value is missing before '") + c + "'");
    fail("unexpected " + shown_character());
  }

  void parse_word(JsonTree& tree) {
    const TextPosition start = here();
    std::string word;
    while (is_word(peek())) {
      word += peek();
      advance();
    }
    if (word == "true" || word == "True" || word == "false" || word == "False") {
      tree.kind = JsonTree::Kind::kBool;
      tree.boolean = word == "true" || word == "True";
    } else if (word == "null" || word == "None") {
      tree.kind = JsonTree::Kind::kNull;
    } else if (word == "NaN" || word == "nan" || word == "Infinity" || word == "inf" || word == "Inf") {
      fail_at(start, "NaN and infinities are not JSON numbers");
    } else {
      fail_at(start, "the word " + word.substr(0, 40) +
                         " is not JSON: strings take double quotes, the other words are true, false, null");
    }
  }

  void parse_number(JsonTree& tree) {
    const TextPosition start = here();
    std::string digits;
    const auto take = [&] {
      digits += peek();
      advance();
    };
    bool real = false;
    if (peek() == '-') take();
    if (!is_digit(peek())) {
      if (peek() == 'I' || peek() == 'N' || peek() == 'i' || peek() == 'n')
        fail_at(start, "NaN and infinities are not JSON numbers");
      fail("a digit is missing after the minus sign");
    }
    if (peek() == '0') {
      take();
      if (is_digit(peek())) fail_at(start, "a number has no leading zeros");
    } else {
      while (is_digit(peek())) take();
    }
    if (peek() == '.') {
      real = true;
      take();
      if (!is_digit(peek())) fail("a digit is missing after the decimal point: write 1.0, not 1.");
      while (is_digit(peek())) take();
    }
    if (peek() == 'e' || peek() == 'E') {
      real = true;
      take();
      if (peek() == '+' || peek() == '-') take();
      if (!is_digit(peek())) fail("a digit is missing in the exponent");
      while (is_digit(peek())) take();
    }
    if (is_word(peek())) fail_at(start, "a number ends where " + shown_character() + " follows; units are not written");
    if (!real) {
      const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), tree.integer);
      if (result.ec != std::errc()) fail_at(start, "the integer " + digits.substr(0, 40) + " does not fit in 64 bits");
      tree.kind = JsonTree::Kind::kInt;
      return;
    }
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), tree.real);
    if (result.ec == std::errc::result_out_of_range) {
      // Both overflow and underflow land here; a vanishing number is zero, as in every other JSON reader.
      tree.real = std::strtod(digits.c_str(), nullptr);
      if (std::isinf(tree.real)) fail_at(start, "the number " + digits.substr(0, 40) + " is too large");
    }
    tree.kind = JsonTree::Kind::kReal;
  }

  // Where it ends is ours to find, since positions are; what it says is nlohmann's.
  std::string parse_string() {
    const TextPosition start = here();
    const size_t first = offset_;
    size_t end = first + 1;
    while (end < text_.size() && text_[end] != '"' && text_[end] != '\n') end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) fail_at(start, "the string is not closed");
    if (text_[end] == '\n') fail_at(start, "the string is not closed on its line");
    try {
      const nlohmann::json string = nlohmann::json::parse(text_.begin() + static_cast<ptrdiff_t>(first),
                                                          text_.begin() + static_cast<ptrdiff_t>(end) + 1);
      while (offset_ <= end) advance();
      return string.get<std::string>();
    } catch (const nlohmann::json::parse_error& e) {
      while (offset_ + 1 < first + e.byte) advance();
      std::string why = e.what();
      if (const size_t at = why.find("invalid string: "); at != std::string::npos) why = why.substr(at + 16);
      why = why.substr(0, why.find("; last read"));
      const bool escape = why.find("backslash") != std::string::npos || why.find("\\u") == 1;
      fail("in a string: " + why +
           (escape ? " (escapes are \\\" \\\\ \\/ \\b \\f \\n \\r \\t and \\u with four hexadecimal digits)" : ""));
    }
  }

  void parse_object(JsonTree& tree, const std::string& path, int depth) {
    tree.kind = JsonTree::Kind::kObject;
    advance();
    std::map<std::string, int> seen;  // key, its line
    for (;;) {
      skip_blanks();
      if (at_end()) fail_open(tree.at, "object");
      if (peek() == '}') return advance();
      if (peek() != '"')
        fail(peek() == '\'' ? "keys take double quotes, not single ones" : "a key in double quotes is expected here");
      JsonMember member;
      member.at = here();
      member.key = parse_string();
      const std::string full = path.empty() ? member.key : path + "." + member.key;
      const auto [first, once] = seen.emplace(member.key, member.at.line);
      if (!once)
        out_.problems.push_back(
            {member.at, full, "given twice in the same object, first in line " + std::to_string(first->second)});
      skip_blanks();
      if (peek() != ':') fail("a colon is missing after the key \"" + member.key.substr(0, 60) + "\"");
      advance();
      skip_blanks();
      if (at_end()) fail_open(tree.at, "object");
      parse_value(member.value, full, depth + 1);
      if (once) tree.members.push_back(std::move(member));
      skip_blanks();
      if (at_end()) fail_open(tree.at, "object");
      if (peek() == '}') return advance();
      if (peek() != ',') fail("a comma or '}' is missing before " + shown_character());
      advance();
    }
  }

  void parse_list(JsonTree& tree, const std::string& path, int depth) {
    tree.kind = JsonTree::Kind::kList;
    advance();
    for (;;) {
      skip_blanks();
      if (at_end()) fail_open(tree.at, "list");
      if (peek() == ']') return advance();
      tree.items.emplace_back();
      parse_value(tree.items.back(), path, depth + 1);
      skip_blanks();
      if (at_end()) fail_open(tree.at, "list");
      if (peek() == ']') return advance();
      if (peek() != ',') fail("a comma or ']' is missing before " + shown_character());
      advance();
    }
  }

  [[noreturn]] void fail_open(TextPosition start, const std::string& what) const {
    fail("the text ends inside the " + what + " that opens at " + std::to_string(start.line) + ":" +
         std::to_string(start.column));
  }

  const std::string& text_;
  JsonText& out_;
  size_t offset_ = 0;
  TextPosition at_;
};

}  // namespace

bool JsonText::syntax_ok() const {
  for (const JsonProblem& p : problems)
    if (p.key.empty()) return false;
  return true;
}

JsonText parse_json_text(const std::string& text) {
  JsonText result;
  try {
    Parser(text, result).parse();
  } catch (const JsonProblem& problem) {
    result.problems.push_back(problem);
  }
  return result;
}

nlohmann::json to_json(const JsonTree& tree) {
  switch (tree.kind) {
    case JsonTree::Kind::kNull:
      return nullptr;
    case JsonTree::Kind::kBool:
      return tree.boolean;
    case JsonTree::Kind::kInt:
      return tree.integer;
    case JsonTree::Kind::kReal:
      return tree.real;
    case JsonTree::Kind::kString:
      return tree.text;
    case JsonTree::Kind::kList: {
      nlohmann::json list = nlohmann::json::array();
      for (const JsonTree& item : tree.items) list.push_back(to_json(item));
      return list;
    }
    case JsonTree::Kind::kObject: {
      nlohmann::json object = nlohmann::json::object();
      for (const JsonMember& m : tree.members) object[m.key] = to_json(m.value);
      return object;
    }
  }
  return nullptr;
}

const char* kind_name(JsonTree::Kind kind) {
  constexpr const char* names[] = {"null",     "a boolean", "an integer", "a number with a fraction",
                                   "a string", "a list",    "an object"};
  return names[static_cast<int>(kind)];
}

}  // namespace thinwire
