// The buffers that hold this rank's share of the parameters: fp32 master, fp32 gradient, and the copy that computes.
//
// Units lie one behind the other in a flat layout of the local tensors (TP shares). Of each unit a rank keeps what the
// placement gives it: the weights' range in the compute dtype (the whole unit where weights are replicated), the
// gradients' range, the optimizer's range of the master. In fp32 the master is the same memory as its range of the
// weights. Where weights are sharded, weight() is a view of the gathered copy, at a fixed address per unit. Attention
// halves of blocks take turns at two such copies, MLP halves at two (hold = unit); or there are as many of each as the
// longest chunk has blocks (hold = micro_batch), or one per unit (hold = step). Embedding, positions and head always
// have their own. Gradients that are sharded, or that the optimizer reads in bf16 (each is rounded once, when its sum
// is complete), are summed in full-size buffers: two for each kind of half, or one per unit where a plan splits the
// backward pass.
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
  bool split_backward = false;        // the plan separates input and weight gradients
  DType gradient_dtype = DType::f32;  // of what the optimizer reads: fp32, or bf16 where one rank sums one micro-batch
  // The parameter all-gather is compressed: what computes (`weights`) is then not cast(master), and has memory of its
  // own in fp32.
  bool coded_param_sync = false;
  bool coded_tied_param_sync = false;  // those of the tied embedding, on both of its stages
};

// One contiguous run of parameters that this rank steps. It may run on into the units behind its own: element 0 is
// element layout().units[unit].first + range.first of the flat layout.
struct OwnedPiece {
  int unit = 0;
  Range range;    // from the start of the unit
  View master;    // fp32
  View gradient;  // fp32 or bf16 (StorePlacement::gradient_dtype)
  View working;   // the same elements in the compute dtype, inside the weights' range; empty where that is the master
  bool coded_sync = false;  // `working` is what a compressed parameter all-gather makes of it, not the optimizer
};

class ParamStore {
 public:
  // Takes memory from `arena`. Without `training` there are no gradients.
  ParamStore(const ModelShard& shard, const StorePlacement& where, Arena& arena, bool training);
  // One rank that holds the whole model.
  ParamStore(const ModelConfig& config, Arena& arena, bool training);

  const ParamList& params() const { return params_; }   // local
  const FlatLayout& layout() const { return layout_; }  // of the local tensors

  // Views of one tensor's local part: [local rows, local cols], or [n] for vectors. Empty if this rank has no such
  // tensor. Addresses never change; content is valid while the unit is acquired.
  View weight(const std::string& name) const;    // compute dtype
  View gradient(const std::string& name) const;  // fp32

  // Per unit, for whoever reduces and gathers. Units that this rank does not have are empty.
  const std::vector<UnitMemory>& units() const { return units_; }
  // What the optimizer steps, in order; without tensor parallelism adjacent units are one piece where they lie side
  // by side.
  const std::vector<OwnedPiece>& owned() const { return owned_; }
  // Whether a compressed parameter all-gather decides what some unit computes with: the same on all ranks that gather
  // it, also where one of them owns no piece.
  bool coded_sync() const { return coded_sync_; }
  // Owned gradients that count in norms: over all ranks, every element of the model exactly once.
  std::vector<View> counted_gradients() const;
  // Owned gradients of tensors that are whole on every tensor rank, on all of these but the first: in no norm, and
  // looked at for NaN and Inf.
  std::vector<View> copied_gradients() const;
  // Write-first gradients are those of matrices that get one product a pass, in memory that the optimizer reads (not in
  // buffers that are reduced into shards): a step's first product writes them instead of adding, which saves zeroing
  // and reading them. Returns the number to ask writes_first() with, or -1: products always add.
  int product_gradient(const std::string& name) const;
  // A step begins: the next product of each write-first gradient writes. Without this call all add.
  void begin_gradients() { fresh_ = written_first_; }
  // Whether this product writes; true once a step.
  bool writes_first(int gradient) const {
    if (gradient < 0 || fresh_[static_cast<size_t>(gradient)] == 0) return false;
    fresh_[static_cast<size_t>(gradient)] = 0;
    return true;
  }
  // A replayed recording has done the step's first products of the head (in forward passes), or of all other layers.
  void first_products_done(bool of_head);
  // What the optimizer has to zero of a piece's gradient when it is done: all but write-first gradients.
  std::vector<View> added_gradients(const OwnedPiece& piece) const;
  // Gradient memory to be zeroed when a step is skipped.
  const std::vector<View>& gradient_memory() const { return gradient_memory_; }

  // Counter-based initial weights: the same for every layout. Vocabulary padding rows are zero.
  void initialize(Exec& exec, uint64_t seed);
  // Sets one tensor from its global elements (rows * cols fp32, host): every rank takes what it owns. False if this
  // rank owns nothing of it.
  bool set(Device& device, Stream& stream, const std::string& name, std::span<const float> values);
  // working = cast(master) on the owned pieces, after masters were loaded or set; weights still have to be gathered by
  // the others. synced_too: also where a compressed parameter all-gather decides what computes.
  void refresh_working(Exec& exec, bool synced_too = true);

  // Shows what this rank owns of every parameter, tensor by tensor, as prefix + name. pieces: buffers that lie like
  // owned() (none: the masters; an empty view: left out). writer_only: what this rank, and no replica, has to save.
  void visit(StateVisitor& visitor, const std::string& prefix, std::span<const View> pieces, bool writer_only) const;

  // Whether products with these weights are made in fp8.
  bool fp8() const { return fp8_; }

  // Increases whenever working weights change; backends may keep packed copies until then. -1: units share memory, and
  // nothing may be kept.
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
  std::vector<char> written_first_;  // per param
  mutable std::vector<char> fresh_;  // of these, what the next product writes instead of adding
  int head_ = -1;                    // the param that is the head's matrix
  bool shared_places_ = false;
  int64_t version_ = 0;
};

}  // namespace thinwire
