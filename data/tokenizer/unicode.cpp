// UTF-8 by hand, white space and NFC by ICU.
#include "data/tokenizer/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>

#include <algorithm>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

void check_icu(UErrorCode status, const char* what) {
  TW_CHECK(U_SUCCESS(status), "ICU cannot ", what, ": ", u_errorName(status));
}

const icu::Normalizer2& normalizer() {
  static const icu::UnicodeSet known = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet set(icu::UnicodeString("[:age=9.0:]"), status);
    check_icu(status, "tell the characters of Unicode 9.0");
    set.freeze();
    return set;
  }();
  static const icu::FilteredNormalizer2 filtered = [] {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* all = icu::Normalizer2::getNFCInstance(status);
    check_icu(status, "normalise");
    return icu::FilteredNormalizer2(*all, known);
  }();
  return filtered;
}

}  // namespace

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

size_t space_length(std::string_view text, size_t at) {
  const Utf8Char c = decode_utf8(text, at);
  return c.valid && u_isUWhiteSpace(static_cast<UChar32>(c.code)) ? c.length : 0;
}

bool is_plainly_nfc(std::string_view text) {
  // U+0300 is CC 80: every lead byte below CC starts a code point below it.
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0xCC; });
}

std::string nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  icu::StringByteSink<std::string> sink(&out);
  for (size_t begin = 0, at = 0; at <= text.size();) {
    const Utf8Char c = at < text.size() ? decode_utf8(text, at) : Utf8Char{};
    if (!c.valid) {
      UErrorCode status = U_ZERO_ERROR;
      const icu::StringPiece piece(text.data() + begin, static_cast<int32_t>(at - begin));
      normalizer().normalizeUTF8(0, piece, sink, nullptr, status);
      check_icu(status, "normalise");
      if (at < text.size()) out.push_back(text[at]);
      begin = at + 1;
    }
    at += c.length;
  }
  return out;
}

}  // namespace thinwire
