// The buffers of this rank's shard of the parameters: fp32 master, fp32 gradients, and weights to compute with.
//
// Units follow each other in a flat layout of the local tensors (TP shards). Of each unit a rank keeps what the
// placement gives it: a range of the weights in the compute dtype (all of the unit where weights are replicated), a
// range of the gradients, and the optimizer's range of the master. In fp32 the master is the same memory as its range
// of the weights. Where weights are sharded, weight() is a view of a buffer that they are gathered into, at a fixed
// address per unit. With hold = unit the attention halves of all blocks share two such buffers, the MLP halves two
// more; with hold = micro_batch there are as many of each as the longest chunk has blocks, with hold = step one per
// unit. Embedding, positions and head always have their own. Gradients that are sharded, or that the optimizer reads in
// bf16 (each is rounded once, when its sum is complete), are summed in full-size buffers: two for each kind of half, or
// one per unit where a plan splits the backward pass.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/base/core/state_visitor.h"
#include "engine/base/device/arena.h"
#include "engine/base/ops/ops.h"
#include "model/model_shard.h"
#include "parallel/sites/unit_traffic.h"
#include "parallel/zero/flat_layout.h"
#include "parallel/zero/placement.h"

namespace thinwire {

// This rank's place among the ranks that shard its units.
struct StorePlacement {
  Placement placement;
  int data_rank = 0;
  int stage = 0;                      // of the tied embedding: 0 first, 1 last
  bool split_backward = false;        // the plan computes input and weight gradients in separate nodes
  DType gradient_dtype = DType::f32;  // of what the optimizer reads: fp32, or bf16 where one rank sums one micro-batch
  // The parameter all-gather is compressed: the weights are then not cast(master), and are separate memory in fp32,
  // too.
  bool coded_param_sync = false;
  bool coded_tied_param_sync = false;  // the same for the tied embedding, on both of its stages
};

// One contiguous run of parameters that this rank's optimizer updates. It may extend into the units after `unit`:
// element 0 is element layout().units[unit].first + range.first of the flat layout.
struct OwnedPiece {
  int unit = 0;
  Range range;    // from the start of the unit
  View master;    // fp32
  View gradient;  // fp32 or bf16 (StorePlacement::gradient_dtype)
  View working;   // the same elements in the compute dtype, inside the weights' range; empty where that is the master
  bool coded_sync = false;  // a compressed parameter all-gather writes `working`, not the optimizer
};

class ParamStore {
 public:
  // The memory is the arena's. Without `training` there are no gradients.
  ParamStore(const ModelShard& shard, const StorePlacement& where, Arena& arena, bool training);
  // One rank that holds the whole model.
  ParamStore(const ModelConfig& config, Arena& arena, bool training);

  const ParamList& params() const { return params_; }   // local
  const FlatLayout& layout() const { return layout_; }  // of the local tensors

  // Views of one tensor's local part: [local rows, local cols], or [n] for vectors. Empty if this rank has no such
  // tensor. Addresses never change; content is valid while the unit is acquired.
  View weight(const std::string& name) const;    // compute dtype
  View gradient(const std::string& name) const;  // fp32

  // Per unit, for those who reduce gradients and gather weights. Units that this rank does not have are empty.
  const std::vector<UnitMemory>& units() const { return units_; }
  // What the optimizer updates, in order; without tensor parallelism units that are adjacent in memory form one piece.
  const std::vector<OwnedPiece>& owned() const { return owned_; }
  // Whether the weights of some unit come from a compressed parameter all-gather: the same on all ranks that gather it,
  // also on those that own no piece.
  bool coded_sync() const { return coded_sync_; }
  // Owned gradients that count in norms: over all ranks, every element of the model exactly once.
  std::vector<View> counted_gradients() const;
  // Owned gradients of tensors that every tensor rank holds in full; empty on the first of these ranks, which counts
  // them. They count in no norm, and are checked for NaN and Inf.
  std::vector<View> copied_gradients() const;
  // Write-first gradients: of matrices with one product per backward pass, in memory that the optimizer reads (not in
  // buffers that are reduced into shards). A step's first product overwrites them instead of adding, which saves
  // zeroing and reading them. Returns the argument for writes_first(); -1: products always add.
  int product_gradient(const std::string& name) const;
  // A step begins: the next product of each write-first gradient overwrites it. Without this call all add.
  void begin_gradients() { fresh_ = written_first_; }
  // Whether this product overwrites; true once a step.
  bool writes_first(int gradient) const {
    if (gradient < 0 || fresh_[static_cast<size_t>(gradient)] == 0) return false;
    fresh_[static_cast<size_t>(gradient)] = 0;
    return true;
  }
  // A replayed CUDA graph has run the step's first products of the head (in forward passes), or of all other layers.
  void first_products_done(bool of_head);
  // The parts of a piece's gradient that the optimizer has to zero after its update: all but write-first gradients.
  std::vector<View> added_gradients(const OwnedPiece& piece) const;
  // Gradient memory to zero when a step is skipped.
  const std::vector<View>& gradient_memory() const { return gradient_memory_; }

  // Counter-based initial weights: the same for every layout. Vocabulary padding rows are zero.
  void initialize(Exec& exec, uint64_t seed);
  // Sets one tensor from its global elements (rows * cols fp32, host): every rank takes what it owns. False if this
  // rank owns nothing of it.
  bool set(Device& device, Stream& stream, const std::string& name, std::span<const float> values);
  // working = cast(master) on the owned pieces, after masters were loaded or set; other ranks have to gather them
  // afterwards. synced_too: also those that a compressed parameter all-gather writes.
  void refresh_working(Exec& exec, bool synced_too = true);

  // Visits this rank's owned slice of every parameter, as prefix + name. pieces: buffers with the shapes of owned()
  // (none: the masters; an empty view: left out). writer_only: only what this rank, and no replica, has to save.
  void visit(StateVisitor& visitor, const std::string& prefix, std::span<const View> pieces, bool writer_only) const;

  // Whether products with these weights are computed in fp8.
  bool fp8() const { return fp8_; }

  // Increases when weights change; backends may cache packed copies until then. -1: units share memory, nothing may be
  // cached.
  int64_t version() const { return shared_places_ ? -1 : version_; }
  void bump_version() { ++version_; }

 private:
  void plan_units(const ModelShard& shard, const StorePlacement& where);
  void take_weights(DType dtype, Arena& arena);
  void take_gradients(Arena& arena);
  void list_written_first(const ModelShard& shard);
  void list_owned(const StorePlacement& where);
  View tensor_of(const std::string& name, View UnitMemory::*field) const;
  bool counts(const UnitMemory& unit, const ParamSpec& p) const;
  // Calls part(spec, piece index, element of the piece, local element of the tensor, count) for what this rank owns.
  template <typename F>
  void for_each_owned(F&& part) const;

  ParamList params_;
  FlatLayout layout_;
  std::unordered_map<std::string, int> index_;
  int tensor_rank_ = 0, tensor_size_ = 1;
  bool fp8_ = false, narrow_gradients_ = false, coded_sync_ = false;
  std::vector<UnitMemory> units_;
  std::vector<OwnedPiece> owned_;
  std::vector<View> gradient_memory_;
  std::vector<char> written_first_;  // per param: its gradient is a write-first one
  mutable std::vector<char> fresh_;  // and the next product overwrites it
  int head_ = -1;                    // the param that is the head's matrix
  bool shared_places_ = false;       // units share memory
  int64_t version_ = 0;
};

}  // namespace thinwire
