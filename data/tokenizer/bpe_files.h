// The files that the word behind `bpe:` names.
#pragma once

#include <string>

namespace thinwire {

struct BpeFiles {
  std::string vocab;   // a tokenizer.json, or the vocabulary alone
  std::string merges;  // "": a tokenizer.json, which holds them
};

// "tokenizer.json", or "vocab.json,merges.txt", which is cut at the first ".json,".
inline BpeFiles bpe_files(const std::string& files) {
  const size_t at = files.find(".json,");
  return at == std::string::npos ? BpeFiles{files, ""} : BpeFiles{files.substr(0, at + 5), files.substr(at + 6)};
}

}  // namespace thinwire
