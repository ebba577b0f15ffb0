// Residuals between messages: which vectors each kind has, resets by step, and how checkpoints see them.
#include "compression/residual.h"

#include "compression/hadamard_kernel.h"

namespace thinwire {
namespace {

bool keeps_any(const ResidualSpec& spec) {
  return spec.kind == ResidualKind::kErrorFeedback || spec.kind == ResidualKind::kLazy ||
         spec.kind == ResidualKind::kEma;
}
bool keeps(const ResidualSpec& spec, ResidualDtype dtype) {
  return keeps_any(spec) && stored_in(spec) == dtype;
}
int64_t blocks_of(int64_t count) {
  return (count + kEmaBlock - 1) / kEmaBlock;
}

}  // namespace

CoderState::CoderState(const ResidualSpec& residual, int64_t count, int64_t scratch,
                       std::unique_ptr<CompressionState> codec)
    : spec_(residual), count_(count), codec_(std::move(codec)), scratch_(static_cast<size_t>(scratch)) {
  if (keeps(spec_, ResidualDtype::kFp32)) values_ = StateVector<float>(count, spec_.on_skip);
  if (keeps(spec_, ResidualDtype::kBf16)) halves_ = StateVector<uint16_t>(count, spec_.on_skip);
  if (!keeps(spec_, ResidualDtype::kInt8)) return;
  codes_ = StateVector<int8_t>(count, spec_.on_skip);
  scales_ = StateVector<float>(blocks_of(count), spec_.on_skip);
  // The epoch of a skipped step comes back in any case: the residual that it speaks of is gone or back as well.
  if (spec_.kind == ResidualKind::kEma && spec_.reset_every > 0) epoch_ = StateVector<int64_t>(1, OnSkip::kRestore);
}

CoderState::Open CoderState::open(int64_t first, int64_t n, int64_t step) {
  Open open;
  if (keeps(spec_, ResidualDtype::kFp32)) open.values = values_.open(first, n);
  if (keeps(spec_, ResidualDtype::kBf16)) open.halves = halves_.open(first, n);
  if (!keeps(spec_, ResidualDtype::kInt8)) return open;
  TW_CHECK(first % kEmaBlock == 0, "a residual in 8 bit is opened at element ", first);
  if (epoch_.count() > 0 && *epoch_.read() != step / spec_.reset_every) {
    *epoch_.write() = step / spec_.reset_every;
    std::memset(codes_.write(), 0, static_cast<size_t>(codes_.count()));
    std::memset(scales_.write(), 0, static_cast<size_t>(scales_.count()) * sizeof(float));
  }
  open.codes = codes_.open(first, n);
  open.scales = scales_.open(first / kEmaBlock, blocks_of(n));
  return open;
}

void CoderState::commit() {
  values_.commit();
  halves_.commit();
  codes_.commit();
  scales_.commit();
  epoch_.commit();
  if (codec_) codec_->commit();
}

void CoderState::roll_back() {
  values_.roll_back();
  halves_.roll_back();
  codes_.roll_back();
  scales_.roll_back();
  epoch_.roll_back();
  if (codec_) codec_->roll_back();
}

void CoderState::visit(StateVisitor& visitor, const std::string& prefix) {
  if (values_.count() > 0)
    visitor.tensor(GlobalSlice::whole(prefix + "residual", 1, count_, View(values_.settled(), DType::f32, {count_})));
  if (halves_.count() > 0)
    visitor.tensor(GlobalSlice::whole(prefix + "residual", 1, count_, View(halves_.settled(), DType::bf16, {count_})));
  if (codes_.count() > 0) {
    const int64_t blocks = scales_.count();
    visitor.tensor(
        GlobalSlice::whole(prefix + "residual_codes", 1, count_, View(codes_.settled(), DType::u8, {count_})));
    visitor.tensor(
        GlobalSlice::whole(prefix + "residual_scales", 1, blocks, View(scales_.settled(), DType::f32, {blocks})));
  }
  if (epoch_.count() > 0) visitor.integer(prefix + "residual_epoch", *epoch_.settled());
  if (codec_) codec_->visit(visitor, prefix + "codec/");
}

int64_t CoderState::bytes() const {
  return values_.bytes() + halves_.bytes() + codes_.bytes() + scales_.bytes() + epoch_.bytes() +
         (codec_ ? codec_->bytes() : 0) + scratch_count() * static_cast<int64_t>(sizeof(float));
}

ResidualDtype stored_in(const ResidualSpec& residual) {
  return residual.kind == ResidualKind::kEma ? ResidualDtype::kInt8 : residual.dtype;
}

int64_t residual_bytes(const ResidualSpec& residual, int64_t count) {
  const int64_t copies = residual.on_skip == OnSkip::kRestore ? 2 : 1;
  if (keeps(residual, ResidualDtype::kFp32)) return copies * 4 * count;
  if (keeps(residual, ResidualDtype::kBf16)) return copies * 2 * count;
  const bool resets = residual.kind == ResidualKind::kEma && residual.reset_every > 0;
  if (keeps(residual, ResidualDtype::kInt8)) return copies * (count + 4 * blocks_of(count)) + (resets ? 16 : 0);
  return 0;
}

}  // namespace thinwire
