// What tokenizers must know about Unicode: UTF-8 decoding that survives any bytes, character classes, and NFC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace thinwire {

// The four classes that the GPT-2 word pattern tells apart: \p{L}, \p{N}, \s and the rest (Unicode 16.0).
enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };
CharClass char_class(uint32_t code);

// One step through bytes. An ill-formed byte is a character of its own: length 1, valid false, class kOther.
struct Utf8Char {
  uint32_t code = 0;
  uint32_t length = 1;
  bool valid = false;
};
// Strict (no surrogates, no overlong forms, nothing above U+10FFFF). Requires at < text.size().
Utf8Char decode_utf8(std::string_view text, size_t at);
void append_utf8(std::string& out, uint32_t code);
// Class of the character that starts at `at`.
CharClass class_at(std::string_view text, size_t at, uint32_t* length);
bool is_utf8(std::string_view text);

// Canonical composition (Unicode Standard Annex 15). Ill-formed bytes pass unchanged and separate what is around them.
std::string nfc(std::string_view text);
// True when nfc(text) == text is certain without work: no code point at or above U+0300.
bool is_plainly_nfc(std::string_view text);

}  // namespace thinwire
