// Codec zfp: fixed rate ZFP of one-dimensional fp32 data, in the stream that libzfp writes and reads.
//
// Source: P. Lindstrom, "Fixed-Rate Compressed Floating-Point Arrays" (2014), and the stream as described in
// docs/wire_formats.md. Every block of four values takes maxbits = floor(4 rate + 0.5) bits, packed without gaps from
// the least significant bit of the first byte on. Bit for bit libzfp's with zfp_stream_set_rate(rate, float, 1, align
// 0), where libzfp's behaviour is defined; where it is not, ours is:
//   max|x| < 2^-98 in a block   the block is written as zeros (libzfp overflows its scale and decodes garbage)
//   NaN or infinity in a block  raises Encoded::non_finite; the block is written as the legal one that every decoder
//                               turns into +infinity, all four values (maxbits < 11: as zeros)
//   |x| >= 2^126                raises non_finite, but is coded as libzfp does: at low rates such a block can decode
//                               to infinity
// fp32 in and out, lossy, fixed size: 8 * ceil(ceil(n / 4) * maxbits / 64) bytes for n elements. The padding to 8 bytes
// is zero, follows only the last piece of a message (pieces cut at the granule of 256 elements have none), and is what
// libzfp built with 64-bit stream words appends; Debian's, built with 8-bit words, ends up to 7 bytes earlier and reads
// ours too. -0 decodes to +0, as in libzfp.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "compression/codec_table.h"
#include "compression/codecs/zfp_kernel.h"
#include "engine/base/core/error.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

constexpr int64_t kGranule = 256;             // 64 blocks: a multiple of 64 bits at any rate
constexpr int64_t kTaskSize = 64 * kGranule;  // elements that one thread codes at a time

// Elements [first, this) are coded in place. The rest is coded in a copy: a last block that is not full, and the blocks
// before it back to the granule, since only granules are sure to start on a byte.
int64_t end_in_place(int64_t first, int64_t last) {
  return last % 4 == 0 ? last : first + (last - first) / kGranule * kGranule;
}

class Zfp final : public Codec {
 public:
  Zfp(double rate, int maxbits) : rate_(rate), maxbits_(maxbits) {}

  std::string name() const override { return "zfp(rate=" + rate_text(rate_) + ")"; }
  Traits traits() const override { return {.contractive = maxbits_ >= 32, .granule = kGranule}; }
  size_t wire_bytes(int64_t count, DType) const override { return (stream_bytes(count) + 7) / 8 * 8; }
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState*) const override {
    const float* x = in.as<float>();
    const int64_t count = in.count();
    if (count == 0) return {};
    const size_t bytes = wire_bytes(count, DType::f32);
    TW_CHECK(out.size() >= bytes, "zfp: ", out.size(), " bytes of room for ", bytes);
    const ZfpKernels& kernels = TW_PICK_KERNELS(zfp_kernels);
    bool finite = true;
    parallel_blocks(msg.threads, count, kTaskSize, [&](int64_t first, int64_t last) {
      std::byte* to = out.data() + stream_bytes(first);
      bool ok = true;
      const int64_t middle = end_in_place(first, last);
      if (middle > first) ok = kernels.encode(x + first, (middle - first) / 4, maxbits_, to);
      if (middle < last) {
        // As libzfp does, a short block is completed from its own values: (a,a,a,a), (a,b,b,a), (a,b,c,a).
        float rest[kGranule];
        const int64_t n = last - middle;
        std::copy(x + middle, x + last, rest);
        const int64_t start = n / 4 * 4, present = n % 4;
        if (present == 1) rest[start + 1] = rest[start];
        if (present <= 2) rest[start + 2] = rest[start + 1];
        rest[start + 3] = rest[start];
        ok &= kernels.encode(rest, start / 4 + 1, maxbits_, out.data() + stream_bytes(middle));
      }
      if (!ok) __atomic_store_n(&finite, false, __ATOMIC_RELAXED);
    });
    const size_t written = stream_bytes(count);
    std::memset(out.data() + written, 0, bytes - written);
    return {bytes, !finite};
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    float* x = out.as<float>();
    const int64_t count = out.count();
    check_payload(name(), in, wire_bytes(count, DType::f32), count);
    const ZfpKernels& kernels = TW_PICK_KERNELS(zfp_kernels);
    parallel_blocks(msg.threads, count, kTaskSize, [&](int64_t first, int64_t last) {
      const int64_t middle = end_in_place(first, last);
      if (middle > first)
        kernels.decode(in.data() + stream_bytes(first), (middle - first) / 4, maxbits_, x + first, accumulate);
      if (middle == last) return;
      float rest[kGranule];
      const int64_t n = last - middle;
      kernels.decode(in.data() + stream_bytes(middle), (n + 3) / 4, maxbits_, rest, false);
      for (int64_t i = 0; i < n; ++i) x[middle + i] = accumulate ? x[middle + i] + rest[i] : rest[i];
    });
  }

 private:
  size_t stream_bytes(int64_t count) const { return static_cast<size_t>(((count + 3) / 4 * maxbits_ + 7) / 8); }

  double rate_;
  int maxbits_;
};

MadeCodec make_zfp(const CodecSpec& spec) {
  const double rate = spec.real("rate");
  return {std::make_shared<Zfp>(rate, static_cast<int>(std::floor(4.0 * rate + 0.5)))};
}

}  // namespace

CodecRow zfp_row() {
  return {
      .name = "zfp",
      .parameters = {codec_parameter(
          8.0,
          {.name = "rate", .bounds = {2.25, 32}, .unit = "bits", .doc = "bits per value, 2.25 to 32", .ramp = true})},
      .make = make_zfp,
      .cases = {{{"rate", 8.0}}, {{"rate", 16.0}}, {{"rate", 24.0}}},
      .device = true};
}

}  // namespace thinwire
