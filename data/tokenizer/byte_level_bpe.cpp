// Encoding: split off added tokens, normalise, cut into words, merge each word; the common words come from a cache.
#include <xxhash.h>

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe_files.h"
#include "data/tokenizer/bpe_merger.h"
#include "data/tokenizer/tokenizer_files.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/word_splitter.h"
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"

namespace thinwire {
namespace {

constexpr size_t kLargestFile = size_t{256} << 20;

// Word -> ids, direct mapped: a fixed 4 MiB, a new word simply takes the place of the one that was there.
class WordCache {
 public:
  struct Entry {
    uint8_t length = 0, count = 0;  // length 0: free
    char word[54];
    int32_t ids[18];
  };

  Entry& slot(std::string_view word) { return entries_[XXH3_64bits(word.data(), word.size()) & (kEntries - 1)]; }
  static bool fits(std::string_view word) { return word.size() <= sizeof(Entry::word); }
  static bool holds(const Entry& entry, std::string_view word) {
    return entry.length == word.size() && std::memcmp(entry.word, word.data(), word.size()) == 0;
  }
  static void store(Entry& entry, std::string_view word, const int32_t* ids, size_t count) {
    if (count > std::size(entry.ids)) return;
    entry.length = static_cast<uint8_t>(word.size());
    entry.count = static_cast<uint8_t>(count);
    std::memcpy(entry.word, word.data(), word.size());
    std::memcpy(entry.ids, ids, count * sizeof(int32_t));
  }

 private:
  static constexpr size_t kEntries = size_t{1} << 15;
  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
};

// What one call to encode() works with.
struct EncodeWorker {
  explicit EncodeWorker(const WordSplitter& splitter) : words(splitter) {}
  WordSplitter::Worker words;
  WordCache cache;
};

// Workers that are not in use; a call to encode() borrows one, so there are as many as calls at the same time.
class WorkerPool {
 public:
  std::unique_ptr<EncodeWorker> borrow(const WordSplitter& splitter) {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto worker = std::move(free_.back());
        free_.pop_back();
        return worker;
      }
    }
    return std::make_unique<EncodeWorker>(splitter);
  }
  void give_back(std::unique_ptr<EncodeWorker> worker) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(worker));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeWorker>> free_;
};

class ByteLevelBpe final : public Tokenizer {
 public:
  ByteLevelBpe(const std::string& path, BpeDescription description)
      : path_(path), d_(std::move(description)), merger_(d_.merges, d_.byte_ids), splitter_(d_.splits) {
    d_.merges = {};
    for (size_t i = 0; i < d_.added.size(); ++i) {
      const AddedToken& token = d_.added[i];
      const bool late = token.normalized;  // matched after normalisation, in what the others left
      (late ? late_ : early_).add(late && d_.nfc ? nfc(token.content) : token.content, static_cast<int32_t>(i));
    }
    if (d_.ignore_merges) {
      for (size_t id = 0; id < d_.bytes.size(); ++id) {
        if (d_.plain[id]) whole_words_.emplace(d_.bytes[id], static_cast<int32_t>(id));
      }
    }
    for (const char* name : kEndsOfDocument) {
      for (const AddedToken& token : d_.added) {
        if (!eod_ && token.content == name) eod_ = token.id;
      }
    }
    for (size_t id = 0; id < d_.bytes.size() && !eod_; ++id) {
      if (d_.bytes[id] == kEndInVocab) eod_ = static_cast<int32_t>(id);
    }
  }

  std::vector<int32_t> encode(std::string_view text) const override { return encode_text(text, false); }
  std::vector<int32_t> encode_further(std::string_view piece) const override { return encode_text(piece, true); }

  std::string decode(std::span<const int32_t> ids) const override {
    check_ids(ids, vocab_size(), path_);
    std::string text;
    for (int32_t id : ids) text += d_.bytes[static_cast<size_t>(id)];
    return text;
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(d_.bytes.size()); }
  std::optional<int32_t> eod() const override { return eod_; }
  std::span<const int32_t> before_text() const override { return d_.before; }
  std::span<const int32_t> after_text() const override { return d_.after; }

 private:
  // further: what the text begins with belongs to a stretch that began before it.
  std::vector<int32_t> encode_text(std::string_view text, bool further) const {
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 3 + 1);
    auto worker = workers_.borrow(splitter_);
    split(text, early_, ids, [&](std::string_view piece) {
      const bool goes_on = further && piece.data() == text.data();
      if (d_.nfc && !is_plainly_nfc(piece)) {
        encode_normalised(nfc(piece), goes_on, *worker, ids);
      } else {
        encode_normalised(piece, goes_on, *worker, ids);
      }
    });
    workers_.give_back(std::move(worker));
    return ids;
  }

  // Calls `plain` on the stretches between added tokens, and appends the ids of those. As in that library, white space
  // that a token strips to the right may still begin the next token; then `done` falls back to that one's end.
  template <typename Plain>
  void split(std::string_view text, const AddedTokenFinder& finder, std::vector<int32_t>& ids,
             const Plain& plain) const {
    size_t done = 0;
    if (!finder.empty()) {
      for (size_t from = 0;;) {
        const AddedTokenFinder::Match match = finder.find(text, from);
        if (match.end == 0) break;
        from = match.end;
        const AddedToken& token = d_.added[static_cast<size_t>(match.token)];
        const size_t begin = token.lstrip ? std::max(done, space_before(text, match.begin)) : match.begin;
        const size_t end = token.rstrip ? space_after(text, match.end) : match.end;
        if (begin >= end) continue;  // white space that the token before took: nothing is left of this one
        if (begin > done) plain(text.substr(done, begin - done));
        ids.push_back(token.id);
        done = end;
      }
    }
    if (done < text.size()) plain(text.substr(done));
  }

  static size_t space_after(std::string_view text, size_t at) {
    while (at < text.size() && space_length(text, at) != 0) at += space_length(text, at);
    return at;
  }
  static size_t space_before(std::string_view text, size_t at) {
    while (at > 0) {
      size_t start = at - 1;
      while (start > 0 && at - start < 4 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
      if (start + space_length(text, start) != at) break;
      at = start;
    }
    return at;
  }

  void encode_normalised(std::string_view text, bool goes_on, EncodeWorker& worker, std::vector<int32_t>& ids) const {
    split(text, late_, ids, [&](std::string_view piece) {
      if (d_.add_prefix_space && piece[0] != ' ' && !(goes_on && piece.data() == text.data())) {
        std::string prefixed(1, ' ');
        prefixed += piece;
        encode_words(prefixed, worker, ids);
      } else {
        encode_words(piece, worker, ids);
      }
    });
  }

  void encode_words(std::string_view text, EncodeWorker& worker, std::vector<int32_t>& ids) const {
    for (const WordSplitter::Word& word : worker.words.cut(text)) {
      encode_word(text.substr(word.begin, word.end - word.begin), worker.cache, ids);
    }
  }

  void encode_word(std::string_view word, WordCache& cache, std::vector<int32_t>& ids) const {
    if (!WordCache::fits(word)) return merge_word(word, ids);
    WordCache::Entry& entry = cache.slot(word);
    if (WordCache::holds(entry, word)) {
      ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
      return;
    }
    const size_t before = ids.size();
    merge_word(word, ids);
    WordCache::store(entry, word, ids.data() + before, ids.size() - before);
  }

  void merge_word(std::string_view word, std::vector<int32_t>& ids) const {
    if (d_.ignore_merges) {
      const auto found = whole_words_.find(std::string(word));
      if (found != whole_words_.end()) {
        ids.push_back(found->second);
        return;
      }
    }
    const int64_t missing = merger_.append(word, ids);
    if (missing >= 0) {
      const int byte = static_cast<uint8_t>(word[static_cast<size_t>(missing)]);
      throw_bad_data(
          path_ + ": the vocabulary has no token for byte " + std::to_string(byte) +
          ", which the text contains; train the tokenizer with the whole byte alphabet (ByteLevel.alphabet())");
    }
  }

  std::string path_;
  BpeDescription d_;
  BpeMerger merger_;
  WordSplitter splitter_;
  AddedTokenFinder early_, late_;
  std::unordered_map<std::string, int32_t> whole_words_;
  std::optional<int32_t> eod_;
  mutable WorkerPool workers_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_byte_level_bpe(const std::string& files) {
  const BpeFiles names = bpe_files(files);
  const std::string first = read_file(names.vocab, kLargestFile);
  if (names.merges.empty()) return std::make_unique<ByteLevelBpe>(files, parse_tokenizer_json(names.vocab, first));
  return std::make_unique<ByteLevelBpe>(
      names.vocab, parse_vocab_and_merges(names.vocab, first, names.merges, read_file(names.merges, kLargestFile)));
}

}  // namespace thinwire
