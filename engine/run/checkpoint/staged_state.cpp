// Copying state aside, see staged_state.h.
#include "engine/run/checkpoint/staged_state.h"

#include <algorithm>
#include <cstring>

#include "engine/run/checkpoint/safetensors.h"

namespace thinwire {

void StagedState::clear() {
  used_ = 0;
  bytes_ = 0;
  integers_.clear();
  reals_.clear();
  texts_.clear();
}

void StagedState::tensor(const GlobalSlice& slice) {
  const int64_t count = slice.local.count();
  TW_CHECK(is_valid_tensor_name(slice.name), slice.name);
  TW_CHECK(slice.first >= 0 && slice.first + count <= slice.rows * slice.cols, slice.name,
           ": slice outside its tensor");
  if (used_ == tensors_.size()) tensors_.emplace_back();
  StagedTensor& staged = tensors_[used_++];
  staged.name = slice.name;
  staged.rows = slice.rows;
  staged.cols = slice.cols;
  staged.first = slice.first;
  staged.count = count;
  staged.dtype = slice.local.dtype;
  if (count == slice.rows * slice.cols)
    staged.shape.assign(slice.local.shape.begin(), slice.local.shape.begin() + slice.local.rank);
  else
    staged.shape = {count};
  staged.bytes.resize(slice.local.bytes());
  bytes_ += staged.bytes.size();
  if (staged.bytes.empty()) return;
  const auto* from = static_cast<const std::byte*>(slice.local.data);
  if (copy_)
    copy_(staged.bytes.data(), from, staged.bytes.size());
  else
    std::memcpy(staged.bytes.data(), from, staged.bytes.size());
}

void StagedState::integer(const std::string& name, int64_t& value) {
  TW_CHECK(integers_.emplace(name, value).second, "integer shown twice: ", name);
}
void StagedState::real(const std::string& name, double& value) {
  TW_CHECK(reals_.emplace(name, value).second, "real shown twice: ", name);
}
void StagedState::text(const std::string& name, std::string& value) {
  TW_CHECK(texts_.emplace(name, value).second, "text shown twice: ", name);
}

void StagedState::finish() {
  tensors_.resize(used_);
  std::vector<const StagedTensor*> sorted;
  for (const StagedTensor& t : tensors_) sorted.push_back(&t);
  std::sort(sorted.begin(), sorted.end(), [](const StagedTensor* a, const StagedTensor* b) {
    return a->name != b->name ? a->name < b->name : a->first < b->first;
  });
  for (size_t i = 1; i < sorted.size(); ++i) {
    const StagedTensor &a = *sorted[i - 1], &b = *sorted[i];
    if (a.name != b.name) continue;
    TW_CHECK(a.rows == b.rows && a.cols == b.cols && a.dtype == b.dtype, "two kinds of ", a.name);
    TW_CHECK(a.first + a.count <= b.first && a.first != b.first, "overlapping slices of ", a.name);
  }
}

}  // namespace thinwire
