// Table look-ups behind unicode.h; the tables are generated from the Unicode character database.
#include "data/tokenizer/unicode.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace thinwire {
namespace {

struct CodeRange {
  uint32_t first, last;
};

#include "data/tokenizer/unicode_classes.inc"

constexpr uint32_t kDirect = 0x20000;  // below this a byte per code point, above it a search

template <size_t N>
bool contains(const CodeRange (&ranges)[N], uint32_t code) {
  const auto* found = std::upper_bound(std::begin(ranges), std::end(ranges), code,
                                       [](uint32_t c, const CodeRange& r) { return c < r.first; });
  return found != std::begin(ranges) && code <= std::prev(found)->last;
}

CharClass search_class(uint32_t code) {
  if (contains(kLetters, code)) return CharClass::kLetter;
  if (contains(kNumbers, code)) return CharClass::kNumber;
  if (contains(kSpaces, code)) return CharClass::kSpace;
  return CharClass::kOther;
}

const CharClass* direct_classes() {
  static const std::vector<CharClass> table = [] {
    std::vector<CharClass> classes(kDirect, CharClass::kOther);
    const auto fill = [&](const auto& ranges, CharClass value) {
      for (const CodeRange& r : ranges) {
        for (uint32_t code = r.first; code <= r.last && code < kDirect; ++code) classes[code] = value;
      }
    };
    fill(kLetters, CharClass::kLetter);
    fill(kNumbers, CharClass::kNumber);
    fill(kSpaces, CharClass::kSpace);
    return classes;
  }();
  return table.data();
}

}  // namespace

CharClass char_class(uint32_t code) {
  return code < kDirect ? direct_classes()[code] : search_class(code);
}

Utf8Char decode_utf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const uint32_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() - at < length) return {lead, 1, false};
  uint32_t code = lead & (0x7Fu >> length);
  for (uint32_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {lead, 1, false};
    code = (code << 6) | (byte(i) & 0x3F);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  if (overlong || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {lead, 1, false};
  return {code, length, true};
}

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&](uint32_t b) { out.push_back(static_cast<char>(b)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6)), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12)), put(0x80 | ((code >> 6) & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18)), put(0x80 | ((code >> 12) & 0x3F)), put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

CharClass class_at(std::string_view text, size_t at, uint32_t* length) {
  const Utf8Char c = decode_utf8(text, at);
  *length = c.length;
  return c.valid ? char_class(c.code) : CharClass::kOther;
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    if (!c.valid) return false;
    at += c.length;
  }
  return true;
}

}  // namespace thinwire
