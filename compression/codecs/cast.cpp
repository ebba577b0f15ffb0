// Codec cast: every element as a shorter floating-point number.
//
// wire_bytes = n * 2 or n * 1. Rounding is to nearest, ties to even; subnormals are kept; -0 stays -0; NaN stays NaN.
//   bf16, fp16   what rounds beyond the largest finite number becomes infinite, and non_finite says so even though the
//                input was finite: for fp16 from 65520 on, as in fp16 training, where the step is then skipped
//   e4m3, e5m2   (OCP 8-bit formats) finite input saturates (448, 57344) without a flag: they are for values whose
//                range is known. e4m3 has no infinity: an infinite input becomes NaN
// Takes fp32, bf16 and fp16; decodes to all three.
#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <string_view>

#include "compression/codec_table.h"
#include "compression/codecs/cast_kernel.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

constexpr std::array<std::string_view, 4> kFormats = {"bf16", "fp16", "e4m3", "e5m2"};
constexpr int64_t kBlock = 1 << 15;  // elements of one thread's turn

class Cast final : public Codec {
 public:
  explicit Cast(size_t format) : format_(format), kernels_(TW_PICK_KERNELS(cast_kernels)) {}

  std::string name() const override { return "cast(format=" + std::string(kFormats[format_]) + ")"; }
  Traits traits() const override { return {.native = true, .contractive = true, .linear = true, .granule = 1}; }
  size_t wire_bytes(int64_t count, DType) const override { return static_cast<size_t>(count) * code_bytes(); }

  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState*) const override {
    const int64_t n = in.count();
    TW_CHECK(out.size() >= wire_bytes(n, in.dtype), "room for ", out.size(), " bytes");
    const auto kernel = kernels_.encode[format_][index_of(in.dtype)];
    const char* from = static_cast<const char*>(in.data);
    std::atomic<bool> bad{false};
    parallel_blocks(msg.threads, n, kBlock, [&](int64_t first, int64_t last) {
      if (kernel(from + static_cast<size_t>(first) * size_of(in.dtype),
                 out.data() + static_cast<size_t>(first) * code_bytes(), last - first))
        bad.store(true, std::memory_order_relaxed);
    });
    return {wire_bytes(n, in.dtype), bad.load(std::memory_order_relaxed)};
  }

  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    const int64_t n = out.count();
    check_payload(name(), in, wire_bytes(n, out.dtype), n);
    TW_CHECK(!accumulate || out.dtype == DType::f32, "sums are taken in fp32");
    const auto kernel = kernels_.decode[format_][index_of(out.dtype)];
    char* to = static_cast<char*>(out.data);
    parallel_blocks(msg.threads, n, kBlock, [&](int64_t first, int64_t last) {
      const std::byte* codes = in.data() + static_cast<size_t>(first) * code_bytes();
      char* part = to + static_cast<size_t>(first) * size_of(out.dtype);
      if (accumulate)
        kernels_.accumulate[format_](codes, reinterpret_cast<float*>(part), last - first);
      else
        kernel(codes, part, last - first);
    });
  }

 private:
  size_t code_bytes() const { return format_ < 2 ? 2 : 1; }

  size_t format_;
  const CastKernels& kernels_;
};

MadeCodec make_cast(const CodecSpec& spec) {
  const auto format = std::find(kFormats.begin(), kFormats.end(), spec.text("format"));
  return {std::make_shared<Cast>(static_cast<size_t>(format - kFormats.begin()))};
}

}  // namespace

CodecRow cast_row() {
  CodecRow row = {.name = "cast",
                  .parameters = {format_parameter({kFormats.begin(), kFormats.end()}, "bf16", "what values become")},
                  .make = make_cast,
                  .cases = {},
                  .device = true};
  for (std::string_view format : kFormats) row.cases.push_back({{"format", std::string(format)}});
  return row;
}

}  // namespace thinwire
