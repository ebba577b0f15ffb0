// The text of tokens that come one at a time, told as soon as it is certain.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace thinwire {

// An id alone does not say its text everywhere: SentencePiece drops the blank in front of a text's first word, and
// shows the bytes of a character that is not complete as U+FFFD. So ids are decoded behind the last few in front of
// them. What is told is, together, the text of all ids decoded at once.
class TextStream {
 public:
  // `before`: ids of a text that is known already, with whole characters. The tokenizer outlives this.
  explicit TextStream(const Tokenizer& tokenizer, std::vector<int32_t> before = {});

  // By what the text grows. Up to three U+FFFD at its end wait: the ids behind them may make them a character.
  std::string add(int32_t id);
  // What still waits, at the end.
  std::string finish() const;

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;  // the last ones, with text in front of what is told next
  size_t told_ = 0;           // bytes of their text
};

}  // namespace thinwire
