// Bounds, threads and names of codec cast.
#include "compression/codecs/cast.h"

#include <array>
#include <atomic>
#include <string>
#include <string_view>

#include "compression/codecs/cast_kernel.h"
#include "engine/base/core/error.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

constexpr std::array<std::string_view, 4> kFormats = {"bf16", "fp16", "e4m3", "e5m2"};
constexpr int64_t kBlock = 1 << 15;  // elements of one thread's turn

size_t index_of(DType dtype) {
  TW_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, "cast of ", name_of(dtype));
  return dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1 : 2;
}

class Cast final : public Codec {
 public:
  explicit Cast(size_t format) : format_(format), kernels_(TW_PICK_KERNELS(cast_kernels)) {}

  std::string name() const override { return "cast(format=" + std::string(kFormats[format_]) + ")"; }
  Traits traits() const override { return {.native = true, .contractive = true, .linear = true, .granule = 1}; }
  size_t wire_bytes(int64_t count, DType) const override { return static_cast<size_t>(count) * code_bytes(); }

  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CodingState*) const override {
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
    if (in.size() != wire_bytes(n, out.dtype))
      throw_bad_data(name() + ": a payload of " + std::to_string(in.size()) + " bytes where " + std::to_string(n) +
                     " elements have " + std::to_string(wire_bytes(n, out.dtype)));
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

}  // namespace

std::shared_ptr<const Codec> make_cast(const CodecSpec& spec) {
  const std::string_view wanted = spec.format.empty() ? kFormats[0] : std::string_view(spec.format);
  for (size_t i = 0; i < kFormats.size(); ++i)
    if (kFormats[i] == wanted) return std::make_shared<Cast>(i);
  throw_bad_config("codec cast: format is \"" + spec.format + "\"; it may be bf16, fp16, e4m3 or e5m2");
}

CodecRow cast_row() {
  CodecRow row = {.defaults = {.codec = "cast", .format = "bf16"},
                  .parameters = {format_parameter({kFormats.begin(), kFormats.end()}, "what values become")},
                  .make = [](const CodecSpec& spec) {
                    return MadeCodec{make_cast(spec), nullptr};
                  }};
  for (std::string_view format : kFormats) row.cases.push_back({.codec = "cast", .format = std::string(format)});
  return row;
}

}  // namespace thinwire
