// Codec e3m0 on a GPU: the scales and codes of e3m0_kernel.cpp, bit by bit.
#include "compression/codecs/device_blocks.h"
#include "compression/codecs/device_makers.h"

namespace thinwire {
namespace {

struct PowerTiles {
  static constexpr const char *kPack = "pack e3m0", *kAbsorb = "absorb e3m0";
  int block, lanes, shift;

  // Per block: its largest key, then the inverse of its scale; the scale.
  size_t shared_bytes(int64_t tile) const { return static_cast<size_t>(ceil_div(tile, block)) * 2 * sizeof(float); }
  PowerTiles for_message(const Msg&) const { return *this; }

  TW_DEVICE static float level_of(uint32_t code) {
    const auto spread = static_cast<uint32_t>(static_cast<int>(code << 28) >> 5);  // the sign again in five bits
    return float_of_bits(spread & 0x83800000u) * 0x1p120f + 0.0f;                  // there is no -0
  }

  struct Scale {
    float scale, inverse;
    bool wrong;
  };
  TW_DEVICE static Scale scale_of(uint32_t key) {
    const uint32_t top = key >> 1;
    float scale = float_of_bits((top + 0x7fffu + (top >> 16 & 1u)) & 0xffff0000u);
    scale = scale > 0x1p-126f ? scale : 0x1p-126f;
    scale = scale < 0x1.fep127f ? scale : 0x1.fep127f;
    if (top == 0) scale = 0.0f;
    if (key >= kBadKey) scale = float_of_bits(0x7fc00000u);
    return {scale, top == 0 ? 0.0f : 1.0f / scale, key >= kBadKey};
  }
  TW_DEVICE static uint32_t code_of(float v, float inverse) {
    const float y = float_of_bits(bits_of(v) & 0x7fffffffu) * inverse;
    const int power = static_cast<int>(((bits_of(y) & 0x7fffffffu) + 0x400000u) >> 23) - 120;
    const int least = y >= 0x1p-7f ? 1 : 0, up = power > least ? power : least;
    return static_cast<uint32_t>(up > 7 ? 7 : up) | (bits_of(v) >> 28 & 8u);
  }

  TW_DEVICE bool encode(unsigned char* shared, TileValues& v, int n, uint64_t, uint8_t* out, bool) const {
    const int blocks = (n + block - 1) / block;
    auto* keys = reinterpret_cast<unsigned*>(shared);
    auto* inverses = reinterpret_cast<float*>(shared);
    float* scales = inverses + blocks;
    largest_keys(keys, v, n, block, lanes);
    bool bad = false;
    for (int b = static_cast<int>(threadIdx.x); b < blocks; b += kTileThreads) {
      const Scale s = scale_of(keys[b]);
      bad = bad || s.wrong;
      scales[b] = s.scale;
      inverses[b] = s.inverse;
      store_payload<2>(out + b * 2, bits_of(s.scale) >> 16, 2);
    }
    __syncthreads();
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      const int i = tile_element(s);
      uint32_t q[4] = {};
      TW_UNROLL
      for (int k = 0; k < 4; ++k) {
        if (i + k >= n) continue;
        const int b = (i + k) / block;
        q[k] = code_of(v[s][k], inverses[b]);
        v[s][k] = level_of(q[k]) * scales[b];
      }
      store_codes<4>(out + blocks * 2, i, n, q);
    }
    return bad;
  }

  TW_DEVICE bool decode(const uint8_t* in, int n, TileValues& v) const {
    const uint8_t* codes = in + (n + block - 1) / block * 2;
    bool good = true;
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      const int i = tile_element(s);
      uint32_t q[4];
      load_codes<4>(codes, i, n, q);
      float scale = 0.0f;
      TW_UNROLL
      for (int k = 0; k < 4; ++k) {
        v[s][k] = 0.0f;
        if (i + k >= n) continue;
        if (k == 0 || lanes == 0) {  // else the four are in one block
          const uint32_t half = load_payload<2>(in + (i + k) / block * 2, 2);
          good = good && (half < 0x7f80u || half == 0x7fc0u);
          scale = float_of_bits(half << 16);
        }
        v[s][k] = level_of(q[k]) * scale;
      }
    }
    return good;
  }

  // ---- whole tiles
  bool takes_whole() const { return shift > 0; }

  TW_DEVICE bool encode_whole(TileValues& v, uint64_t, uint8_t* out, bool decoded) const {
    uint32_t keys[kTileSteps];
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) keys[s] = largest_key(v[s]);
    block_maxima(keys, shift);
    const Scale own = scale_of(own_key(keys));
    if (writes_scale(shift)) store_whole<2>(out + own_block(shift) * 2, bits_of(own.scale) >> 16);
    uint8_t* codes = out + (kMostDeviceTile >> shift) * 2 + own_codes<4>();
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      const float inverse = found_for(s, own.inverse), scale = decoded ? found_for(s, own.scale) : 0.0f;
      uint32_t q[4];
      TW_UNROLL
      for (int k = 0; k < 4; ++k) {
        q[k] = code_of(v[s][k], inverse);
        if (decoded) v[s][k] = level_of(q[k]) * scale;
      }
      store_whole_codes<4>(codes, s, q);
    }
    return own.wrong;
  }

  struct Part {
    uint32_t codes[kTileSteps];
    uint32_t scale;  // bits of the block that this thread answers for
  };
  TW_DEVICE PartPlace part_place() const {
    return {(kMostDeviceTile >> shift) * 2 + own_codes<4>(), own_block(shift) * 2};
  }
  TW_DEVICE void load_part(const uint8_t* payload, const PartPlace& place, Part& part) const {
    load_whole_codes<4>(payload + place.codes, part.codes);
    part.scale = load_whole<2>(payload + place.scale);
  }
  TW_DEVICE bool decode_part(const Part& part, TileValues& v) const {
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      const float scale = found_for(s, float_of_bits(part.scale << 16));
      TW_UNROLL
      for (int k = 0; k < 4; ++k) v[s][k] = level_of(part.codes[s] >> 4 * k) * scale;
    }
    return part.scale < 0x7f80u || part.scale == 0x7fc0u;
  }
};

}  // namespace

std::unique_ptr<DeviceCodec> make_e3m0_cuda(const CodecSpec& spec) {
  const int64_t said = spec.integer("block"), block = said == 0 ? 128 : said;
  if (block > kMostDeviceTile) return nullptr;
  return std::make_unique<TileCodec<PowerTiles>>(
      PowerTiles{static_cast<int>(block), lanes_of_block(block), whole_shift(block)});
}

}  // namespace thinwire
