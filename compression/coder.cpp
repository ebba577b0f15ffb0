// A point of the design as configured: which combinations make sense, and what follows for lengths, states and names.
#include "compression/coder.h"

#include <numeric>

#include "compression/coder_parts.h"
#include "engine/base/core/error.h"

namespace thinwire {

void CompressionStats::add(const CompressionStats& other) {
  encode_ns += other.encode_ns;
  decode_ns += other.decode_ns;
  error_square += other.error_square;
  signal_square += other.signal_square;
  residual_square += other.residual_square;
  non_finite += other.non_finite;
  dense += other.dense;
}

// Refused, because it makes no sense:
//   any residual around a lossless codec     there is no error to keep, and a difference sent exactly says no more than
//                                            the value sent exactly
//   any residual around a codec that is not contractive   what is left grows instead of shrinking
//   hadamard around a lossless codec         the transform rounds, so nothing would be lossless any more
//   hadamard around a codec that is not linear   (the codec says so: its numbers mean something only untransformed)
//   hadamard around selectors (top_k and its kin) and whole-message codecs (low_rank)   they look for the few large
//                                            elements or the rows and columns of a matrix, which is what it spreads;
//                                            random_k gains nothing
//   ema with beta outside [0, 1), or reset_every < 0
Coder::Coder(std::shared_ptr<const Codec> codec, const CodecSpec& spec, const ResidualSpec& residual, int64_t cut) {
  const Traits traits = codec->traits();
  const std::string name = codec->name();
  const bool any_residual = residual.kind != ResidualKind::kNone;
  if (any_residual && traits.lossless)
    throw_bad_config("a residual around codec " + name +
                     ": it is lossless, there is nothing to keep; remove \"residual\"");
  if (any_residual && !traits.contractive && !traits.published_with_residual)
    throw_bad_config("a residual around codec " + name +
                     ": what it loses can be more than what it was given, so the residual would grow; remove "
                     "\"residual\" or lose less (rounding nearest; block_int asymmetric: shorter blocks or more bits; "
                     "zfp: rate 8 or more)");
  if (spec.hadamard && traits.lossless)
    throw_bad_config("hadamard in front of codec " + name +
                     ": the transform rounds, and the codec is there to lose "
                     "nothing; remove \"hadamard\"");
  const bool selects = traits.granule == 0 || traits.selects;
  if (spec.hadamard && (!traits.linear || selects))
    throw_bad_config("hadamard in front of codec " + name +
                     ": it depends on what the transform would spread; remove \"hadamard\"");
  if (residual.kind == ResidualKind::kEma && (residual.beta < 0.0 || residual.beta >= 1.0))
    throw_bad_config("residual ema: beta is " + std::to_string(residual.beta) +
                     "; it may be 0 or more, and less than 1");
  if (residual.reset_every < 0)
    throw_bad_config("residual ema: reset_every is " + std::to_string(residual.reset_every) +
                     "; it may be 0 (never) or more");

  auto parts = std::make_shared<Parts>();
  parts->codec = std::move(codec);
  parts->spec = spec;
  parts->residual = residual;
  parts->inner = traits;
  parts->outer = traits;
  parts->outer.native = true;
  parts->outer.unbiased = traits.unbiased && !any_residual;
  parts->outer.stateful = traits.stateful || keeps_residual(residual.kind);
  int64_t granule = traits.granule;
  if (granule > 0 && spec.hadamard) granule = std::lcm(granule, int64_t{32});
  if (granule > 0 && parts->in_8_bits()) granule = std::lcm(granule, kResidualBlock);
  parts->outer.granule = granule == 0 ? 0 : std::lcm(granule, std::max<int64_t>(1, cut));
  parts->tile = granule == 0 ? 0 : granule < kTile ? kTile / granule * granule : granule;
  // Tiles of a payload are found by arithmetic, and by sender and receiver alike whatever the element type was.
  parts->tiled = granule > 0 && parts->tile <= kLargestTile && !traits.framed && !traits.stateful &&
                 parts->codec->wire_bytes(granule, DType::f32) == parts->codec->wire_bytes(granule, DType::bf16);
  parts_ = std::move(parts);
}

std::string Coder::Parts::name() const {
  constexpr const char* kResiduals[] = {"", " + error_feedback", " + lazy", " + ema", " + value_difference"};
  std::string name = (spec.hadamard ? "hadamard + " : "") + codec->name() + kResiduals[static_cast<int>(residual.kind)];
  if (keeps_residual(residual.kind) && residual.kind != ResidualKind::kEma && !in_fp32())
    name += in_8_bits() ? " in int8" : " in bf16";
  return name;
}

std::string Coder::name() const {
  return parts_->name();
}
Traits Coder::traits() const {
  return parts_->outer;
}
int64_t Coder::cut_unit() const {
  if (granule() > 0) return granule();
  return parts_->in_8_bits() ? kResidualBlock : 1;  // its scales are of whole blocks
}
bool Coder::value_difference() const {
  return parts_->differences();
}

size_t Coder::wire_bytes(int64_t count, DType dtype) const {
  return count == 0 ? 0 : parts_->codec->wire_bytes(count, parts_->handed(dtype));
}

size_t Coder::message_bytes(const Msg& msg, int64_t count, DType dtype) const {
  return count == 0 ? 0 : parts_->codec->message_bytes(msg, count, parts_->handed(dtype));
}

bool Coder::shrinks(int64_t count, DType dtype) const {
  const size_t plain = static_cast<size_t>(count) * size_of(dtype);
  // Nobody knows a framed payload's length before packing; below a kilobyte its header alone may eat the gain.
  if (parts_->inner.framed) return plain >= 1024;
  return wire_bytes(count, dtype) < plain;
}

std::unique_ptr<CompressionState> Coder::make_state(int64_t count, std::span<const MatrixShape> matrices) const {
  if (!parts_->outer.stateful) return nullptr;
  return std::make_unique<CoderState>(parts_->residual, count, parts_->codec->make_state(count, matrices), HostPlace{},
                                      parts_->scratch(count));
}

int64_t Coder::state_bytes(int64_t count, std::span<const MatrixShape> matrices) const {
  if (!parts_->outer.stateful) return 0;
  const auto own = parts_->codec->make_state(count, matrices);
  return (own ? own->bytes() : 0) + residual_bytes(parts_->residual, count) +
         parts_->scratch(count) * static_cast<int64_t>(sizeof(float));
}

bool Coder::keeps_decoded(const Msg& msg) const {
  return parts_->keeps_decoded(msg);
}

}  // namespace thinwire
