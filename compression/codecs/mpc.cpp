// Codec mpc: the lossless stream of MPC 1.2 (float) for fp32, and the same on packed pairs for bf16 and fp16.
//
// Source: A. Yang, H. Mukka, F. Hesaaraki, M. Burtscher, "MPC: A Massively Parallel Compression Algorithm for
// Scientific Data" (2015), and its stream as described in docs/wire_formats.md. Units of 1024 words: differences at
// distance `dimension`, 32 x 32 bit transposes, differences of neighbouring planes, and a bitmap with the planes that
// are not zero. Lossless bit for bit, NaN payloads and -0 included. Native: fp32 one value a word; bf16 and fp16 two
// values a word, which beats widening them (docs/wire_formats.md has the ratios). Framed: one frame per 65536 elements,
// each a complete stream whose second word holds the number of 32-bit words that it decodes to; at most 4 * (2 + 33 *
// ceil(words / 32)) bytes a frame. Decodes to the dtype encoded, or to fp32.
#include <algorithm>
#include <cstring>

#include "compression/codec_table.h"
#include "compression/codecs/frame_chain.h"
#include "compression/codecs/mpc_kernel.h"
#include "compression/tile_kernel.h"

namespace thinwire {
namespace {

constexpr int64_t kFrame = 65536;         // elements
constexpr uint32_t kMagic = 0x63706d00u;  // plus dimension - 1, plus 32 times the element type
constexpr size_t kHeader = 2 * sizeof(uint32_t);

int64_t words_of(int64_t count, DType dtype) {
  return dtype == DType::f32 ? count : (count + 1) / 2;
}
int64_t groups_of(int64_t words) {
  return (words + 31) / 32;
}
uint32_t read_word(const std::byte* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}
void write_word(std::byte* p, uint32_t word) {
  std::memcpy(p, &word, sizeof word);
}

class Mpc final : public FrameChain {
 public:
  explicit Mpc(int dimension) : FrameChain(kFrame), dimension_(dimension) {}
  std::string name() const override { return "mpc(dimension=" + std::to_string(dimension_) + ")"; }

 private:
  // A cut-short group of 32 still has 32 planes.
  size_t frame_bound(int64_t n, DType dtype) const override {
    return kHeader + 33 * sizeof(uint32_t) * static_cast<size_t>(groups_of(words_of(n, dtype)));
  }
  size_t frame_length(std::span<const std::byte> payload, int64_t n, DType out) const override {
    if (payload.size() < kHeader) return 0;
    const uint32_t kind = (read_word(payload.data()) - kMagic) >> 5;
    if (!decodes(kind, out)) return 0;
    const int64_t words = words_of(n, kElementTypes[kind]), groups = groups_of(words);
    if (read_word(payload.data() + 4) != words || (payload.size() - kHeader) / 4 < static_cast<size_t>(groups))
      return 0;
    const MpcKernels& kernels = TW_PICK_KERNELS(mpc_kernels);
    return kHeader + 4 * static_cast<size_t>(groups + kernels.count_bits(payload.data() + kHeader, groups));
  }
  bool decode_frame(std::span<const std::byte> frame, View out, bool accumulate) const override {
    const MpcKernels& kernels = TW_PICK_KERNELS(mpc_kernels);
    const TileKernels& tile = TW_PICK_KERNELS(tile_kernels);
    const uint32_t head = read_word(frame.data()) - kMagic;
    const DType dtype = kElementTypes[head >> 5];
    const int dimension = static_cast<int>(head & 31) + 1;
    const int64_t n = out.count(), words = words_of(n, dtype), per_word = dtype == DType::f32 ? 1 : 2;
    const std::byte* bitmap = frame.data() + kHeader;
    const std::byte* payload = bitmap + 4 * groups_of(words);
    for (int64_t at = 0; at < words; at += kMpcUnit) {
      const int64_t m = std::min(kMpcUnit, words - at), groups = groups_of(m);
      uint32_t unit[kMpcUnit];
      kernels.decode_unit(bitmap, payload, m, dimension, unit);
      payload += 4 * kernels.count_bits(bitmap, groups);
      bitmap += 4 * groups;
      const int64_t first = at * per_word, values = std::min(m * per_word, n - first);
      if (out.dtype == dtype && !accumulate)
        std::memcpy(static_cast<std::byte*>(out.data) + static_cast<size_t>(first) * size_of(dtype), unit,
                    static_cast<size_t>(values) * size_of(dtype));
      else
        (accumulate ? tile.add_raw : tile.load)[head >> 5](unit, out.as<float>() + first, values);
    }
    return true;
  }
  size_t encode_frame(const std::byte* in, DType dtype, int64_t count, std::byte* out, bool& finite) const override {
    finite = TW_PICK_KERNELS(tile_kernels).all_finite[index_of(dtype)](in, count);
    const MpcKernels& kernels = TW_PICK_KERNELS(mpc_kernels);
    const int64_t words = words_of(count, dtype);
    write_word(out, kMagic + 32 * static_cast<uint32_t>(index_of(dtype)) + static_cast<uint32_t>(dimension_ - 1));
    write_word(out + 4, static_cast<uint32_t>(words));
    std::byte* bitmap = out + kHeader;
    std::byte* const first = bitmap + 4 * groups_of(words);
    std::byte* payload = first;
    for (int64_t at = 0; at < words; at += kMpcUnit, bitmap += 4 * (kMpcUnit / 32)) {
      const int64_t n = std::min(kMpcUnit, words - at);
      const std::byte* from = in + 4 * at;
      std::byte odd[4 * kMpcUnit];
      if (dtype != DType::f32 && count % 2 != 0 && at + n == words) {  // half of the last word is not there
        const size_t bytes = static_cast<size_t>(4 * n) - 2;
        std::memcpy(odd, from, bytes);
        std::memset(odd + bytes, 0, 2);
        from = odd;
      }
      payload += 4 * kernels.encode_unit(from, n, dimension_, bitmap, payload);
    }
    return static_cast<size_t>(payload - out);
  }

  int dimension_;
};

}  // namespace

CodecRow mpc_row() {
  return {.name = "mpc",
          .parameters = {codec_parameter(1, {.name = "dimension",
                                             .bounds = {1, 32},
                                             .unit = "values",
                                             .doc = "how far back the value lies that predicts the next"})},
          .make = [](const CodecSpec& spec) -> MadeCodec {
            return {std::make_shared<Mpc>(static_cast<int>(spec.integer("dimension")))};
          },
          .lossless = true};
}

}  // namespace thinwire
