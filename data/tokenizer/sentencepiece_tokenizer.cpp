// SentencePiece by its own library: checks the model when it is loaded, and throws the library's errors as Error.
#include <sentencepiece_processor.h>

#include "data/tokenizer/tokenizer_files.h"
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"

namespace thinwire {
namespace {

constexpr size_t kLargestModel = size_t{256} << 20;

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) : path_(path) {
    const std::string model = read_file(path, kLargestModel);
    // The library accepts an empty model, and fails at the first word.
    if (model.empty()) throw_bad_data(path + ": is empty; a SentencePiece .model file is needed");
    const auto status = processor_.LoadFromSerializedProto(model);
    if (!status.ok()) {
      throw_bad_data(path + ": not a usable SentencePiece model (" + status.ToString() +
                     "); give the file that spm_train wrote as .model");
    }
    vocab_ = processor_.GetPieceSize();
    if (vocab_ <= 0) throw_bad_data(path + ": the SentencePiece model has no pieces");
    if (processor_.unk_id() < 0 || processor_.unk_id() >= vocab_)
      throw_bad_data(path + ": the SentencePiece model has no unknown piece");
    std::vector<std::string> pieces;
    check(processor_.Encode("a", &pieces), "encode");
    adds_space_ = !pieces.empty() && pieces.front().starts_with("\xE2\x96\x81");
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    check(processor_.Encode(text, &ids), "encode");
    return ids;
  }
  // The library adds a space in front; that of the piece is therefore left out.
  std::vector<int32_t> encode_further(std::string_view piece) const override {
    return encode(adds_space_ && piece.starts_with(' ') ? piece.substr(1) : piece);
  }
  std::string decode(std::span<const int32_t> ids) const override {
    check_ids(ids, vocab_, path_);
    std::string text;
    check(processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text), "decode");
    return text;
  }
  int64_t vocab_size() const override { return vocab_; }
  std::optional<int32_t> eod() const override { return if_set(processor_.eos_id()); }
  std::optional<int32_t> bos() const override { return if_set(processor_.bos_id()); }

 private:
  std::optional<int32_t> if_set(int id) const {
    return id >= 0 && id < vocab_ ? std::optional<int32_t>(id) : std::nullopt;
  }
  void check(const sentencepiece::util::Status& status, const char* what) const {
    if (!status.ok()) throw_bad_data(path_ + ": SentencePiece cannot " + what + " a text: " + status.ToString());
  }

  std::string path_;
  sentencepiece::SentencePieceProcessor processor_;
  int vocab_ = 0;
  bool adds_space_ = false;  // in front of every text (add_dummy_prefix)
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path) {
  return std::make_unique<SentencePieceTokenizer>(path);
}
bool sentencepiece_available() {
  return true;
}

}  // namespace thinwire
