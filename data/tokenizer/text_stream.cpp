// Decodes a short tail of ids and tells what is new.
#include "data/tokenizer/text_stream.h"

#include <cstddef>
#include <string_view>
#include <utility>

namespace thinwire {
namespace {

constexpr size_t kMostTailIds = 16;
constexpr ptrdiff_t kKeptTailIds = 8;

// Bytes at the end of the text that further ids may turn into something else: a character has at most three bytes in
// front of its last one, each of them shown as U+FFFD until then.
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
    : tokenizer_(tokenizer), ids_(std::move(before)), told_(tokenizer.decode(ids_).size()) {}

std::string TextStream::add(int32_t id) {
  ids_.push_back(id);
  const std::string text = tokenizer_.decode(ids_);
  const size_t settled = text.size() - unsettled_bytes(text);
  std::string news;
  if (settled > told_) news = text.substr(told_, settled - told_), told_ = settled;
  if (ids_.size() > kMostTailIds && text.size() >= told_) {
    std::vector<int32_t> kept(ids_.end() - kKeptTailIds, ids_.end());
    const size_t bytes = tokenizer_.decode(kept).size(), waiting = text.size() - told_;
    // A tail without text of its own (control tokens, blanks) would make the next word the first one.
    if (bytes > waiting) ids_ = std::move(kept), told_ = bytes - waiting;
  }
  return news;
}

std::string TextStream::finish() const {
  const std::string text = tokenizer_.decode(ids_);
  return text.size() > told_ ? text.substr(told_) : "";
}

}  // namespace thinwire
