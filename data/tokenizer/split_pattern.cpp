// One pass over the pattern; every character is written out by its number, so that none has a meaning of its own to
// ICU.
#include "data/tokenizer/split_pattern.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "data/tokenizer/unicode.h"
#include "engine/base/core/error.h"
#include "engine/base/core/text.h"

namespace thinwire {
namespace {

struct NewerCategory {
  uint32_t first, last;
  char category[3];
};

#include "data/tokenizer/newer_categories_table.inc"

constexpr const char* kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Me", "N",  "Nd", "Nl",
                                       "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
                                       "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};

bool is_ascii_letter(uint32_t c) {
  return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
}
bool is_digit(uint32_t c) {
  return c >= '0' && c <= '9';
}

std::string number_text(uint32_t code) {
  return printed("\\x{%X}", code);
}

// A set that also stands alone: characters of the category up to Unicode 14.0 by ICU, later ones by the table.
std::string category_set(const std::string& name) {
  std::string set = "[[[\\p{" + name + "}]&&[\\p{Age=14.0}]]";
  for (const NewerCategory& row : kNewerCategories) {
    if (std::string(row.category).starts_with(name)) set += number_text(row.first) + "-" + number_text(row.last);
  }
  return set + "]";
}

class PatternTranslator {
 public:
  PatternTranslator(const std::string& pattern, const std::string& where) : where_(where) {
    for (size_t at = 0; at < pattern.size();) {
      const Utf8Char c = decode_utf8(pattern, at);
      if (!c.valid) fail("is not UTF-8");
      in_.push_back(c.code);
      at += c.length;
    }
    if (in_.empty()) fail("is empty");
  }

  std::string run() {
    bool atom = false;  // a quantifier may follow
    while (at_ < in_.size()) {
      const uint32_t c = in_[at_++];
      if (c == '|') {
        out_ += '|', atom = false;
      } else if (c == '(') {
        open_group(), atom = false;
      } else if (c == ')') {
        if (groups_.empty()) fail("')' closes no group");
        out_ += ')', atom = !groups_.back().looks;
        groups_.pop_back();
      } else if (c == '?' || c == '*' || c == '+' || c == '{') {
        if (!atom) fail("a quantifier has nothing to repeat here, or repeats another; put (?: ) around that one");
        quantifier(c), atom = false;
      } else if (c == '[') {
        out_ += set(0), atom = true;
      } else if (c == '.') {
        out_ += "[^\\n]", atom = true;
      } else if (c == '^' || c == '$') {
        fail(std::string("the anchor ") + static_cast<char>(c) + " is not supported");
      } else {
        const Element element = c == '\\' ? escape() : Element{c, ""};
        out_ += element.set.empty() ? literal(element.code) : element.set, atom = true;
      }
    }
    if (!groups_.empty()) fail("a group is not closed");
    return std::move(out_);
  }

 private:
  struct Group {
    bool folds = false;  // (?i:
    bool looks = false;  // around: matches nothing itself
  };
  struct Element {
    uint32_t code = 0;
    std::string set;  // not empty: a class of characters
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw_bad_data(where_ + ": the split pattern" + (at_ > 0 ? " at character " + std::to_string(at_) + ": " : " ") +
                   what);
  }
  bool folds() const { return !groups_.empty() && groups_.back().folds; }
  bool next_is(const char* text) const {
    size_t at = at_;
    for (; *text != 0; ++text, ++at) {
      if (at >= in_.size() || in_[at] != static_cast<uint32_t>(*text)) return false;
    }
    return true;
  }

  std::string literal(uint32_t code) const {
    if (folds() && code >= 0x80) fail("(?i: ) is supported for ASCII only");
    return number_text(code);
  }

  void open_group() {
    if (groups_.size() >= 64) fail("groups are nested deeper than 64 levels");
    Group group{folds(), false};
    const char* kind = "(";
    if (next_is("?")) {
      kind = nullptr;
      for (const char* known : {"(?:", "(?i:", "(?>", "(?=", "(?!", "(?<=", "(?<!"}) {
        if (next_is(known + 1)) kind = known;
      }
      if (kind == nullptr) {
        fail("this kind of group is not supported (known: (?: (?i: (?> (?= (?! (?<= (?<!)");
      }
    }
    const std::string text = kind;
    at_ += text.size() - 1;
    group.folds = group.folds || text == "(?i:";
    group.looks = text.back() == '=' || text.back() == '!';
    groups_.push_back(group);
    out_ += text;
  }

  void quantifier(uint32_t kind) {
    out_ += static_cast<char>(kind);
    if (kind != '{') {
      if (next_is("?") || next_is("+")) out_ += static_cast<char>(in_[at_++]);
      return;
    }
    // Oniguruma takes {n}? and {n,m}+ for something else than ICU: they end as a repeated quantifier in run().
    const int64_t least = count();
    int64_t most = least;
    if (next_is(",")) {
      out_ += ',', ++at_;
      most = next_is("}") ? INT64_MAX : count();
    }
    if (!next_is("}")) fail("{n}, {n,} or {n,m} is needed; a brace of the text is written \\{");
    if (most < least) fail("{n,m} with m below n");
    out_ += '}', ++at_;
  }
  int64_t count() {
    int64_t n = 0;
    const size_t start = at_;
    for (; at_ < in_.size() && is_digit(in_[at_]) && at_ - start < 4; ++at_) n = n * 10 + (in_[at_] - '0');
    if (at_ == start || n > 1000) fail("a count of 0 to 1000 is needed; a brace of the text is written \\{");
    out_ += std::to_string(n);
    return n;
  }

  uint32_t hex(size_t least, size_t most) {
    uint32_t code = 0;
    size_t n = 0;
    for (; n < most && at_ < in_.size(); ++n, ++at_) {
      const uint32_t c = in_[at_], lower = c | 0x20;
      if (is_digit(c)) {
        code = code * 16 + (c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        code = code * 16 + (lower - 'a' + 10);
      } else {
        break;
      }
    }
    if (n < least) fail("hexadecimal digits are needed");
    return code;
  }

  Element escape() {
    if (at_ >= in_.size()) fail("ends in a backslash");
    const uint32_t c = in_[at_++];
    const bool wide = c == 'x' && next_is("{");
    switch (c) {
      case 'r':
        return {'\r', ""};
      case 'n':
        return {'\n', ""};
      case 't':
        return {'\t', ""};
      case 'f':
        return {'\f', ""};
      case 's':
        return characters("[\\p{White_Space}]", false);
      case 'S':
        return characters("[\\p{White_Space}]", true);
      case 'd':
        return characters(category_set("Nd"), false);
      case 'D':
        return characters(category_set("Nd"), true);
      case 'p':
      case 'P':
        return property(c == 'P');
      case 'u':
        return {hex(4, 4), ""};
      case 'x': {
        at_ += wide ? 1 : 0;
        const uint32_t code = wide ? hex(1, 6) : hex(2, 2);
        if (wide && (!next_is("}") || code > 0x10FFFF)) fail("\\x{HHHH} is needed");
        if (!wide && code >= 0x80) fail("\\x80 and above are bytes, not characters; write \\x{80}");
        at_ += wide ? 1 : 0;
        return {code, ""};
      }
      default:
        if (c >= 0x80 || is_ascii_letter(c) || is_digit(c)) {
          std::string name;
          append_utf8(name, c);
          fail("the escape \\" + name + " is not supported");
        }
        return {c, ""};
    }
  }
  Element characters(const std::string& set, bool negated) const {
    if (folds()) fail("classes of characters inside of (?i: ) are not supported");
    return {0, negated ? "[^" + set + "]" : set};
  }
  Element property(bool negated) {
    if (!next_is("{")) fail("\\p{NAME} is needed");
    ++at_;
    if (next_is("^")) negated = !negated, ++at_;
    std::string name;
    while (at_ < in_.size() && in_[at_] != '}' && name.size() < 40) append_utf8(name, in_[at_++]);
    if (!next_is("}")) fail("\\p{NAME} is needed");
    ++at_;
    if (std::find(std::begin(kCategories), std::end(kCategories), name) == std::end(kCategories)) {
      fail("\\p{" + name +
           "} is not supported: only general categories such as \\p{L} or \\p{Lu} are, without Mn, Mc, "
           "Cn, Cs and C");
    }
    return characters(category_set(name), negated);
  }

  // The rest of a set behind '['.
  std::string set(int depth) {
    if (depth > 8) fail("sets are nested deeper than 8 levels");
    std::string text = "[";
    if (next_is("^")) {
      if (folds()) fail("negated sets inside of (?i: ) are not supported");
      text += '^', ++at_;
    }
    const size_t start = at_;
    for (;;) {
      if (at_ >= in_.size()) fail("a set is not closed");
      if (next_is("]")) {
        if (at_ == start) fail("an empty set; a bracket of the text is written \\]");
        ++at_;
        return text + "]";
      }
      if (next_is("&&") || next_is("[:")) fail("&& and [: in sets are not supported");
      if (next_is("[")) {
        ++at_;
        text += set(depth + 1);
        continue;
      }
      const bool dash_in_front = at_ == start;
      const Element from = element(dash_in_front);
      if (!from.set.empty()) {
        text += from.set;
        continue;
      }
      text += literal(from.code);
      if (!next_is("-") || next_is("-]")) continue;
      ++at_;
      const Element to = element(false);
      if (!to.set.empty() || to.code < from.code) fail("a range from a lower to a higher character is needed");
      text += "-" + literal(to.code);
    }
  }
  Element element(bool dash_in_front) {
    const uint32_t c = in_[at_++];
    if (c == '\\') return escape();
    if (c == '-' && !dash_in_front && !next_is("]")) fail("a dash of the text is written \\- or put last");
    if (c == '[') fail("a bracket of the text is written \\[");
    return {c, ""};
  }

  std::string where_;
  std::vector<uint32_t> in_;
  size_t at_ = 0;
  std::string out_;
  std::vector<Group> groups_;
};

}  // namespace

std::string icu_split_pattern(const std::string& pattern, const std::string& where) {
  return PatternTranslator(pattern, where).run();
}

}  // namespace thinwire
