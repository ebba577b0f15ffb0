// Finds added tokens (<|endoftext|> and the like) in text: the leftmost one, and of those that begin there the longest.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace thinwire {

// A byte trie. Read-only after the last add(), so safe to share between threads.
class AddedTokenFinder {
 public:
  struct Match {
    size_t begin = 0, end = 0;  // end == 0: none
    int32_t token = -1;         // the number given to add()
  };

  void add(std::string_view content, int32_t token);  // content: not empty; added twice, the later number holds
  bool empty() const { return nodes_.size() <= 1; }
  // First match that begins at or after `from`.
  Match find(std::string_view text, size_t from) const;

 private:
  struct Node {
    int32_t token = -1;
    std::vector<std::pair<uint8_t, int32_t>> children;  // few: special tokens share prefixes
  };
  int32_t child(int32_t node, uint8_t byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<bool> starts_ = std::vector<bool>(256, false);
};

}  // namespace thinwire
