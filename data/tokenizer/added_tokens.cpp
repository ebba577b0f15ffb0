// The trie walk behind added_tokens.h.
#include "data/tokenizer/added_tokens.h"

namespace thinwire {

int32_t AddedTokenFinder::child(int32_t node, uint8_t byte) const {
  for (const auto& [key, next] : nodes_[static_cast<size_t>(node)].children) {
    if (key == byte) return next;
  }
  return -1;
}

void AddedTokenFinder::add(std::string_view content, int32_t token) {
  int32_t node = 0;
  for (char c : content) {
    const auto byte = static_cast<uint8_t>(c);
    int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[static_cast<size_t>(node)].children.emplace_back(byte, next);
    }
    node = next;
  }
  starts_[static_cast<uint8_t>(content[0])] = true;
  nodes_[static_cast<size_t>(node)].token = token;
}

AddedTokenFinder::Match AddedTokenFinder::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    Match longest;
    int32_t node = 0;
    for (size_t at = begin; at < text.size() && (node = child(node, static_cast<uint8_t>(text[at]))) >= 0; ++at) {
      const int32_t token = nodes_[static_cast<size_t>(node)].token;
      if (token >= 0) longest = {begin, at + 1, token};
    }
    if (longest.end != 0) return longest;
  }
  return {};
}

}  // namespace thinwire
