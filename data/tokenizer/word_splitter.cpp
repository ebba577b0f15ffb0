// Matching on UTF-16, the form that ICU is fast on, and the way back to bytes.
#include "data/tokenizer/word_splitter.h"

#include <unicode/utypes.h>

#include "data/tokenizer/split_pattern.h"
#include "data/tokenizer/unicode.h"
#include "engine/base/core/check.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

constexpr size_t kLongestText = size_t{1} << 30;
// A pattern with nested repetition can take for ever, or remember every character: an error instead. ICU counts time in
// units of 10,000 backtracking steps since the reset to a new text: ten million, and a hundred for each character.
int32_t most_time(size_t characters) {
  return static_cast<int32_t>(1000 + characters / 100);
}
constexpr int32_t kMostMemory = 256 << 20;  // bytes

}  // namespace

WordSplitter::WordSplitter(const std::vector<SplitStep>& steps) {
  for (const SplitStep& step : steps) {
    const std::string pattern = icu_split_pattern(step.pattern, step.where);
    UErrorCode status = U_ZERO_ERROR;
    UParseError place{};
    Step made{step.where, nullptr, step.keep_matches, step.keep_rest};
    made.pattern.reset(icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(pattern), place, status));
    if (U_FAILURE(status)) {
      throw_bad_data(step.where + ": the split pattern is not a regular expression that ICU takes (" +
                     u_errorName(status) + ")");
    }
    steps_.push_back(std::move(made));
  }
}

WordSplitter::Worker::Worker(const WordSplitter& splitter) : splitter_(splitter) {
  for (const Step& step : splitter.steps_) {
    UErrorCode status = U_ZERO_ERROR;
    matchers_.emplace_back(step.pattern->matcher(status));
    if (U_SUCCESS(status)) matchers_.back()->setStackLimit(kMostMemory, status);
    TW_CHECK(U_SUCCESS(status), "ICU cannot make a matcher: ", u_errorName(status));
  }
}

void WordSplitter::Worker::fill(std::string_view text) {
  units_.clear();
  units_.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte < 0x80) {
      units_.push_back(byte), ++at;
      continue;
    }
    const Utf8Char c = decode_utf8(text, at);
    if (c.valid && c.code > 0xFFFF) {
      units_.push_back(U16_LEAD(c.code));
      units_.push_back(U16_TRAIL(c.code));
    } else {
      units_.push_back(c.valid ? static_cast<char16_t>(c.code) : u'\uFFFD');
    }
    at += c.length;
  }
}

void WordSplitter::Worker::apply(size_t index, const icu::UnicodeString& text) {
  const Step& step = splitter_.steps_[index];
  icu::RegexMatcher& matcher = *matchers_[index];
  UErrorCode status = U_ZERO_ERROR;
  next_.clear();
  matcher.setTimeLimit(most_time(units_.size()), status);
  matcher.reset(text);
  for (const Word& piece : words_) {
    if (piece.begin != 0 || piece.end != units_.size()) matcher.region(piece.begin, piece.end, status);
    uint32_t done = piece.begin;
    while (matcher.find(status)) {
      const auto begin = static_cast<uint32_t>(matcher.start(status)), end = static_cast<uint32_t>(matcher.end(status));
      if (step.keep_rest && begin > done) next_.push_back({done, begin});
      if (step.keep_matches && end > begin) next_.push_back({begin, end});
      done = end;
    }
    if (step.keep_rest && piece.end > done) next_.push_back({done, piece.end});
    if (U_FAILURE(status)) {
      throw_bad_data(step.where + ": the split pattern needs too much time or memory for a text of " +
                     std::to_string(piece.end - piece.begin) + " characters (" + u_errorName(status) + ")");
    }
  }
  words_.swap(next_);
}

std::span<const WordSplitter::Word> WordSplitter::Worker::cut(std::string_view text) {
  if (text.size() > kLongestText) throw_bad_data("a text of more than 1 GiB in one piece cannot be cut into words");
  words_.assign(text.empty() ? 0 : 1, {0, static_cast<uint32_t>(text.size())});
  if (matchers_.empty() || text.empty()) return words_;
  fill(text);
  words_[0].end = static_cast<uint32_t>(units_.size());
  const icu::UnicodeString alias(false, units_.data(), static_cast<int32_t>(units_.size()));
  for (size_t step = 0; step < matchers_.size(); ++step) apply(step, alias);
  if (units_.size() == text.size()) return words_;  // a character beyond ASCII has fewer units than bytes
  uint32_t byte = 0, unit = 0;
  const auto byte_of = [&](uint32_t target) {
    while (unit < target) {
      const Utf8Char c = decode_utf8(text, byte);
      unit += c.valid && c.code > 0xFFFF ? 2 : 1;
      byte += c.length;
    }
    return byte;
  };
  for (Word& word : words_) {
    word.begin = byte_of(word.begin);
    word.end = byte_of(word.end);
  }
  return words_;
}

}  // namespace thinwire
