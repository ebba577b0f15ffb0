// The text of tokens that come one at a time, returned as soon as it is final.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace thinwire {

// The text of an id depends on its neighbours: SentencePiece drops the blank before a text's first word, and shows the
// bytes of an incomplete character as U+FFFD. So an id is decoded together with the last few before it. The returned
// texts, joined, are the text of all ids decoded at once.
class TextStream {
 public:
  // `before`: ids of a text that is known already, and ends with a complete character. The tokenizer outlives this.
  explicit TextStream(const Tokenizer& tokenizer, std::vector<int32_t> before = {});

  // Returns the text that is new. Up to three U+FFFD at its end are held back: the next ids may complete a character.
  std::string add(int32_t id);
  // Returns what is held back, after the last id.
  std::string finish() const;

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;  // the last ones
  size_t returned_ = 0;       // bytes of their text that have been returned
};

}  // namespace thinwire
