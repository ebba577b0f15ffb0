// Copying state aside, see staged_state.h.
#include "engine/run/checkpoint/staged_state.h"

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

SlicePlace place_of(const GlobalSlice& s) {
  return {s.rows, s.cols, s.row, s.part_rows, s.col, s.part_cols, s.first, s.local.count()};
}

void StagedState::tensor(const GlobalSlice& slice) {
  const SlicePlace place = place_of(slice);
  TW_CHECK(is_valid_tensor_name(slice.name), slice.name);
  TW_CHECK(place.is_possible(), slice.name, ": slice outside its tensor");
  if (place.count == 0 && !place.is_whole_tensor()) return;
  if (used_ == tensors_.size()) tensors_.emplace_back();
  StagedTensor& staged = tensors_[used_++];
  staged.name = slice.name;
  staged.place = place;
  staged.dtype = slice.local.dtype;
  if (place.is_whole_tensor())
    staged.shape.assign(slice.local.shape.begin(), slice.local.shape.begin() + slice.local.rank);
  else if (place.is_whole_rectangle())
    staged.shape = {place.part_rows, place.part_cols};
  else
    staged.shape = {place.count};
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

}  // namespace thinwire
