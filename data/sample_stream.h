// The training data of a run: sample i of a split, whatever files, weights and epochs it comes from.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/blend.h"
#include "data/data_config.h"
#include "data/gpt_dataset.h"
#include "data/split.h"
#include "data/token_file.h"

namespace thinwire {

// How many samples each split needs, as Megatron sizes them; `train` follows the batch ramp.
struct SplitSizes {
  int64_t train = 0;  // train_iters steps
  int64_t valid =
      0;  // (train_iters / eval_interval + 1) * eval_iters * global_batch; eval_interval 0: eval_iters * global_batch
  int64_t test = 0;  // eval_iters * global_batch
};
// Throws Error(kBadConfig) if a number does not fit 64 bits.
SplitSizes split_sizes(const DataConfig& config);

// What a constructor does about a validation split that the configuration asks for (eval_interval and eval_iters > 0,
// split weight > 0 or `valid` files given) but that holds not one sample: refuse, or leave the split out (to print or
// price only).
enum class EvalCheck { kRequire, kLeaveOut };

// Opens the files, splits, shuffles and blends them. Several prefixes, or one with a weight in `data`, are blended by
// weight. valid and test exist if their weight is positive and eval_iters > 0; files named for them must be there in
// any case. Reading is const and safe from several threads.
class SampleStream {
 public:
  // Throws Error(kBadConfig) or Error(kBadData) with the key or file and how to mend it.
  explicit SampleStream(const DataConfig& config, EvalCheck check = EvalCheck::kRequire);

  bool has(Split split) const { return size(split) > 0; }
  // Throws the reason, as an Error(kBadConfig), if the split holds no sample.
  void require(Split split) const;
  // Samples that can be read: at least what split_sizes() asks for, and all that were built; 0 if the split is absent.
  int64_t size(Split split) const;
  int64_t seq_length() const { return seq_length_; }

  // The seq_length + 1 tokens of a sample. A sample outside [0, size(split)) is a programmer's mistake (CHECK).
  // Throws Error(kBadData) for a damaged file or an id outside the vocabulary.
  void read(Split split, int64_t sample, std::span<int32_t> tokens) const;

  // A line per split for the log: samples, epochs, files and weights, or why it is absent.
  std::string describe() const;
  // Equal for two runs that read the same data: sizes of the files and the hash of each .idx, in order. Neither paths
  // nor the splits that are read count.
  std::string fingerprint() const;
  // What else decides the order of a split's samples: epochs of each set, and which last one is shuffled apart. They
  // follow from how many samples are asked for, so more steps than before may order the same data anew. Empty if the
  // split is absent.
  std::string order(Split split) const;

 private:
  struct Part {
    std::vector<GptDataset> sets;
    std::vector<double> weights;  // normalised
    bool blended = false;
    Blend blend;  // if blended
    int64_t wanted = 0;
    std::string absent;  // why there are no samples
  };

  std::shared_ptr<const TokenFile> open(const std::string& prefix);
  void build(Split split, const std::vector<WeightedPrefix>& prefixes, const SplitFractions& fractions, int64_t wanted,
             bool blended);
  const Part& part(Split split) const { return parts_[static_cast<size_t>(split)]; }

  int64_t seq_length_, vocab_;
  uint32_t seed_ = 0;
  double blend_surplus_ = 0.0;
  std::map<std::string, std::shared_ptr<const TokenFile>> files_;
  std::vector<std::shared_ptr<const TokenFile>> order_;  // in order of first mention
  std::array<Part, 3> parts_;
};

// `train --print-samples N`, so that two programs can compare what they train on.
// Writes n lines {"sample":i,"tokens":[...]} with the seq_length + 1 ids of training samples 0..n-1, which is the order
// of the global batch stream; no spaces. Throws Error(kUsage) if the training split has fewer samples, Error(kIo) if
// `out` fails.
void print_samples(const SampleStream& stream, int64_t n, std::ostream& out);

}  // namespace thinwire
