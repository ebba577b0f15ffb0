// SentencePiece models, through libsentencepiece where the build found it.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace thinwire {

// Text is normalised as the model says, so decode(encode(x)) is x only up to that (spaces, compatibility forms); no BOS
// or EOS is added. decode() prints control tokens (</s>) as nothing. eod() is the model's eos_id. Throws
// Error(kBadData) for a file that is not such a model, Error(kUsage) where the library was absent from the build.
std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path);
bool sentencepiece_available();

}  // namespace thinwire
