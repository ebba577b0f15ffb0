// Building and reading of Megatron's document, sample and shuffle indices.
#include "data/gpt_dataset.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

// Megatron shuffles the last epoch by itself when less than this share of an epoch's samples is taken from it.
constexpr double kSeparateBelow = 0.80;

// Bytes of index that one data set may take: half of this machine's memory. A larger request is taken for a mistake.
int64_t index_budget() {
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? pages / 2 * page : int64_t{1} << 36;
}

}  // namespace

GptDataset::GptDataset(std::shared_ptr<const TokenFile> file, SequenceRange range, int64_t seq_length,
                       std::optional<int64_t> request, uint32_t seed, const std::string& what)
    : file_(std::move(file)), range_(range), seq_length_(seq_length) {
  TW_CHECK(seq_length > 0 && (!request || *request >= 0), "seq_length ", seq_length);
  TW_CHECK(0 <= range.first && range.first <= range.last && range.last <= file_->sequences(), "sequences ", range.first,
           "..", range.last);
  file_->check_unchanged();
  for (int64_t s = range.first; s < range.last; ++s) epoch_tokens_ += file_->length(s);
  if (epoch_tokens_ == 0)
    throw_bad_data(file_->prefix() + ": the " + what + " split, sequences [" + std::to_string(range.first) + ", " +
                   std::to_string(range.last) + ") of " + std::to_string(file_->sequences()) +
                   ", holds no tokens; give more documents or change `split`");
  choose_epochs(request, what);
  RandomState random(seed);  // one stream serves both shuffles, documents first
  build_documents(random);
  build_samples();
  build_shuffle(random);
}

void GptDataset::choose_epochs(std::optional<int64_t> request, const std::string& what) {
  const __int128 seq = seq_length_, tokens = epoch_tokens_,
                 wanted = static_cast<__int128>(request.value_or(0)) * seq + 1;
  const __int128 epochs = std::max<__int128>(1, (wanted + tokens - 1) / tokens);
  const __int128 samples = (epochs * tokens - 1) / seq;
  const __int128 bytes = epochs * range_.count() * 4 + samples * 12;
  if (bytes > index_budget())
    throw_bad_config(file_->prefix() + ": " + what + " wants " + std::to_string(request.value_or(0)) + " samples of " +
                     std::to_string(seq_length_) + " tokens, " + std::to_string(static_cast<double>(epochs)) +
                     " epochs of this file; their index alone would take " +
                     std::to_string(static_cast<double>(bytes) * 0x1p-30) +
                     " GiB, more than half of this machine's memory; lower train_iters or give more data");
  epochs_ = static_cast<int64_t>(epochs);
  count_ = static_cast<int64_t>(samples);
  before_last_ = ((epochs_ - 1) * epoch_tokens_ - 1) / seq_length_;
  if (epochs_ > 1) {
    const int64_t from_last = *request - before_last_;
    const int64_t per_epoch = (epoch_tokens_ - 1) / seq_length_;
    separate_ = from_last < static_cast<int64_t>(kSeparateBelow * static_cast<double>(per_epoch));
  }
}

void GptDataset::build_documents(RandomState& random) {
  const int64_t n = range_.count();
  documents_ = NarrowVector(epochs_ * n, range_.last);
  for (int64_t e = 0, row = 0; e < epochs_; ++e)
    for (int64_t s = range_.first; s < range_.last; ++s) documents_.set(row++, s);
  const int64_t together = separate_ ? (epochs_ - 1) * n : epochs_ * n;
  documents_.shuffle(0, together, random);
  documents_.shuffle(together, documents_.size(), random);
}

void GptDataset::build_samples() {
  sample_row_ = NarrowVector(count_ + 1, documents_.size());
  sample_offset_.resize(static_cast<size_t>(count_) + 1);
  int64_t row = 0, begin = 0;  // begin: position in the stream of tokens where the row's sequence begins
  int64_t length = file_->length(documents_[0]);
  for (int64_t k = 1; k <= count_; ++k) {  // sample 0 begins at row 0, offset 0, even if that sequence is empty
    const int64_t at = k * seq_length_;
    while (at >= begin + length) {
      begin += length;
      TW_CHECK(row + 1 < documents_.size(), "stream ends before sample ", k);
      length = file_->length(documents_[++row]);
    }
    sample_row_.set(k, row);
    sample_offset_[static_cast<size_t>(k)] = static_cast<uint32_t>(at - begin);
  }
}

void GptDataset::build_shuffle(RandomState& random) {
  shuffle_ = NarrowVector(count_, count_);
  for (int64_t k = 0; k < count_; ++k) shuffle_.set(k, k);
  const int64_t first = separate_ ? before_last_ : count_;
  shuffle_.shuffle(0, first, random);
  shuffle_.shuffle(first, count_, random);
}

void GptDataset::read(int64_t i, std::span<int32_t> out) const {
  TW_CHECK(i >= 0 && i < size(), "sample ", i, " of ", size());
  TW_CHECK(static_cast<int64_t>(out.size()) == seq_length_ + 1, "room for ", out.size(), " tokens");
  file_->check_unchanged();
  auto [row, offset] = position(shuffle_[i]);
  size_t done = 0;
  while (done < out.size()) {
    // Cannot happen with the lengths that the index was built from: the file was rewritten since.
    if (row >= documents_.size())
      throw_bad_data(file_->prefix() + ".idx: changed while in use; restore it and start again");
    const int64_t sequence = documents_[row];
    const int64_t left = file_->length(sequence) - offset;
    if (left < 0) throw_bad_data(file_->prefix() + ".idx: changed while in use; restore it and start again");
    const size_t take = std::min(out.size() - done, static_cast<size_t>(left));
    if (take > 0) file_->read(sequence, offset, out.subspan(done, take));
    done += take;
    ++row;
    offset = 0;
  }
}

}  // namespace thinwire
