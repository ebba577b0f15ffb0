// What a coder keeps between the messages of one slot: its residual, its codec's own state, and scratch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compression/compression_state.h"
#include "compression/hadamard_kernel.h"
#include "compression/rule.h"

namespace thinwire {

// What the residual is kept in; meaningful where something is kept.
ResidualDtype stored_in(const ResidualSpec& residual);
// Whether it is kept so.
bool keeps(const ResidualSpec& residual, ResidualDtype dtype);
// Bytes of memory that the residual takes, without codec and scratch.
int64_t residual_bytes(const ResidualSpec& residual, int64_t count);

// Kinds that keep something: error_feedback and lazy keep fp32 or bf16 [count], or, as ema does, int8 [count] with an
// fp32 scale per kEmaBlock elements. All without the loss scale. value_difference keeps nothing here: its memory is the
// replica. Vector: StateVector, or DeviceStateVector, which wants to know where.
template <template <typename> typename Vector>
class ResidualVectors {
 public:
  // The residual of elements [first, first + n) of the message: read the old, write the new, all of it. In units of
  // kEmaBlock where it is in 8 bit.
  struct Open {
    typename Vector<float>::Range values;     // fp32
    typename Vector<uint16_t>::Range halves;  // bf16
    typename Vector<int8_t>::Range codes;     // int8
    typename Vector<float>::Range scales;     // int8: [ceil(n / kEmaBlock)]
  };

  template <typename... Place>
  ResidualVectors(const ResidualSpec& spec, int64_t count, const Place&... place) : spec_(spec), count_(count) {
    if (keeps(spec_, ResidualDtype::kFp32)) values_ = Vector<float>(count, spec_.on_skip, place...);
    if (keeps(spec_, ResidualDtype::kBf16)) halves_ = Vector<uint16_t>(count, spec_.on_skip, place...);
    if (!keeps(spec_, ResidualDtype::kInt8)) return;
    codes_ = Vector<int8_t>(count, spec_.on_skip, place...);
    scales_ = Vector<float>(blocks_of(count), spec_.on_skip, place...);
    // The epoch of a skipped step comes back in any case: the residual that it speaks of is gone or back as well.
    if (spec_.kind == ResidualKind::kEma && spec_.reset_every > 0) epoch_ = StateVector<int64_t>(1, OnSkip::kRestore);
  }
  int64_t count() const { return count_; }
  Vector<float>& values() { return values_; }

  Open open(int64_t first, int64_t n, int64_t step) {
    Open open;
    if (keeps(spec_, ResidualDtype::kFp32)) open.values = values_.open(first, n);
    if (keeps(spec_, ResidualDtype::kBf16)) open.halves = halves_.open(first, n);
    if (!keeps(spec_, ResidualDtype::kInt8)) return open;
    TW_CHECK(first % kEmaBlock == 0, "a residual in 8 bit is opened at element ", first);
    if (epoch_.count() > 0 && *epoch_.read() != step / spec_.reset_every) {
      *epoch_.write() = step / spec_.reset_every;
      codes_.zero();
      scales_.zero();
    }
    open.codes = codes_.open(first, n);
    open.scales = scales_.open(first / kEmaBlock, blocks_of(n));
    return open;
  }
  void commit() {
    values_.commit();
    halves_.commit();
    codes_.commit();
    scales_.commit();
    epoch_.commit();
  }
  void roll_back() {
    values_.roll_back();
    halves_.roll_back();
    codes_.roll_back();
    scales_.roll_back();
    epoch_.roll_back();
  }
  void visit(StateVisitor& visitor, const std::string& prefix) {
    const auto show = [&](const char* name, auto& vector, DType dtype) {
      const int64_t n = vector.count();
      if (n > 0) visitor.tensor(GlobalSlice::whole(prefix + name, 1, n, View(vector.settled(), dtype, {n})));
    };
    show("residual", values_, DType::f32);
    show("residual", halves_, DType::bf16);
    show("residual_codes", codes_, DType::u8);
    show("residual_scales", scales_, DType::f32);
    if (epoch_.count() > 0) visitor.integer(prefix + "residual_epoch", *epoch_.settled());
  }
  int64_t bytes() const {
    return values_.bytes() + halves_.bytes() + codes_.bytes() + scales_.bytes() + epoch_.bytes();
  }

 private:
  static int64_t blocks_of(int64_t count) { return (count + kEmaBlock - 1) / kEmaBlock; }

  ResidualSpec spec_;
  int64_t count_ = 0;
  Vector<float> values_;
  Vector<uint16_t> halves_;
  Vector<int8_t> codes_;
  Vector<float> scales_;
  StateVector<int64_t> epoch_;  // ema with resets: update number / reset_every of what is kept
};

class CoderState final : public CompressionState {
 public:
  // scratch: floats that whole-message compression works in (0: it works in tiles on the stack). codec: may be nullptr.
  CoderState(const ResidualSpec& residual, int64_t count, int64_t scratch, std::unique_ptr<CompressionState> codec)
      : residual_(residual, count), codec_(std::move(codec)), scratch_(static_cast<size_t>(scratch)) {}

  using Open = ResidualVectors<StateVector>::Open;
  // `step` counts updates: with reset_every the residual restarts from zero when the first message of step
  // k * reset_every (or a later one) is packed, however many messages or slots there are.
  Open open(int64_t first, int64_t n, int64_t step) { return residual_.open(first, n, step); }

  CompressionState* codec() const { return codec_.get(); }
  float* scratch() { return scratch_.data(); }
  int64_t scratch_count() const { return static_cast<int64_t>(scratch_.size()); }
  StateVector<float>& residual() { return residual_.values(); }  // of what is kept in fp32
  int64_t count() const { return residual_.count(); }

  void commit() override;
  void roll_back() override;
  void visit(StateVisitor& visitor, const std::string& prefix) override;
  int64_t bytes() const override;

 private:
  ResidualVectors<StateVector> residual_;
  std::unique_ptr<CompressionState> codec_;
  std::vector<float> scratch_;
};

}  // namespace thinwire
