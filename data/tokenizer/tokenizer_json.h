// Reading tokenizer.json, or vocab.json and merges.txt: every fact the byte-level BPE needs, checked, with nothing left
// to trust.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer/word_splitter.h"

namespace thinwire {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool normalized = false, lstrip = false, rstrip = false, special = false;
};

struct BpeMerge {
  int32_t left = 0, right = 0, merged = 0;
};

struct BpeDescription {
  std::vector<std::string> bytes;     // by id: what the token stands for in text
  std::vector<bool> plain;            // by id: a token of the byte alphabet (false: only reachable as an added token)
  std::array<int32_t, 256> byte_ids;  // -1: the vocabulary has no token for this byte
  std::vector<BpeMerge> merges;       // by rank; no pair twice
  std::vector<AddedToken> added;
  std::vector<SplitStep> splits;       // none: a text is one word
  std::vector<int32_t> before, after;  // what the post-processor puts around a text
  bool add_prefix_space = false;
  bool ignore_merges = false;
  bool nfc = false;
};

// Throws Error(kBadData): "FILE: model.merges[17]: ...". `path` only names the text in messages.
BpeDescription parse_tokenizer_json(const std::string& path, const std::string& text);

// GPT-2's pair: {token: id}, and a merge "a b" on each line behind an optional "#version: ..." line. Words are cut by
// GPT-2's pattern; nothing is an added token. Throws Error(kBadData): "FILE: ...", "FILE:LINE: ...".
BpeDescription parse_vocab_and_merges(const std::string& vocab_path, const std::string& vocab,
                                      const std::string& merges_path, const std::string& merges);

}  // namespace thinwire
