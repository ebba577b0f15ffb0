// Codec block_int on a GPU: the steps and codes of block_int_kernel.cpp, bit by bit.
#include "compression/codecs/block_kernels.h"
#include "compression/codecs/device_blocks.h"
#include "compression/codecs/device_makers.h"
#include "compression/message_key.h"

namespace thinwire {
namespace {

constexpr float kLargestFloat = 0x1.fffffep127f;
constexpr float kSmallestStep = 0x1p-126f;  // its inverse is finite

TW_DEVICE int scale_bytes(BlockScale scale) {
  return scale == BlockScale::kFp32 ? 4 : scale == BlockScale::kE8m0 ? 1 : 2;
}

// A step of at least `wanted` (>= 0; 0 stays 0) that the type can hold, or the type's nearest.
template <int kBits>
TW_DEVICE float storable_step(float wanted, BlockScale scale) {
  constexpr float kHalf = 1 << (kBits - 1);
  if (wanted == 0.0f) return 0.0f;
  const uint32_t bits = bits_of(wanted);
  float step, most;
  switch (scale) {
    case BlockScale::kFp32:
      step = wanted, most = kLargestFloat / kHalf;
      break;
    case BlockScale::kFp16: {
      const float v = wanted < 65504.0f ? wanted : 65504.0f;
      const uint16_t h = float_to_half(v);
      return half_to_float(static_cast<uint16_t>(half_to_float(h) < v ? h + 1 : h));
    }
    case BlockScale::kBf16:
      step = float_of_bits((bits + 0xffffu) & 0xffff0000u), most = 0x1.fep127f / kHalf;
      break;
    default:
      step = float_of_bits((bits + 0x7fffffu) & 0x7f800000u), most = 0x1p127f / kHalf;
  }
  step = step > kSmallestStep ? step : kSmallestStep;
  return step < most ? step : most;
}
// An offset: nearest, and finite.
TW_DEVICE float storable_offset(float v, BlockScale scale) {
  if (scale == BlockScale::kFp32) return v;
  const float most = scale == BlockScale::kFp16 ? 65504.0f : 0x1.fep127f;
  v = v > -most ? v : -most;
  v = v < most ? v : most;
  return scale == BlockScale::kFp16 ? half_to_float(float_to_half(v)) : widen_bits(exact_to_bf16(v), 1);
}

// A number that the type holds exactly, or the canonical NaN. kWhole: in whole tiles.
template <bool kWhole>
TW_DEVICE void write_scale(uint8_t* to, BlockScale scale, float v) {
  const uint32_t bits = bits_of(v), half = scale == BlockScale::kFp16 ? exact_to_half(v) : bits >> 16;
  if (scale == BlockScale::kE8m0)
    to[0] = static_cast<uint8_t>(bits >> 23);
  else if (scale == BlockScale::kFp32)
    kWhole ? store_whole<4>(to, bits) : store_payload<4>(to, bits, 4);
  else
    kWhole ? store_whole<2>(to, half) : store_payload<2>(to, half, 2);
}
// What scale_bits() would load `at` bytes behind a multiple of four, out of the word that it lies in.
TW_DEVICE uint32_t scale_in_word(uint32_t word, int at, BlockScale scale) {
  if (scale == BlockScale::kFp32) return word;
  return word >> at % 4 * 8 & (scale == BlockScale::kE8m0 ? 0xffu : 0xffffu);
}
TW_DEVICE uint32_t scale_bits(const uint8_t* from, BlockScale scale) {
  if (scale == BlockScale::kFp32) return load_payload<4>(from, 4);
  return scale == BlockScale::kE8m0 ? from[0] : load_payload<2>(from, 2);
}
TW_DEVICE float scale_of_bits(uint32_t bits, BlockScale scale) {
  if (scale == BlockScale::kFp32) return float_of_bits(bits);
  if (scale == BlockScale::kE8m0) return power_of_byte(bits);
  return widen_bits(static_cast<uint16_t>(bits), scale == BlockScale::kFp16 ? 2 : 1);
}
TW_DEVICE float read_scale(const uint8_t* from, BlockScale scale) {
  return scale_of_bits(scale_bits(from, scale), scale);
}

// Floats as integers that are ordered alike.
TW_DEVICE uint32_t ordered(float v) {
  const uint32_t bits = bits_of(v);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
TW_DEVICE float of_ordered(uint32_t order) {
  return float_of_bits(order >> 31 != 0 ? order & 0x7fffffffu : ~order);
}

template <int kBits, bool kAsymmetric>
struct IntTiles {
  static constexpr const char *kPack = "pack block_int", *kAbsorb = "absorb block_int";
  static constexpr float kHalf = 1 << (kBits - 1);
  static constexpr float kWhole =
      0x1.8p23f;  // a number that is added to it is rounded, and ends its bits as an integer
  int block, lanes, shift;
  BlockScale scale;
  bool stochastic;
  uint32_t key0 = 0, key1 = 0;

  // Per block: its largest key, then the inverse of its step; the step; asymmetric: its lowest value, then the offset;
  // its highest.
  size_t shared_bytes(int64_t tile) const {
    return static_cast<size_t>(ceil_div(tile, block)) * sizeof(float) * (kAsymmetric ? 4 : 2);
  }
  IntTiles for_message(const Msg& msg) const {
    IntTiles tiles = *this;
    const PhiloxKey key = message_key(msg, RandomPurpose::kRounding);
    tiles.key0 = key.k0, tiles.key1 = key.k1;
    return tiles;
  }
  TW_DEVICE int record() const { return scale_bytes(scale) * (kAsymmetric ? 2 : 1); }
  TW_DEVICE int step_in_record() const { return kAsymmetric ? scale_bytes(scale) : 0; }

  struct Scale {
    float step, inverse, offset;
    bool wrong;
  };
  TW_DEVICE Scale scale_of(uint32_t key, float low, float high) const {
    Scale s = {0.0f, 0.0f, 0.0f, key >= kBadKey};
    if constexpr (kAsymmetric) {
      constexpr float kLevels = 2.0f * kHalf - 1.0f;
      // In halves: the range of a block can be larger than the largest float (an infinite step is bounded).
      const float half_low = low * 0.5f, half_high = high * 0.5f;
      const float middle = half_low + half_high, part = (half_high - half_low) * (1.0f / kLevels);
      s.offset = storable_offset(middle + part, scale);
      const float below = (s.offset - low) / kHalf, above = (high - s.offset) / (kHalf - 1.0f);
      const float wider = below > above ? below : above;
      s.step = storable_step<kBits>(wider > 0.0f ? wider : 0.0f, scale);
    } else {
      const float largest = value_of_key(key);
      const float most = float_of_bits(bits_of(largest) & 0x7fffffffu);
      s.step = storable_step<kBits>(stochastic ? most / (kHalf - 1.0f) : most * (1.0f / kHalf), scale);
      // The sign that is not the element's: -2^(b-1) times it is the element.
      if (!stochastic && scale != BlockScale::kE8m0 && s.step != 0.0f)
        s.step = float_of_bits(bits_of(s.step) | (~bits_of(largest) & 0x80000000u));
    }
    if (s.wrong) s.step = s.offset = float_of_bits(0x7fc00000u);
    s.inverse = s.step == 0.0f ? 0.0f : 1.0f / s.step;
    return s;
  }

  // kWhole + code. The maximum turns NaN into the lowest code: what the blocks of a NaN scale leave behind on the CPU.
  template <bool kStochastic>
  TW_DEVICE static float coded(float v, uint32_t chance) {
    if constexpr (kStochastic) v = floorf(v + fmaf(static_cast<float>(chance), 0x1p-16f, 0x1p-17f));
    return fminf(fmaxf(v, -kHalf), kHalf - 1.0f) + kWhole;
  }
  // The level of code k of four, each of which has grown by kHalf: as the last bits of a float from 2^23 on.
  TW_DEVICE static float level_of(uint32_t codes, int k) {
    constexpr uint32_t kLarge = 0x4b000000;  // 2^23
    uint32_t bits;
    if constexpr (kBits == 8)
      bits = pick_bytes(codes, kLarge, 0x7440u | static_cast<uint32_t>(k));
    else if constexpr (kBits == 4)
      bits = pick_bytes((k % 2 == 0 ? codes : codes >> 4) & 0x0f0fu, kLarge, 0x7440u | static_cast<uint32_t>(k / 2));
    else
      bits = (codes >> k * kBits & ((1u << kBits) - 1u)) | kLarge;
    return float_of_bits(bits) - (0x1p23f + kHalf);
  }
  TW_DEVICE static float decoded_of(float level, float step, float offset) {
    if constexpr (!kAsymmetric) return level * step;
    // The largest levels of a block that spans the floats may round to infinity; NaN passes both bounds.
    float v = fmaf(level, step, offset);
    v = v < -kLargestFloat ? -kLargestFloat : v;
    return v > kLargestFloat ? kLargestFloat : v;
  }

  TW_DEVICE bool encode(unsigned char* shared, TileValues& v, int n, uint64_t first, uint8_t* out, bool decoded) const {
    const int blocks = (n + block - 1) / block;
    auto* keys = reinterpret_cast<unsigned*>(shared);
    auto* inverses = reinterpret_cast<float*>(shared);
    float* steps = inverses + blocks;
    unsigned* lows = keys + 2 * blocks;  // of complements: the highest of those is the lowest
    unsigned* highs = keys + 3 * blocks;
    auto* offsets = reinterpret_cast<float*>(lows);
    if constexpr (kAsymmetric) {  // (zeroed in front of the barrier inside largest_keys)
      for (int b = static_cast<int>(threadIdx.x); b < blocks; b += kTileThreads) lows[b] = highs[b] = 0;
    }
    largest_keys(keys, v, n, block, lanes);
    if constexpr (kAsymmetric) {
      TW_UNROLL
      for (int s = 0; s < kTileSteps; ++s) {
        if (!step_has_any(s, n)) continue;
        uint32_t key[4];
        TW_UNROLL
        for (int k = 0; k < 4; ++k) key[k] = ordered(v[s][k]);
        raise_maxima(highs, key, tile_element(s), n, block, lanes);
        TW_UNROLL
        for (int k = 0; k < 4; ++k) key[k] = ~key[k];
        raise_maxima(lows, key, tile_element(s), n, block, lanes);
      }
      __syncthreads();
    }
    bool bad = false;
    for (int b = static_cast<int>(threadIdx.x); b < blocks; b += kTileThreads) {
      const Scale s =
          scale_of(keys[b], kAsymmetric ? of_ordered(~lows[b]) : 0.0f, kAsymmetric ? of_ordered(highs[b]) : 0.0f);
      bad = bad || s.wrong;
      inverses[b] = s.inverse;
      steps[b] = s.step;
      if constexpr (kAsymmetric) {
        offsets[b] = s.offset;
        write_scale<false>(out + b * record(), scale, s.offset);
        write_scale<false>(out + b * record() + record() / 2, scale, s.step);
      } else {
        write_scale<false>(out + b * record(), scale, s.step);
      }
    }
    __syncthreads();
    uint8_t* codes = out + blocks * record();
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      const int i = tile_element(s);
      uint32_t chance[4] = {}, q[4] = {};
      if (stochastic) draw_four(key0, key1, first + static_cast<uint64_t>(i), kRounding, chance);
      TW_UNROLL
      for (int k = 0; k < 4; ++k) {
        if (i + k >= n) continue;
        const int b = (i + k) / block;
        const float offset = kAsymmetric ? offsets[b] : 0.0f;
        const float x = kAsymmetric ? v[s][k] - offset : v[s][k];
        const float y = x * inverses[b], code = stochastic ? coded<true>(y, chance[k]) : coded<false>(y, 0);
        q[k] = bits_of(code);
        if (decoded) v[s][k] = decoded_of(code - kWhole, steps[b], offset);
      }
      store_codes<kBits>(codes, i, n, q);
    }
    return bad;
  }

  TW_DEVICE bool decode(const uint8_t* in, int n, TileValues& v) const {
    const uint8_t* codes = in + (n + block - 1) / block * record();
    bool good = true;
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      const int i = tile_element(s);
      uint32_t q[4];
      load_codes<kBits>(codes, i, n, q);
      float step = 0.0f, offset = 0.0f;
      TW_UNROLL
      for (int k = 0; k < 4; ++k) {
        v[s][k] = 0.0f;
        if (i + k >= n) continue;
        if (k == 0 || lanes == 0) {  // else the four are in one block
          const uint8_t* at = in + (i + k) / block * record();
          if constexpr (kAsymmetric) offset = read_scale(at, scale);
          step = read_scale(kAsymmetric ? at + record() / 2 : at, scale) + 0.0f;  // -0 counts as 0
          good = good && !is_infinite(step) && !is_infinite(offset);
        }
        const int code = static_cast<int>(q[k] << (32 - kBits)) >> (32 - kBits);
        v[s][k] = decoded_of(static_cast<float>(code), step, offset);
      }
    }
    return good;
  }

  // ---- whole tiles
  bool takes_whole() const { return shift > 0; }

  TW_DEVICE bool encode_whole(TileValues& v, uint64_t first, uint8_t* out, bool decoded) const {
    uint32_t keys[kTileSteps], lows[kTileSteps], highs[kTileSteps];  // lows: of complements
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      keys[s] = largest_key(v[s]);
      lows[s] = highs[s] = 0;
      TW_UNROLL
      for (int k = 0; kAsymmetric && k < 4; ++k) {
        const uint32_t order = ordered(v[s][k]);
        lows[s] = ~order > lows[s] ? ~order : lows[s];
        highs[s] = order > highs[s] ? order : highs[s];
      }
    }
    block_maxima(keys, shift);
    if constexpr (kAsymmetric) block_maxima(lows, shift), block_maxima(highs, shift);
    const Scale own = scale_of(own_key(keys), kAsymmetric ? of_ordered(~own_key(lows)) : 0.0f,
                               kAsymmetric ? of_ordered(own_key(highs)) : 0.0f);
    if (writes_scale(shift)) {
      uint8_t* to = out + own_block(shift) * record();
      if constexpr (kAsymmetric) write_scale<true>(to, scale, own.offset);
      write_scale<true>(kAsymmetric ? to + record() / 2 : to, scale, own.step);
    }
    uint8_t* codes = out + (kMostDeviceTile >> shift) * record() + own_codes<kBits>();
    if (stochastic)
      put_whole<true, true>(v, first, own, codes);
    else if (decoded)
      put_whole<false, true>(v, first, own, codes);
    else
      put_whole<false, false>(v, first, own, codes);
    return own.wrong;
  }
  template <bool kStochastic, bool kDecoded>
  TW_DEVICE void put_whole(TileValues& v, uint64_t first, const Scale& own, uint8_t* codes) const {
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      uint32_t chance[4] = {}, q[4];
      if constexpr (kStochastic)
        draw_four(key0, key1, first + static_cast<uint64_t>(tile_element(s)), kRounding, chance);
      const float inverse = found_for(s, own.inverse), offset = kAsymmetric ? found_for(s, own.offset) : 0.0f;
      const float step = kDecoded ? found_for(s, own.step) : 0.0f;
      TW_UNROLL
      for (int k = 0; k < 4; ++k) {
        const float x = kAsymmetric ? v[s][k] - offset : v[s][k];
        const float code = coded<kStochastic>(x * inverse, chance[k]);
        q[k] = bits_of(code);
        if constexpr (kDecoded) v[s][k] = decoded_of(code - kWhole, step, offset);
      }
      store_whole_codes<kBits>(codes, s, q);
    }
  }

  struct Part {
    uint32_t codes[kTileSteps];
    uint32_t step, offset;  // the words that those of the block lie in that this thread answers for
  };
  TW_DEVICE PartPlace part_place() const {
    return {(kMostDeviceTile >> shift) * record() + own_codes<kBits>(), own_block(shift) * record()};
  }
  TW_DEVICE void load_part(const uint8_t* payload, const PartPlace& place, Part& part) const {
    load_whole_codes<kBits>(payload + place.codes, part.codes);
    part.offset = kAsymmetric ? load_whole<4>(payload + place.scale / 4 * 4) : 0u;
    part.step = load_whole<4>(payload + (place.scale + step_in_record()) / 4 * 4);
  }
  TW_DEVICE bool decode_part(const Part& part, TileValues& v) const {
    constexpr uint32_t kSigns = (1u + (1u << kBits) + (1u << 2 * kBits) + (1u << 3 * kBits)) << (kBits - 1);
    const int at = own_block(shift) * record();
    const uint32_t step_bits = scale_in_word(part.step, at + step_in_record(), scale);
    const float own = scale_of_bits(step_bits, scale) + 0.0f;  // -0 counts as 0
    const float own_offset = kAsymmetric ? scale_of_bits(scale_in_word(part.offset, at, scale), scale) : 0.0f;
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      const float step = found_for(s, own), offset = kAsymmetric ? found_for(s, own_offset) : 0.0f;
      TW_UNROLL
      for (int k = 0; k < 4; ++k) v[s][k] = decoded_of(level_of(part.codes[s] ^ kSigns, k), step, offset);
    }
    return !is_infinite(own) && !is_infinite(own_offset);
  }
};

template <int kBits>
std::unique_ptr<DeviceCodec> made(const BlockForm& form) {
  const int block = static_cast<int>(form.block), lanes = lanes_of_block(form.block), shift = whole_shift(form.block);
  if (form.asymmetric)
    return std::make_unique<TileCodec<IntTiles<kBits, true>>>(
        IntTiles<kBits, true>{block, lanes, shift, form.scale, form.stochastic});
  return std::make_unique<TileCodec<IntTiles<kBits, false>>>(
      IntTiles<kBits, false>{block, lanes, shift, form.scale, form.stochastic});
}

}  // namespace

std::unique_ptr<DeviceCodec> make_block_int_cuda(const CodecSpec& spec) {
  const BlockForm form = block_int_form(spec);
  if (form.block > kMostDeviceTile) return nullptr;
  switch (form.bits) {
    case 2:
      return made<2>(form);
    case 4:
      return made<4>(form);
    case 6:
      return made<6>(form);
    default:
      return made<8>(form);
  }
}

}  // namespace thinwire
