// The pattern of gpt2_words.h as a hand-written matcher: one pass, no backtracking beyond one character.
#include "data/tokenizer/gpt2_words.h"

#include "data/tokenizer/unicode.h"

namespace thinwire {
namespace {

size_t contraction_length(std::string_view rest) {
  if (rest.size() < 2) return 0;
  switch (rest[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return rest.size() >= 3 && rest[2] == 'e' ? 3 : 0;
    case 'l':
      return rest.size() >= 3 && rest[2] == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

}  // namespace

size_t gpt2_word_length(std::string_view text, size_t at) {
  if (text[at] == '\'') {
    const size_t n = contraction_length(text.substr(at));
    if (n != 0) return n;
  }
  uint32_t length = 0;
  size_t end = at;
  CharClass kind = class_at(text, end, &length);
  if (text[at] == ' ' && at + 1 < text.size()) {
    uint32_t next_length = 0;
    const CharClass next = class_at(text, at + 1, &next_length);
    if (next != CharClass::kSpace) {
      kind = next;
      length = 1 + next_length;
    }
  }
  end += length;
  size_t last = at;  // start of the last character, once there are two
  while (end < text.size() && class_at(text, end, &length) == kind) {
    last = end;
    end += length;
  }
  // \s+(?!\S): white space before a word leaves its last character to that word, unless it is the only one.
  if (kind == CharClass::kSpace && end < text.size() && last > at) return last - at;
  return end - at;
}

}  // namespace thinwire
