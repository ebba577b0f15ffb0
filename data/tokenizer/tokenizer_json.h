// Reading tokenizer.json: every fact the byte-level BPE needs, checked, with nothing left to trust.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

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
  bool add_prefix_space = false;
  bool use_regex = true;
  bool ignore_merges = false;
  bool nfc = false;
};

// Throws Error(kBadData): "FILE: model.merges[17]: ...". `path` only names the text in messages.
BpeDescription parse_tokenizer_json(const std::string& path, const std::string& text);

}  // namespace thinwire
