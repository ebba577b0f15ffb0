// The GPT-2 word pattern: cuts text into the words within which BPE merges.
#pragma once

#include <cstddef>
#include <string_view>

namespace thinwire {

// Length of the word that starts at `at` (at < text.size(), result > 0), as this pattern matches from there:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// (Radford et al. 2019, the published encoder of GPT-2.) It matches at every position, so words tile the text.
// Ill-formed bytes belong to the third class. The end of `text` counts as the end of the document.
size_t gpt2_word_length(std::string_view text, size_t at);

}  // namespace thinwire
