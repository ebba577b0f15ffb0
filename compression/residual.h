// What a coder keeps between the messages of one slot: its residual, its codec's own state, and scratch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compression/compression_state.h"
#include "compression/rule.h"

namespace thinwire {

// Kinds that keep something: error_feedback and lazy keep fp32 or bf16 [count], or, as ema does, int8 [count] with an
// fp32 scale per kEmaBlock elements. All without the loss scale. value_difference keeps nothing here: its memory is the
// replica.
class CoderState final : public CompressionState {
 public:
  // scratch: floats that whole-message compression works in (0: it works in tiles on the stack). codec: may be nullptr.
  CoderState(const ResidualSpec& residual, int64_t count, int64_t scratch, std::unique_ptr<CompressionState> codec);

  // The residual of elements [first, first + n) of the message: read the old, write the new, all of it. In units of
  // kEmaBlock where it is in 8 bit.
  struct Open {
    StateVector<float>::Range values;     // fp32
    StateVector<uint16_t>::Range halves;  // bf16
    StateVector<int8_t>::Range codes;     // int8
    StateVector<float>::Range scales;     // int8: [ceil(n / kEmaBlock)]
  };
  // `step` counts updates: with reset_every the residual restarts from zero when the first message of step
  // k * reset_every (or a later one) is packed, however many messages or slots there are.
  Open open(int64_t first, int64_t n, int64_t step);

  CompressionState* codec() const { return codec_.get(); }
  float* scratch() { return scratch_.data(); }
  int64_t scratch_count() const { return static_cast<int64_t>(scratch_.size()); }
  StateVector<float>& residual() { return values_; }  // of what is kept in fp32
  int64_t count() const { return count_; }

  void commit() override;
  void roll_back() override;
  void visit(StateVisitor& visitor, const std::string& prefix) override;
  int64_t bytes() const override;

 private:
  ResidualSpec spec_;
  int64_t count_ = 0;
  StateVector<float> values_;
  StateVector<uint16_t> halves_;
  StateVector<int8_t> codes_;
  StateVector<float> scales_;
  StateVector<int64_t> epoch_;  // ema with resets: update number / reset_every of what is kept
  std::unique_ptr<CompressionState> codec_;
  std::vector<float> scratch_;
};

// What the residual is kept in; meaningful where something is kept.
ResidualDtype stored_in(const ResidualSpec& residual);
// Bytes of memory that the residual takes, without codec and scratch.
int64_t residual_bytes(const ResidualSpec& residual, int64_t count);

}  // namespace thinwire
