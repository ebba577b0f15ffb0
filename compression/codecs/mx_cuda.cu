// Codec mx on a GPU: the scales and codes of mx_kernel.cpp, bit by bit.
#include "compression/codecs/block_kernels.h"
#include "compression/codecs/device_blocks.h"
#include "compression/codecs/device_makers.h"

namespace thinwire {
namespace {

// The code without sign of a finite number >= 0, given by its bits: nearest, ties to even, saturated.
template <typename F>
TW_DEVICE uint32_t small_code(uint32_t bits) {
  constexpr uint32_t kLowest = static_cast<uint32_t>(128 - F::kBias) << 23;
  const uint32_t field = bits & 0x7f800000u, exponent = field > kLowest ? field : kLowest;
  const uint32_t anchor = exponent + (static_cast<uint32_t>(23 - F::kMantissa) << 23);
  const uint32_t steps = bits_of(float_of_bits(bits) + float_of_bits(anchor)) - anchor;
  const uint32_t code = ((exponent - kLowest) >> (23 - F::kMantissa)) + steps;
  constexpr uint32_t kLargest = F::kLargest;
  return code > kLargest ? kLargest : code;
}
// Elements of bad blocks have become NaN; they get the code 0.
template <typename F>
TW_DEVICE uint32_t signed_code(float v) {
  const uint32_t bits = is_nan(v) ? 0u : bits_of(v);
  return small_code<F>(bits & 0x7fffffffu) | bits >> 31 << (F::kBits - 1);
}
// kNan: codes may be those of NaN, which of these types E4M3 has.
template <typename F, bool kNan = true>
TW_DEVICE float element_of(uint32_t code) {
  if constexpr (F::kBits == 8 && F::kMantissa == 2) {
    return exact_half(static_cast<uint16_t>(code << 8));
  } else if constexpr (F::kBits == 8) {
    const auto spread = static_cast<uint32_t>(static_cast<int>(code << 24) >> 4);  // the sign again in four bits
    const float v = float_of_bits(spread & 0x87f00000u) * 0x1p120f;                // by what the exponents differ
    return kNan && (code & 0x7fu) == 0x7fu ? float_of_bits(0x7fc00000u) : v;
  } else {
    const uint32_t size = code & ((1u << (F::kBits - 1)) - 1u);
    const uint32_t normal = (size << (23 - F::kMantissa)) + (static_cast<uint32_t>(127 - F::kBias) << 23);
    constexpr float kStep = 1.0f / (1 << (F::kBias - 1 + F::kMantissa));
    const uint32_t value = size < (1u << F::kMantissa) ? bits_of(static_cast<float>(size) * kStep) : normal;
    return float_of_bits(value | code >> (F::kBits - 1) << 31);
  }
}

template <typename F, int kBlock>
struct SmallForm {
  static constexpr int kBits = F::kBits, block = kBlock;
  TW_DEVICE static uint32_t code_of(float v, float inverse) { return signed_code<F>(v * inverse); }
  TW_DEVICE static float level_of(uint32_t code) { return element_of<F>(code); }
};

// With E8M0 scales.
template <typename F>
struct MxForm : SmallForm<F, 32> {
  static constexpr const char *kPack = "pack mx", *kAbsorb = "absorb mx";
  static constexpr int lanes = 8, shift = 5, kScaleBytes = 1;

  TW_DEVICE static StoredScale scale_of(uint32_t key) {
    if (key >= kBadKey) return {255u, float_of_bits(0x7fc00000u), true};
    const int exponent = static_cast<int>(key >> 24) - F::kMaxExponent;
    const uint32_t e = exponent < 0 ? 0u : static_cast<uint32_t>(exponent);
    return {e, float_of_bits((254u - e) << 23), false};
  }
  TW_DEVICE static float step_of(uint32_t bits) { return power_of_byte(bits); }
  TW_DEVICE static bool possible(uint32_t) { return true; }
  // Codes of NaN, which E4M3 alone has, are rare.
  TW_DEVICE static void values_of(const uint32_t (&codes)[kTileSteps], const float (&steps)[kTileSteps],
                                  TileValues& v) {
    uint32_t nans = 0;
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) nans |= ((codes[s] & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
    if (F::kBits < 8 || F::kMantissa < 3 || nans != 0)
      get_values<F::kBits>(codes, steps, v, [](uint32_t code) { return element_of<F, true>(code); });
    else
      get_values<F::kBits>(codes, steps, v, [](uint32_t code) { return element_of<F, false>(code); });
  }
};

// With E4M3 scales of blocks and one in fp32 of the tile, which is the codec's group.
struct NvTiles {
  static constexpr const char *kPack = "pack nvfp4", *kAbsorb = "absorb nvfp4";
  static constexpr int kBlock = 16, kBlocks = static_cast<int>(kMostDeviceTile) / kBlock;
  static constexpr float kSmallestGroupScale = 0x1p-100f, kLargestGroupScale = 0x1.8p116f;
  static_assert(kBlocks == kTileThreads);

  // Per block as in BlockTiles; the largest key of all blocks that are finite.
  size_t shared_bytes(int64_t) const { return (2 * kBlocks + 1) * sizeof(float); }
  NvTiles for_message(const Msg&) const { return *this; }

  TW_DEVICE bool encode(unsigned char* shared, TileValues& v, int n, uint64_t, uint8_t* out, bool) const {
    const int blocks = (n + kBlock - 1) / kBlock, b = static_cast<int>(threadIdx.x);
    auto* keys = reinterpret_cast<unsigned*>(shared);
    auto* inverses = reinterpret_cast<float*>(shared);
    float* steps = inverses + kBlocks;
    unsigned* largest = keys + 2 * kBlocks;
    if (b == 0) largest[0] = 0;
    largest_keys(keys, v, n, kBlock, kBlock / 4);
    const uint32_t key = b < blocks ? keys[b] : 0u;
    const bool bad = key >= kBadKey;
    if (!bad) atomic_max(largest, key);
    __syncthreads();
    const float most = float_of_bits(largest[0] >> 1);
    float group = most * (1.0f / 2688.0f);
    group = group < kSmallestGroupScale ? kSmallestGroupScale : group;
    group = group > kLargestGroupScale ? kLargestGroupScale : group;
    if (most == 0.0f) group = 0.0f;
    if (b == 0) store_payload<4>(out, bits_of(group), 4);
    if (b < blocks) {
      const float per_group = most == 0.0f ? 0.0f : 1.0f / (group * 6.0f);
      const float top = bad ? 0.0f : float_of_bits(key >> 1);
      uint32_t code = small_code<E4m3>(bits_of(top * per_group));
      if (code == 0 && top > 0.0f) code = 1;
      if (bad) code = 0x7fu;
      const float step = element_of<E4m3>(code) * group;
      inverses[b] = code == 0 ? 0.0f : 1.0f / step;
      steps[b] = step;
      out[4 + b] = static_cast<uint8_t>(code);
    }
    __syncthreads();
    put_codes(SmallForm<E2m1, kBlock>{}, v, n, inverses, steps, out + 4 + blocks);
    return bad;
  }

  TW_DEVICE bool decode(const uint8_t* in, int n, TileValues& v) const {
    const float group = float_of_bits(load_payload<4>(in, 4));
    bool good = group >= 0.0f && group <= kLargestGroupScale;
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      const int i = tile_element(s);
      const uint32_t code = i < n ? in[4 + i / kBlock] : 0u;
      good = good && (code & 0x80u) == 0;
      const float step = element_of<E4m3>(code) * group;
      uint32_t q[4];
      load_codes<4>(in + 4 + (n + kBlock - 1) / kBlock, i, n, q);
      TW_UNROLL
      for (int k = 0; k < 4; ++k) v[s][k] = i + k < n ? element_of<E2m1>(q[k]) * step : 0.0f;
    }
    return good;
  }
};

template <typename Tiles>
std::unique_ptr<DeviceCodec> made_of() {
  return std::make_unique<TileCodec<Tiles>>(Tiles{});
}

}  // namespace

std::unique_ptr<DeviceCodec> make_mx_cuda(const CodecSpec& spec) {
  const std::string& format = spec.text("format");
  if (format == "mxfp8_e4m3") return made_of<BlockTiles<MxForm<E4m3>>>();
  if (format == "mxfp8_e5m2") return made_of<BlockTiles<MxForm<E5m2>>>();
  if (format == "mxfp6_e2m3") return made_of<BlockTiles<MxForm<E2m3>>>();
  if (format == "mxfp6_e3m2") return made_of<BlockTiles<MxForm<E3m2>>>();
  return format == "mxfp4" ? made_of<BlockTiles<MxForm<E2m1>>>() : made_of<NvTiles>();
}

}  // namespace thinwire
