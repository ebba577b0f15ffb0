// Codecs whose payloads are numbers that add up over ranks: they travel in rounds, each a plain reduction.
//
// Low rank: sum P, orthonormalise, sum Q. Sketch: OR of the index, then the sum of what it selects. The caller performs
//   for r in [0, rounds()): pack(r) -> reduce payload over the group -> absorb(r)
// and then reads the decoded SUM with result(), and each rank's own error with own_error().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "compression/codec.h"

namespace thinwire {

enum class Reduction : uint8_t { kSum, kMax, kOr };

struct Round {
  Reduction reduction = Reduction::kSum;
  DType dtype = DType::f32;  // of the payload (f32 and i32 sums, u8 OR, f32 max)
  int64_t count = 0;         // elements of the payload, equal on all ranks
  // true: where a reduce-scatter is asked for, the last round may be one, since message elements [0, e) are payload
  // elements [0, payload_index(e)). false: every rank needs the whole payload.
  bool sliceable = false;
};

class RoundCodec {
 public:
  virtual ~RoundCodec() = default;
  virtual std::string name() const = 0;
  // contractive, lossless, stateful, selects, matrices: as for a Codec; `linear` is implied. framed: a round may have
  // fewer elements than bound().
  virtual Traits traits() const = 0;
  virtual int rounds() const = 0;
  // The most elements that the payload of round r has in a group of `ranks`; exactly that unless traits().framed.
  virtual int64_t bound(int r, int64_t count, int ranks, std::span<const MatrixShape> matrices) const = 0;
  // Holds warm starts and what passes between the rounds of one message.
  virtual std::unique_ptr<CompressionState> make_state(int64_t count, std::span<const MatrixShape> matrices) const = 0;

  // Round r of the message that `state` is in the middle of: the same on all ranks, known once r - 1 was absorbed.
  virtual Round round(int r, const Msg& msg, int64_t count, const CompressionState& state) const = 0;
  // Writes this rank's payload of round r from x [count] fp32 (the input with the residual already added), which must
  // not change until the last round was packed. Returns whether all inputs were finite (meaningful in round 0).
  virtual bool pack(int r, const Msg& msg, View x, View payload, CompressionState& state) const = 0;
  // Takes the payload as reduced over all ranks of the group (or, in a sliceable last round of a reduce-scatter, this
  // rank's slice [slice_first, slice_first + payload.count()) of it).
  virtual void absorb(int r, const Msg& msg, View payload, int64_t slice_first, CompressionState& state) const = 0;
  virtual int64_t payload_index(int r, int64_t element,
                                const CompressionState& state) const = 0;  // of sliceable rounds

  // After the last round: out (fp32) = or += elements [first, first + out.count()) of the decoded sum over ranks.
  virtual void result(const Msg& msg, int64_t first, View out, bool accumulate,
                      const CompressionState& state) const = 0;
  // After the last round: x [count] becomes x minus what this rank contributed to the decoded sum, so that the errors
  // of all ranks add up to sum(x) - result (law 5).
  virtual void own_error(const Msg& msg, View x, const CompressionState& state) const = 0;
};

}  // namespace thinwire
