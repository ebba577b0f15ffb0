// Stands in for sentencepiece_tokenizer.cpp in builds without libsentencepiece.
#include "data/tokenizer/tokenizer_files.h"
#include "engine/base/core/error.h"

namespace thinwire {

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path) {
  throw_usage("tokenizer 'sentencepiece:" + path +
              "': this build has no SentencePiece; install libsentencepiece-dev (Debian, Ubuntu) and configure again");
}
bool sentencepiece_available() {
  return false;
}

}  // namespace thinwire
