// What tokenizers must know about Unicode: UTF-8 decoding that survives any bytes, white space, and NFC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace thinwire {

// One step through bytes. An ill-formed byte is a character of its own: length 1, valid false.
struct Utf8Char {
  uint32_t code = 0;
  uint32_t length = 1;
  bool valid = false;
};
// Strict (no surrogates, no overlong forms, nothing above U+10FFFF). Requires at < text.size().
Utf8Char decode_utf8(std::string_view text, size_t at);
void append_utf8(std::string& out, uint32_t code);

// Bytes of the white space character that starts at `at`; 0: there is another character.
size_t space_length(std::string_view text, size_t at);

// Canonical composition (Unicode Standard Annex 15), as the tokenizers library does it: characters from after Unicode
// 9.0 pass unchanged and separate what is around them. So do ill-formed bytes.
std::string nfc(std::string_view text);
// True when nfc(text) == text is certain without work: no code point at or above U+0300.
bool is_plainly_nfc(std::string_view text);

}  // namespace thinwire
