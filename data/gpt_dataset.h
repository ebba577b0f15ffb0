// One split of one token file as fixed-length samples in Megatron's shuffled order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "data/narrow_vector.h"
#include "data/split.h"
#include "data/token_file.h"

namespace thinwire {

// The split's sequences, repeated for as many epochs as the request needs and shuffled, form one stream of tokens;
// sample position k is its tokens [k*seq, k*seq + seq], so neighbours share one token; the positions are shuffled
// again. Source: Megatron-LM core/datasets/gpt_dataset.py and helpers.cpp (indices are bit-equal; see data/README.md).
// Memory: 4 bytes per sequence and epoch, 12 per sample, twice that only beyond 2^32 entries.
class GptDataset {
 public:
  // `request` is the number of samples wanted; nothing, or 0, gives one epoch. More may be built: whatever the epochs
  // hold. `what` names the split in messages. Throws Error(kBadData) if the range holds no tokens, Error(kBadConfig) if
  // the request needs more index memory than the machine has.
  GptDataset(std::shared_ptr<const TokenFile> file, SequenceRange range, int64_t seq_length,
             std::optional<int64_t> request, uint32_t seed, const std::string& what);

  int64_t size() const { return shuffle_.size(); }  // samples built; 0 if an epoch is shorter than one sample
  int64_t epochs() const { return epochs_; }
  int64_t tokens_per_epoch() const { return epoch_tokens_; }
  bool separate_final_epoch() const { return separate_; }  // the last epoch was shuffled by itself
  SequenceRange range() const { return range_; }
  const TokenFile& file() const { return *file_; }

  // The three index arrays.
  int64_t rows() const { return documents_.size(); }
  int64_t document(int64_t row) const { return documents_[row]; }  // sequence number in the file
  struct Position {
    int64_t row, offset;
  };
  Position position(int64_t k) const {
    return {sample_row_[k], static_cast<int64_t>(sample_offset_[k])};
  }  // k in [0, size()]
  int64_t shuffled(int64_t i) const { return shuffle_[i]; }

  // The seq_length + 1 tokens of sample i (in shuffled order). Throws as TokenFile::read.
  void read(int64_t i, std::span<int32_t> out) const;

 private:
  void choose_epochs(std::optional<int64_t> request, const std::string& what);
  void build_documents(RandomState& random);
  void build_samples();
  void build_shuffle(RandomState& random);

  std::shared_ptr<const TokenFile> file_;
  SequenceRange range_;
  int64_t seq_length_;
  int64_t epoch_tokens_ = 0, epochs_ = 1, count_ = 0;
  int64_t before_last_ = 0;  // samples that begin and end before the final epoch
  bool separate_ = false;
  NarrowVector documents_, sample_row_, shuffle_;
  std::vector<uint32_t> sample_offset_;  // a sequence has fewer than 2^31 tokens
};

}  // namespace thinwire
