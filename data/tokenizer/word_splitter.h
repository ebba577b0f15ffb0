// Cuts text into the words within which BPE merges, by the regular expressions of a tokenizer file, run by ICU.
#pragma once

#include <unicode/regex.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thinwire {

// The word pattern of GPT-2 (Radford et al. 2019, the published encoder); it matches at every position.
inline constexpr const char* kGpt2Pattern =
    R"('(?:[stmd]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Every piece that the steps before left is cut where `pattern` matches; it sees nothing around its piece.
struct SplitStep {
  std::string where;    // names file and place in messages
  std::string pattern;  // see split_pattern.h
  bool keep_matches = true, keep_rest = true;
};

// Read-only after construction, so safe to share between threads; each brings a Worker.
class WordSplitter {
 public:
  // Throws Error(kBadData) for a pattern that is wrong or not supported.
  explicit WordSplitter(const std::vector<SplitStep>& steps);

  struct Word {
    uint32_t begin = 0, end = 0;  // bytes; never empty
  };

  class Worker {
   public:
    explicit Worker(const WordSplitter& splitter);
    // The words in order; the text's end counts as the end of the document. Valid until the next call. An ill-formed
    // byte is U+FFFD to the patterns. Without steps the text is one word. Memory: 2 bytes per character and 8 per
    // word. Throws Error(kBadData) for a text above 1 GiB and where a pattern needs too much time or memory.
    std::span<const Word> cut(std::string_view text);

   private:
    void fill(std::string_view text);
    void apply(size_t step, const icu::UnicodeString& text);

    const WordSplitter& splitter_;
    std::vector<std::unique_ptr<icu::RegexMatcher>> matchers_;
    std::vector<char16_t> units_;
    std::vector<Word> words_, next_;
  };

 private:
  struct Step {
    std::string where;
    std::unique_ptr<icu::RegexPattern> pattern;
    bool keep_matches, keep_rest;
  };
  std::vector<Step> steps_;
};

}  // namespace thinwire
