// A copy of everything that a checkpoint holds. Training waits for the copy only; it is written in the background.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/base/core/state_visitor.h"
#include "engine/run/checkpoint/slice_place.h"

namespace thinwire {

// memcpy unless the state lives in device memory; (to, from, bytes).
using CopyBytes = std::function<void(std::byte* to, const std::byte* from, size_t bytes)>;

SlicePlace place_of(const GlobalSlice& slice);

struct StagedTensor {
  std::string name;
  SlicePlace place;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;  // as stored: the view's if it is the whole tensor, its rectangle if whole, else [count]
  std::vector<std::byte> bytes;
};

// Copies what it is shown. Its memory is kept from save to save: the same owners show the same tensors in the same
// order. Slices without elements are left out. Whether slices overlap shows in the manifest of all ranks.
class StagedState : public StateVisitor {
 public:
  explicit StagedState(CopyBytes copy = {}) : copy_(std::move(copy)) {}

  // Forgets the values, keeps the memory.
  void clear();

  void tensor(const GlobalSlice& slice) override;
  void integer(const std::string& name, int64_t& value) override;
  void real(const std::string& name, double& value) override;
  void text(const std::string& name, std::string& value) override;

  std::span<const StagedTensor> tensors() const { return {tensors_.data(), used_}; }
  const std::map<std::string, int64_t>& integers() const { return integers_; }
  const std::map<std::string, double>& reals() const { return reals_; }
  const std::map<std::string, std::string>& texts() const { return texts_; }
  uint64_t bytes() const { return bytes_; }

 private:
  CopyBytes copy_;
  std::vector<StagedTensor> tensors_;
  size_t used_ = 0;
  uint64_t bytes_ = 0;
  std::map<std::string, int64_t> integers_;
  std::map<std::string, double> reals_;
  std::map<std::string, std::string> texts_;
};

}  // namespace thinwire
