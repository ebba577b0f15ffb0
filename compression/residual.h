// What a coder keeps between the messages of one slot: its residual, its codec's own state, and scratch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compression/compression_state.h"
#include "compression/rule.h"
#include "compression/tile_kernel.h"

namespace thinwire {

// What the residual is kept in; meaningful where something is kept.
ResidualDtype stored_in(const ResidualSpec& residual);
// Whether anything is kept, and whether in this type.
bool keeps_residual(ResidualKind kind);
bool keeps(const ResidualSpec& residual, ResidualDtype dtype);
// Bytes of memory that the residual takes, without codec and scratch.
int64_t residual_bytes(const ResidualSpec& residual, int64_t count);

// Kinds that keep something: error_feedback and lazy keep fp32 or bf16 [count], or, as ema does, int8 [count] with an
// fp32 scale per kResidualBlock elements. All without the loss scale. value_difference keeps nothing here: its memory
// is the replica.
template <typename Place>
class CoderStateOn final : public CompressionState {
 public:
  template <typename T>
  using Vector = StateVector<T, Place>;
  // The residual of elements [first, first + n) of the message: read the old, write the new, all of it. In units of
  // kResidualBlock where it is in 8 bit.
  struct Open {
    typename Vector<float>::Range values;     // fp32
    typename Vector<uint16_t>::Range halves;  // bf16
    typename Vector<int8_t>::Range codes;     // int8
    typename Vector<float>::Range scales;     // int8: [ceil(n / kResidualBlock)]
  };

  // codec: the codec's own state, or nullptr. scratch: floats that whole-message compression works in, on the host (0:
  // it works in tiles on the stack).
  CoderStateOn(const ResidualSpec& residual, int64_t count, std::unique_ptr<CompressionState> codec,
               const Place& place = {}, int64_t scratch = 0)
      : spec_(residual), count_(count), codec_(std::move(codec)), scratch_(static_cast<size_t>(scratch)) {
    if (keeps(spec_, ResidualDtype::kFp32)) values_ = Vector<float>(count, spec_.on_skip, place);
    if (keeps(spec_, ResidualDtype::kBf16)) halves_ = Vector<uint16_t>(count, spec_.on_skip, place);
    if (!keeps(spec_, ResidualDtype::kInt8)) return;
    codes_ = Vector<int8_t>(count, spec_.on_skip, place);
    scales_ = Vector<float>(blocks_of(count), spec_.on_skip, place);
    // The epoch of a skipped step comes back in any case: the residual that it speaks of is gone or back as well.
    if (spec_.kind == ResidualKind::kEma && spec_.reset_every > 0) epoch_ = StateVector<int64_t>(1, OnSkip::kRestore);
  }
  int64_t count() const { return count_; }
  Vector<float>& residual() { return values_; }  // of what is kept in fp32
  CompressionState* codec() const { return codec_.get(); }
  float* scratch() { return scratch_.data(); }
  int64_t scratch_count() const { return static_cast<int64_t>(scratch_.size()); }

  // `step` counts updates: with reset_every the residual restarts from zero when the first message of step
  // k * reset_every (or a later one) is packed, however many messages or slots there are.
  Open open(int64_t first, int64_t n, int64_t step) {
    Open open;
    if (keeps(spec_, ResidualDtype::kFp32)) open.values = values_.open(first, n);
    if (keeps(spec_, ResidualDtype::kBf16)) open.halves = halves_.open(first, n);
    if (!keeps(spec_, ResidualDtype::kInt8)) return open;
    TW_CHECK(first % kResidualBlock == 0, "a residual in 8 bit is opened at element ", first);
    if (epoch_.count() > 0 && *epoch_.read() != step / spec_.reset_every) {
      *epoch_.write() = step / spec_.reset_every;
      codes_.zero();
      scales_.zero();
    }
    open.codes = codes_.open(first, n);
    open.scales = scales_.open(first / kResidualBlock, blocks_of(n));
    return open;
  }
  // Nothing is kept of elements [first, first + n), which open() gave: behind packing.
  void forget(int64_t first, int64_t n) {
    values_.clear(first, n);
    halves_.clear(first, n);
    codes_.clear(first, n);
  }
  void commit() override {
    values_.commit();
    halves_.commit();
    codes_.commit();
    scales_.commit();
    epoch_.commit();
    if (codec_) codec_->commit();
  }
  void roll_back() override {
    values_.roll_back();
    halves_.roll_back();
    codes_.roll_back();
    scales_.roll_back();
    epoch_.roll_back();
    if (codec_) codec_->roll_back();
  }
  // The same names wherever it lies: a checkpoint of one place is read in the other.
  void visit(StateVisitor& visitor, const std::string& prefix) override {
    const auto show = [&](const char* name, auto& vector, DType dtype) {
      const int64_t n = vector.count();
      if (n > 0) visitor.tensor(GlobalSlice::whole(prefix + name, 1, n, View(vector.settled(), dtype, {n})));
    };
    show("residual", values_, DType::f32);
    show("residual", halves_, DType::bf16);
    show("residual_codes", codes_, DType::u8);
    show("residual_scales", scales_, DType::f32);
    if (epoch_.count() > 0) visitor.integer(prefix + "residual_epoch", *epoch_.settled());
    if (codec_) codec_->visit(visitor, prefix + "codec/");
  }
  int64_t bytes() const override {
    return values_.bytes() + halves_.bytes() + codes_.bytes() + scales_.bytes() + epoch_.bytes() +
           (codec_ ? codec_->bytes() : 0) + scratch_count() * static_cast<int64_t>(sizeof(float));
  }

 private:
  static int64_t blocks_of(int64_t count) { return (count + kResidualBlock - 1) / kResidualBlock; }

  ResidualSpec spec_;
  int64_t count_ = 0;
  Vector<float> values_;
  Vector<uint16_t> halves_;
  Vector<int8_t> codes_;
  Vector<float> scales_;
  StateVector<int64_t> epoch_;  // ema with resets: update number / reset_every of what is kept
  std::unique_ptr<CompressionState> codec_;
  std::vector<float> scratch_;
};

using CoderState = CoderStateOn<HostPlace>;

}  // namespace thinwire
