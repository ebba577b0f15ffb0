// The files that the word behind `bpe:` names, and the token of theirs that ends a document.
#pragma once

#include <string>

namespace thinwire {

struct BpeFiles {
  std::string vocab;   // a tokenizer.json, or the vocabulary alone
  std::string merges;  // "": a tokenizer.json, which holds them
};

// The first of these among the added tokens ends a document; else kEndInVocab, which GPT-2's vocab.json has.
inline constexpr const char* kEndsOfDocument[] = {
    "<|endoftext|>", "<|end_of_text|>", "</s>",
    "<eos>",         "<EOT>",           "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"};  // DeepSeek
inline constexpr const char* kEndInVocab = "<|endoftext|>";

// "tokenizer.json", or "vocab.json,merges.txt", which is cut at the first ".json,".
inline BpeFiles bpe_files(const std::string& files) {
  const size_t at = files.find(".json,");
  return at == std::string::npos ? BpeFiles{files, ""} : BpeFiles{files.substr(0, at + 5), files.substr(at + 6)};
}

}  // namespace thinwire
