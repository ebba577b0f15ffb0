// Codec e3m0 on a GPU: the scales and codes of e3m0_kernel.cpp, bit by bit.
#include "compression/codecs/device_blocks.h"
#include "compression/codecs/device_makers.h"

namespace thinwire {
namespace {

// With bf16 scales.
struct PowerForm {
  static constexpr const char *kPack = "pack e3m0", *kAbsorb = "absorb e3m0";
  static constexpr int kBits = 4, kScaleBytes = 2;
  int block, lanes, shift;

  TW_DEVICE static StoredScale scale_of(uint32_t key) {
    const uint32_t top = key >> 1;
    float scale = float_of_bits((top + 0x7fffu + (top >> 16 & 1u)) & 0xffff0000u);
    scale = scale > 0x1p-126f ? scale : 0x1p-126f;
    scale = scale < 0x1.fep127f ? scale : 0x1.fep127f;
    if (top == 0) scale = 0.0f;
    if (key >= kBadKey) scale = float_of_bits(0x7fc00000u);
    return {bits_of(scale) >> 16, top == 0 ? 0.0f : 1.0f / scale, key >= kBadKey};
  }
  TW_DEVICE static float step_of(uint32_t bits) { return float_of_bits(bits << 16); }
  TW_DEVICE static bool possible(uint32_t bits) { return bits < 0x7f80u || bits == 0x7fc0u; }
  TW_DEVICE static uint32_t code_of(float v, float inverse) {
    const float y = float_of_bits(bits_of(v) & 0x7fffffffu) * inverse;
    const int power = static_cast<int>(((bits_of(y) & 0x7fffffffu) + 0x400000u) >> 23) - 120;
    const int least = y >= 0x1p-7f ? 1 : 0, up = power > least ? power : least;
    return static_cast<uint32_t>(up > 7 ? 7 : up) | (bits_of(v) >> 28 & 8u);
  }
  TW_DEVICE static float level_of(uint32_t code) {
    const auto spread = static_cast<uint32_t>(static_cast<int>(code << 28) >> 5);  // the sign again in five bits
    return float_of_bits(spread & 0x83800000u) * 0x1p120f + 0.0f;                  // there is no -0
  }
  TW_DEVICE static void values_of(const uint32_t (&codes)[kTileSteps], const float (&steps)[kTileSteps],
                                  TileValues& v) {
    get_values<kBits>(codes, steps, v, [](uint32_t code) { return level_of(code); });
  }
};

}  // namespace

std::unique_ptr<DeviceCodec> make_e3m0_cuda(const CodecSpec& spec) {
  const int64_t said = spec.integer("block"), block = said == 0 ? 128 : said;
  if (block > kMostDeviceTile) return nullptr;
  using Tiles = BlockTiles<PowerForm>;
  return std::make_unique<TileCodec<Tiles>>(
      Tiles{{static_cast<int>(block), lanes_of_block(block), whole_shift(block)}});
}

}  // namespace thinwire
