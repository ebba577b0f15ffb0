// Device coders: which points have a device side, and how a message becomes jobs of kernels.
#include "compression/device_coder.h"

#include <vector>

#include "compression/coder_parts.h"
#include "compression/message_key.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

DeviceVector device_vector(const View& view) {
  return {view.data, view ? static_cast<int>(index_of(view.dtype)) : 0};
}

// Whether four elements can be loaded at once wherever a multiple of four of them lies before.
bool fours(const void* data, size_t element) {
  return reinterpret_cast<uintptr_t>(data) % (4 * element) == 0;
}
bool fours(const View& view) {
  return fours(view.data, size_of(view.dtype));
}

}  // namespace

size_t DeviceCodec::whole_bytes(const Msg&, int64_t) const {
  TW_CHECK(false, "a codec that takes no whole messages");
}
std::unique_ptr<CompressionState> DeviceCodec::make_state(int64_t, std::span<const MatrixShape>,
                                                          const DevicePlace&) const {
  return nullptr;
}

bool DeviceCoder::whole() const {
  return parts().inner.granule == 0;
}
int64_t DeviceCoder::tile() const {
  return parts().inner.alias || whole() ? kMostDeviceTile : parts().tile;
}

std::unique_ptr<DeviceCoder> DeviceCoder::make(const Coder& host) {
  const Coder::Parts& parts = *host.parts_;
  const bool whole = parts.inner.granule == 0;
  if (!parts.inner.alias && !whole && (!parts.tiled || parts.tile > kMostDeviceTile)) return nullptr;
  std::unique_ptr<DeviceCodec> kernels = make_device_codec(parts.spec);
  if (kernels == nullptr) return nullptr;
  return std::unique_ptr<DeviceCoder>(new DeviceCoder(host, std::move(kernels)));
}

std::unique_ptr<CompressionState> DeviceCoder::make_state(int64_t count, std::span<const MatrixShape> matrices,
                                                          const DevicePlace& place) const {
  if (!parts().outer.stateful) return nullptr;
  auto codec = parts().inner.stateful ? codec_->make_state(count, matrices, place) : nullptr;
  return std::make_unique<DeviceCoderState>(parts().residual, count, std::move(codec), place);
}

size_t DeviceCoder::wire_bytes(const Msg& msg, int64_t count, DType dtype) const {
  if (count == 0) return 0;
  return whole() ? codec_->whole_bytes(msg, count) : host_.wire_bytes(count, dtype);
}

size_t DeviceCoder::queue_pack(Exec& exec, const Msg& msg, View in, View reference, std::span<std::byte> out,
                               CompressionState* state, DeviceTally* tally, View own) const {
  const Coder::Parts& p = parts();
  const int64_t n = in.count();
  if (n == 0) return 0;
  const size_t bytes = wire_bytes(msg, n, in.dtype);
  TW_CHECK(out.size() >= bytes && tally != nullptr, host_.name(), ": room for ", out.size(), " bytes");
  p.check_pack(msg, in, reference, own);
  TW_CHECK(!whole() || msg.first == 0, host_.name(), ": a piece at ", msg.first, " of what is coded whole");
  const bool remember = keeps_residual(p.residual.kind) && msg.train;

  PackJob job;
  job.count = n;
  job.tile = tile();
  job.tile_bytes = whole() ? 0 : static_cast<int64_t>(p.codec->wire_bytes(job.tile, p.handed(in.dtype)));
  job.first = static_cast<uint64_t>(msg.first);
  job.in = device_vector(in);
  if (p.differences()) job.reference = device_vector(reference);
  job.own = device_vector(own);
  job.own_adds = p.differences();
  job.out = reinterpret_cast<uint8_t*>(out.data());
  job.hadamard = p.spec.hadamard;
  job.vectors = job.tile % 4 == 0 && fours(in) && (!p.differences() || fours(reference)) && (!own || fours(own));
  job.tally = tally;
  static_assert((kSampleEvery & (kSampleEvery - 1)) == 0);
  job.sample_phase =
      job.first / static_cast<uint64_t>(job.tile) + static_cast<uint64_t>(msg.step) + msg.slot + msg.sequence;
  job.sample_every = p.inner.lossless ? 0 : kSampleEvery;
  if (whole()) job.sample_every = own || p.sampled(msg, 0) ? 1 : 0;  // all of the message or nothing
  job.loss_scale = msg.loss_scale;
  job.unscale = 1.0f / msg.loss_scale;
  job.beta = static_cast<float>(p.residual.beta);
  auto* const kept = dynamic_cast<DeviceCoderState*>(state);
  TW_CHECK(kept != nullptr || !(remember || p.inner.stateful), host_.name(), ": packs without a state of its own");
  if (remember) {
    TW_CHECK(msg.first + n <= kept->count(), "a piece at ", msg.first, "+", n, " of a state of ", kept->count());
    const DeviceCoderState::Open open = kept->open(msg.first, n, msg.step);
    const PhiloxKey chances = message_key(msg, RandomPurpose::kResidual);
    job.chance0 = chances.k0, job.chance1 = chances.k1;
    job.sample_every = 1;
    switch (stored_in(p.residual)) {
      case ResidualDtype::kFp32:
        job.residual = DeviceResidual::kFp32;
        job.old = open.values.read, job.now = open.values.write;
        job.vectors = job.vectors && fours(job.old, 4) && fours(job.now, 4);
        break;
      case ResidualDtype::kBf16:
        job.residual = DeviceResidual::kBf16;
        job.old = open.halves.read, job.now = open.halves.write;
        job.vectors = job.vectors && fours(job.old, 2) && fours(job.now, 2);
        break;
      case ResidualDtype::kInt8:  // begins at a multiple of kResidualBlock
        job.residual = p.residual.kind == ResidualKind::kEma ? DeviceResidual::kEma : DeviceResidual::kInt8;
        job.old = open.codes.read, job.now = open.codes.write;
        job.old_scales = open.scales.read, job.now_scales = open.scales.write;
        break;
    }
  }
  codec_->queue_pack(exec, msg, job, kept != nullptr ? kept->codec() : nullptr);
  if (remember)
    for_padding(msg, msg.first, n, [&](int64_t from, int64_t to) { kept->forget(msg.first + from, to - from); });
  return bytes;
}

void DeviceCoder::queue_absorb(Exec& exec, const Msg& msg, std::span<const Share> shares, View out, bool accumulate,
                               DeviceTally* tally) const {
  const Coder::Parts& p = parts();
  const int64_t n = out.count();
  if (n == 0) return;
  accumulate = p.check_absorb(shares, out, accumulate);
  AbsorbJob job;
  job.count = n;
  job.tile = tile();
  job.tile_bytes = whole() ? 0 : static_cast<int64_t>(p.codec->wire_bytes(job.tile, DType::f32));
  job.out = device_vector(out);
  job.accumulate = accumulate;
  job.vectors = job.tile % 4 == 0 && fours(out);
  job.tally = tally;
  // In the order in which they are added: behind a transform what did not go through it comes last.
  std::vector<DeviceShare> payloads, plain;
  for (const Share& share : shares) {
    const View raw = p.raw_of(share, out);
    if (raw) {
      TW_CHECK(reinterpret_cast<uintptr_t>(raw.data) % size_of(raw.dtype) == 0, host_.name(), ": elements at ",
               raw.data);
      job.vectors = job.vectors && fours(raw);
      (p.spec.hadamard ? plain : payloads).push_back({raw.data, static_cast<int>(index_of(raw.dtype))});
    } else if (!share.payload.empty()) {
      if (whole() && share.payload.size() != wire_bytes(msg, n, out.dtype))
        throw_bad_data("a payload of rank " + std::to_string(share.rank) + " in its group has " +
                       std::to_string(share.payload.size()) + " bytes where " + host_.name() + " of this message of " +
                       std::to_string(n) + " elements has " + std::to_string(wire_bytes(msg, n, out.dtype)));
      payloads.push_back({share.payload.data(), kPayload});
    }
  }
  const auto coded = static_cast<int>(payloads.size());
  payloads.insert(payloads.end(), plain.begin(), plain.end());
  if (payloads.empty() && accumulate) return;
  job.shares = payloads;
  job.transform_at = p.spec.hadamard && coded > 0 ? coded : -1;
  codec_->queue_absorb(exec, msg, job);
}

}  // namespace thinwire
