// Decodes the last few ids and returns the text that is new.
#include "data/tokenizer/text_stream.h"

#include <cstddef>
#include <string_view>
#include <utility>

namespace thinwire {
namespace {

constexpr size_t kMostTailIds = 16;
constexpr ptrdiff_t kKeptTailIds = 8;

// Bytes at the end of the text that further ids may change: up to three bytes of a character whose last byte is still
// missing, each shown as U+FFFD.
size_t unsettled_bytes(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  size_t bytes = 0;
  for (int i = 0; i < 3 && text.ends_with(kReplacement); ++i) {
    text.remove_suffix(kReplacement.size());
    bytes += kReplacement.size();
  }
  return bytes;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<int32_t> before)
    : tokenizer_(tokenizer), ids_(std::move(before)), returned_(tokenizer.decode(ids_).size()) {}

std::string TextStream::add(int32_t id) {
  ids_.push_back(id);
  const std::string text = tokenizer_.decode(ids_);
  const size_t settled = text.size() - unsettled_bytes(text);
  std::string added;
  if (settled > returned_) {
    added = text.substr(returned_, settled - returned_);
    returned_ = settled;
  }
  if (ids_.size() > kMostTailIds && text.size() >= returned_) {
    std::vector<int32_t> kept(ids_.end() - kKeptTailIds, ids_.end());
    const size_t bytes = tokenizer_.decode(kept).size(), held = text.size() - returned_;
    // Some text of the kept ids must have been returned: with none (control tokens, blanks) the next word would be
    // decoded as the first of a text.
    if (bytes > held) {
      ids_ = std::move(kept);
      returned_ = bytes - held;
    }
  }
  return added;
}

std::string TextStream::finish() const {
  const std::string text = tokenizer_.decode(ids_);
  return text.size() > returned_ ? text.substr(returned_) : "";
}

}  // namespace thinwire
