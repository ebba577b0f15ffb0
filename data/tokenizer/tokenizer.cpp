// The byte tokenizer, and the choice among all of them.
#include "data/tokenizer/tokenizer.h"

#include "data/tokenizer/bpe_files.h"
#include "data/tokenizer/tokenizer_files.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

constexpr int32_t kByteEod = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(bool with_eod) : with_eod_(with_eod) {}

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<uint8_t>(text[i]);
    return ids;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    check_ids(ids, vocab_size(), "the byte tokenizer");
    std::string text;
    text.reserve(ids.size());
    for (int32_t id : ids) {
      if (id == kByteEod)
        text += "<|endoftext|>";
      else
        text.push_back(static_cast<char>(id));
    }
    return text;
  }
  int64_t vocab_size() const override { return with_eod_ ? kByteEod + 1 : kByteEod; }
  std::optional<int32_t> eod() const override { return with_eod_ ? std::optional(kByteEod) : std::nullopt; }

 private:
  bool with_eod_;
};

}  // namespace

void check_ids(std::span<const int32_t> ids, int64_t vocab, const std::string& tokenizer) {
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab)
      throw_bad_data("token id " + std::to_string(id) + ": " + tokenizer + " has ids 0 to " +
                     std::to_string(vocab - 1));
  }
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec, bool need_eod) {
  static const char* const kWords = "byte, bpe:tokenizer.json, bpe:vocab.json,merges.txt or sentencepiece:FILE.model";
  const size_t colon = spec.find(':');
  const std::string kind = spec.substr(0, colon);
  const std::string file = colon == std::string::npos ? "" : spec.substr(colon + 1);
  if (kind == "byte") {
    if (colon != std::string::npos) throw_usage("tokenizer '" + spec + "': byte takes no file; write byte alone");
    return std::make_unique<ByteTokenizer>(need_eod);
  }
  if (kind != "bpe" && kind != "sentencepiece") {
    throw_usage("tokenizer '" + spec + "' is unknown; choose " + kWords);
  }
  if (file.empty() || file.ends_with(".json,")) throw_usage("tokenizer '" + spec + "' names no file; choose " + kWords);
  std::unique_ptr<Tokenizer> made = kind == "bpe" ? load_byte_level_bpe(file) : load_sentencepiece(file);
  if (need_eod && !made->eod()) {
    std::string why = "eos_id is unset";
    if (kind == "bpe") {
      why = "looked for";
      for (const char* name : kEndsOfDocument) why.append(" ").append(name);
    }
    throw_usage("tokenizer '" + spec + "' has no end-of-document token (" + why +
                "), so no end of document can be appended");
  }
  return made;
}

}  // namespace thinwire
