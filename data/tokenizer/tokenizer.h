// The interface of all tokenizers, text to token ids and back, and the words by which users choose one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thinwire {

// Immutable after construction; every method may be called from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids in [0, vocab_size()). Any bytes are accepted: those that are not UTF-8 come back from decode() unchanged of
  // byte and bpe (without a normalizer), and as U+FFFD of sentencepiece.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // The same of a further piece of a text that safe_cut() cut: without the blank that some put in front of a text.
  virtual std::vector<int32_t> encode_further(std::string_view piece) const { return encode(piece); }
  // The text of the ids, special tokens spelled out. Throws Error(kBadData) for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  // Ids that belong once around a whole text, such as Llama 3's <|begin_of_text|>. The caller adds them, not encode(),
  // which may get a text in pieces.
  virtual std::span<const int32_t> before_text() const { return {}; }
  virtual std::span<const int32_t> after_text() const { return {}; }

  virtual int64_t vocab_size() const = 0;                    // ids 0 .. vocab_size() - 1 exist
  virtual std::optional<int32_t> eod() const = 0;            // the end-of-document token, if the tokenizer has one
  virtual std::optional<int32_t> bos() const { return {}; }  // what a SentencePiece model calls so
};

// Throws Error(kBadData) naming `tokenizer` for the first id that is not in [0, vocab).
void check_ids(std::span<const int32_t> ids, int64_t vocab, const std::string& tokenizer);

// byte                    id = byte, vocabulary 256, no end-of-document token;
//                         with `need_eod` id 256 is that token, and the vocabulary 257 (as configs must then say)
// bpe:FILE                a byte-level BPE `tokenizer.json` (GPT-NeoX, Llama 3: see tokenizer_files.h for what is read)
// bpe:VOCAB.json,MERGES   GPT-2's pair of files; splits at the first ".json,"
// sentencepiece:FILE      a SentencePiece `.model`
// Throws Error(kUsage) for another word, for `need_eod` without such a token, and where SentencePiece was not built in;
// Error(kBadData) naming file and place for a file that cannot be used.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec, bool need_eod = false);

}  // namespace thinwire
