// Integers with a scale per block: scales, rounding, packing; compiled once per instruction set.
#include "compression/codecs/block_kernels.h"
#include "compression/codecs/block_simd.h"
#include "engine/base/ops/philox_simd.h"

namespace thinwire::TW_ISA {
namespace {

constexpr float kLargestFloat = 0x1.fffffep127f, kLargestBf16 = 0x1.fep127f, kLargestFp16 = 65504.0f;
constexpr float kSmallestStep = 0x1p-126f;  // its inverse is finite
constexpr uint32_t kNan = 0x7fc00000u;

// Bytes of a stored step or offset.
constexpr int64_t scale_size(BlockScale scale) {
  return scale == BlockScale::kFp32 ? 4 : scale == BlockScale::kE8m0 ? 1 : 2;
}

// ---- scales --------------------------------------------------------------------------------------------------------
// The smallest step >= `wanted` that the type can hold, and the largest where there is none; 0 stays 0. wanted >= 0.
template <int Bits>
TW_INLINE VecF storable_step(VecF wanted, BlockScale scale) {
  // The lowest code times the largest step must be finite.
  constexpr float kHalf = 1 << (Bits - 1);
  VecF step;
  switch (scale) {
    case BlockScale::kFp32:
      step = vmin(vmax(wanted, splat(kSmallestStep)), splat(kLargestFloat / kHalf));
      break;
    case BlockScale::kFp16: {
      const VecF v = vmin(wanted, splat(kLargestFp16));
      step = (VecF)TW_V(cvtph_ps)(TW_V(cvtps_ph)((NativeF)v, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC));
      break;
    }
    case BlockScale::kBf16: {
      const VecF v = (VecF)(((VecU)wanted + 0xffffu) & 0xffff0000u);
      step = vmin(vmax(v, splat(kSmallestStep)), splat(kLargestBf16 / kHalf));
      break;
    }
    case BlockScale::kE8m0: {
      const VecF v = (VecF)(((VecU)wanted + 0x7fffffu) & 0x7f800000u);
      step = vmin(vmax(v, splat(kSmallestStep)), splat(0x1p127f / kHalf));
      break;
    }
  }
  return wanted == splat(0.0f) ? splat(0.0f) : step;
}
// The nearest finite offset that the type can hold.
TW_INLINE VecF storable_offset(VecF v, BlockScale scale) {
  if (scale == BlockScale::kFp32) return v;
  const float most = scale == BlockScale::kFp16 ? kLargestFp16 : kLargestBf16;
  v = vmin(vmax(v, splat(-most)), splat(most));
  if (scale == BlockScale::kFp16) {
    Fp16 h[kLanes];
    store(h, v);
    return load(h);
  }
  Bf16 h[kLanes];
  store(h, v);
  return load(h);
}

// Writes `count` (<= kLanes) values, which the type holds exactly, to indices at, at + stride, ... of the scales.
TW_INLINE void write_scales(uint8_t* out, BlockScale scale, int64_t at, int stride, VecF v, int64_t count) {
  if (scale == BlockScale::kFp32) {
    float f[kLanes];
    store(f, v);
    for (int64_t i = 0; i < count; ++i) __builtin_memcpy(out + (at + i * stride) * 4, &f[i], 4);
  } else if (scale == BlockScale::kE8m0) {
    uint32_t u[kLanes];
    store_u(u, (VecU)v >> 23);
    for (int64_t i = 0; i < count; ++i) out[at + i * stride] = (uint8_t)u[i];
  } else {
    uint16_t h[kLanes];
    if (scale == BlockScale::kFp16) {
      store((Fp16*)h, v);
    } else {
      store((Bf16*)h, v);
    }
    if (stride == 1 && count == kLanes) {
      __builtin_memcpy(out + at * 2, h, sizeof h);
      return;
    }
    for (int64_t i = 0; i < count; ++i) __builtin_memcpy(out + (at + i * stride) * 2, &h[i], 2);
  }
}
TW_INLINE VecF read_scales(const uint8_t* in, BlockScale scale, int64_t at, int stride, int64_t count) {
  uint32_t u[kLanes] = {};
  if (scale == BlockScale::kFp32) {
    for (int64_t i = 0; i < count; ++i) __builtin_memcpy(&u[i], in + (at + i * stride) * 4, 4);
    return (VecF)load_u(u);
  }
  if (scale == BlockScale::kE8m0) {
    for (int64_t i = 0; i < count; ++i) u[i] = in[at + i * stride];
    const VecU e = load_u(u);
    const VecU bits = e == 0u ? VecU{} + 0x00400000u : e << 23;  // 2^-127 is subnormal
    return (VecF)(e == 255u ? VecU{} + kNan : bits);
  }
  uint16_t h[kLanes] = {};
  if (stride == 1 && count == kLanes) {
    __builtin_memcpy(h, in + at * 2, sizeof h);
  } else {
    for (int64_t i = 0; i < count; ++i) __builtin_memcpy(&h[i], in + (at + i * stride) * 2, 2);
  }
  return scale == BlockScale::kFp16 ? load((const Fp16*)h) : load((const Bf16*)h);
}

// ---- rounding ------------------------------------------------------------------------------------------------------
TW_INLINE VecI widen(const uint16_t* p) {
  return (VecI)TW_V(cvtepu16_epi32)(load_half(p));
}

// Where fp16 cannot hold a block's step, quotients may be too large for int32, and all would convert to the lowest one.
// NaN passes.
TW_INLINE VecF in_int_range(VecF v) {
  return at_most(v, 0x1p30f);
}

// A rounding's prepare(i) comes before round() of any of the elements [i, i + kUnit).
// Nearest, ties to even.
struct Nearest {
  TW_INLINE explicit Nearest(const BlockNoise&) {}
  TW_INLINE void prepare(int64_t) {}
  TW_INLINE VecI round(VecF v, int64_t) const { return to_nearest(v); }
};
struct NearestOfHuge : Nearest {
  using Nearest::Nearest;
  TW_INLINE VecI round(VecF v, int64_t) const { return to_nearest(in_int_range(v)); }
};
// Up with the probability of the fraction, otherwise down: floor(v + (k + 0.5) / 65536), k 16 random bits.
struct Stochastic {
  static constexpr uint32_t kRoundingPurpose = 5;  // RandomPurpose::kRounding
  const BlockNoise& noise;
  int64_t from = 0, to = 0;  // elements that `buffer` covers
  uint16_t buffer[kChunk + kHalvesSlack];
  TW_INLINE explicit Stochastic(const BlockNoise& n) : noise(n) {}
  TW_INLINE void prepare(int64_t i) {
    if (i >= from && i + kUnit <= to) return;
    const uint16_t* const numbers =
        random_halves(noise.key0, noise.key1, kRoundingPurpose, noise.first + (uint64_t)i, kChunk, buffer);
    from = i - (numbers - buffer);
    to = i + kChunk;
  }
  TW_INLINE VecI round(VecF v, int64_t i) const {
    const VecF u = fma(__builtin_convertvector(widen(buffer + (i - from)), VecF), splat(0x1p-16f), splat(0x1p-17f));
    return to_nearest(in_int_range(vfloor(v + u)));
  }
};

// ---- encode --------------------------------------------------------------------------------------------------------
template <int Bits, bool Asymmetric, typename Rounding>
struct IntEncoder {
  Rounding rounding;
  const float* offsets;  // per block
  int64_t block;

  template <typename Scales>
  TW_INLINE Codes unit(const float* x, const Scales& scales, int64_t first) {
    constexpr int8_t kLowest = -(1 << (Bits - 1)), kHighest = (1 << (Bits - 1)) - 1;
    float offset[Asymmetric ? kUnit : 1];
    if constexpr (Asymmetric) spread(offsets, block, first, kUnit, offset);
    rounding.prepare(first);
    VecI q[kUnitVectors];
    for (int j = 0; j < kUnitVectors; ++j) {
      VecF v = load(x + j * kLanes);
      if constexpr (Asymmetric) v = v - load(offset + j * kLanes);
      q[j] = rounding.round(product(v, scales.at(j)), first + j * kLanes);
    }
    const Codes codes = narrow(q);
    return Bits == 8 ? codes : bounded(codes, kLowest, kHighest);
  }
};

struct Seen {
  bool finite;
  bool huge;  // some block wants a larger step than fp16 has
};
// Writes the steps of all blocks, and their inverses for encoding, from the blocks' keys.
template <int Bits>
TW_INLINE Seen symmetric_scales(const BlockForm& form, const uint32_t* keys, int64_t blocks, float* inverses,
                                uint8_t* out) {
  constexpr float kHalf = 1 << (Bits - 1);
  const bool with_sign = !form.stochastic && form.scale != BlockScale::kE8m0;
  const float levels = form.stochastic ? kHalf - 1.0f : kHalf;
  VecI bad{}, huge{};
  for (int64_t b = 0; b < blocks; b += kLanes) {
    const VecU key = load_u(keys + b);
    const VecI wrong = key >= kBadKey;
    const VecF largest = value_of_key(key), wanted = magnitude(largest) / splat(levels);
    huge |= wanted > splat(kLargestFp16);
    VecF step = storable_step<Bits>(wanted, form.scale);
    if (with_sign) {  // the opposite of the largest element's sign: that element is -2^(bits-1) steps
      const VecU sign = ~(VecU)largest & 0x80000000u;
      step = step == splat(0.0f) ? step : (VecF)((VecU)step | sign);
    }
    step = wrong ? (VecF)(VecU{} + kNan) : step;
    bad |= wrong;
    store(inverses + b, step == splat(0.0f) ? splat(0.0f) : splat(1.0f) / step);
    write_scales(out, form.scale, b, 1, step, blocks - b < kLanes ? blocks - b : kLanes);
  }
  return {!any(bad), form.scale == BlockScale::kFp16 && any(huge)};
}

struct Range {
  float low, high;
};
TW_INLINE Range range_of(const float* x, int64_t n) {
  VecF low = splat(kLargestFloat), high = splat(-kLargestFloat);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    low = vmin(load(x + i), low);
    high = vmax(load(x + i), high);
  }
  if (i < n) {
    low = vmin(load_first(x + i, n - i, kLargestFloat), low);
    high = vmax(load_first(x + i, n - i, -kLargestFloat), high);
  }
  return {-reduce_max(-low), reduce_max(high)};
}

// Writes offsets and steps of all blocks, and keeps offsets and inverses for encoding. Whether all was finite.
template <int Bits>
TW_INLINE bool asymmetric_scales(const BlockForm& form, const uint32_t* keys, const float* x, int64_t n, int64_t blocks,
                                 float* offsets, float* inverses, uint8_t* out) {
  constexpr float kHalf = 1 << (Bits - 1), kLevels = 2.0f * kHalf - 1.0f;
  float lows[kLanes], highs[kLanes];
  VecI bad{};
  for (int64_t b = 0; b < blocks; b += kLanes) {
    const int64_t count = blocks - b < kLanes ? blocks - b : kLanes;
    store(lows, VecF{});
    store(highs, VecF{});
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = (b + i) * form.block, left = n - first;
      const Range range = range_of(x + first, left < form.block ? left : form.block);
      lows[i] = range.low;
      highs[i] = range.high;
    }
    const VecI wrong = load_u(keys + b) >= kBadKey;
    bad |= wrong;
    // Halved first: the range of a block can be larger than the largest float. storable_step bounds an infinite step.
    const VecF low = load(lows), high = load(highs);
    const VecF half_low = product(low, splat(0.5f)), half_high = product(high, splat(0.5f));
    const VecF middle = half_low + half_high;
    VecF offset = middle + product(half_high - half_low, splat(1.0f / kLevels));
    offset = storable_offset(offset, form.scale);
    const VecF below = (offset - low) / splat(kHalf), above = (high - offset) / splat(kHalf - 1.0f);
    VecF step = storable_step<Bits>(vmax(vmax(below, above), splat(0.0f)), form.scale);
    const VecF nan = (VecF)(VecU{} + kNan);
    step = wrong ? nan : step;
    offset = wrong ? nan : offset;
    store(offsets + b, offset);
    store(inverses + b, step == splat(0.0f) ? splat(0.0f) : splat(1.0f) / step);
    write_scales(out, form.scale, 2 * b, 2, offset, count);
    write_scales(out, form.scale, 2 * b + 1, 2, step, count);
  }
  return !any(bad);
}

template <int Bits, bool Asymmetric, typename Rounding>
bool encode_as(const BlockForm& form, const BlockNoise& noise, const float* x, int64_t n, uint8_t* out) {
  uint32_t keys[kMaxBlocks];
  float inverses[kMaxBlocks], offsets[Asymmetric ? kMaxBlocks + kUnit : 1];
  const int64_t blocks = block_keys(x, n, form.block, keys);
  uint8_t* codes = out + blocks * scale_size(form.scale) * (Asymmetric ? 2 : 1);
  Seen seen{};
  if constexpr (Asymmetric) {
    seen.finite = asymmetric_scales<Bits>(form, keys, x, n, blocks, offsets, inverses, out);
    // A unit that reaches beyond the last element reads offsets of blocks that are not there.
    for (int64_t b = blocks; b < blocks + kUnit; ++b) offsets[b] = 0.0f;
  } else {
    seen = symmetric_scales<Bits>(form, keys, blocks, inverses, out);
    if (seen.huge && !form.stochastic) {
      IntEncoder<Bits, false, NearestOfHuge> body{NearestOfHuge(noise), offsets, form.block};
      encode_units<Bits>(x, n, form.block, inverses, codes, body);
      return seen.finite;
    }
  }
  IntEncoder<Bits, Asymmetric, Rounding> body{Rounding(noise), offsets, form.block};
  encode_units<Bits>(x, n, form.block, inverses, codes, body);
  return seen.finite;
}

template <int Bits>
bool encode_bits(const BlockForm& form, const BlockNoise& noise, const float* x, int64_t n, uint8_t* out) {
  if (form.asymmetric) {
    return form.stochastic ? encode_as<Bits, true, Stochastic>(form, noise, x, n, out)
                           : encode_as<Bits, true, NearestOfHuge>(form, noise, x, n, out);
  }
  return form.stochastic ? encode_as<Bits, false, Stochastic>(form, noise, x, n, out)
                         : encode_as<Bits, false, Nearest>(form, noise, x, n, out);
}

bool encode(const BlockForm& form, const BlockNoise& noise, const float* x, int64_t n, uint8_t* out) {
  return form.bits == 2   ? encode_bits<2>(form, noise, x, n, out)
         : form.bits == 4 ? encode_bits<4>(form, noise, x, n, out)
         : form.bits == 6 ? encode_bits<6>(form, noise, x, n, out)
                          : encode_bits<8>(form, noise, x, n, out);
}

// ---- decode --------------------------------------------------------------------------------------------------------
template <int Bits, bool Asymmetric>
struct IntDecoder {
  const float* offsets;
  int64_t block;

  // For units with one step: lane i is what code i decodes to. Looked up only on AVX-512 with 4 or 2 bits.
  TW_INLINE VecF values(VecF step) const {
#ifdef __AVX512F__
    if constexpr (Bits == 4 && !Asymmetric) {
      const __m512 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
      return product((VecF)codes, step);
    }
    if constexpr (Bits == 2 && !Asymmetric) {
      const __m512 codes = _mm512_setr_ps(0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1);
      return product((VecF)codes, step);
    }
#endif
    return step;
  }
  template <typename Scales>
  TW_INLINE VecF vector(const uint8_t* in, const Scales& scales, int j, int64_t first) const {
    const VecF v = __builtin_convertvector(signed_codes<Bits>(in), VecF);
    if constexpr (Asymmetric) {
      float offset[kLanes];
      spread(offsets, block, first, kLanes, offset);
      // The largest levels of a block that spans the floats may round to infinity; NaN passes both bounds.
      return at_most(at_least(fma(v, scales.at(j), load(offset)), -kLargestFloat), kLargestFloat);
    } else {
      return product(v, scales.at(j));
    }
  }
#ifdef __AVX512F__
  TW_INLINE VecF vector(const uint8_t* in, const OneScale& scales, int j, int64_t first) const {
    if constexpr ((Bits == 4 || Bits == 2) && !Asymmetric) {
      return (VecF)_mm512_permutexvar_ps((__m512i)loose_codes<Bits>(in), (__m512)scales.values);
    } else {
      return vector<OneScale>(in, scales, j, first);
    }
  }
#endif
};

template <int Bits, bool Asymmetric>
bool decode_as(const BlockForm& form, const uint8_t* in, int64_t n, float* out, bool accumulate) {
  float steps[kMaxBlocks], offsets[Asymmetric ? kMaxBlocks + kUnit : 1];
  const int64_t blocks = (n + form.block - 1) / form.block;
  VecI bad{};
  for (int64_t b = 0; b < blocks; b += kLanes) {
    const int64_t count = blocks - b < kLanes ? blocks - b : kLanes;
    // + 0 makes 0 of -0, which no encoder writes and whose sign some of the loops below would lose.
    const VecF step = read_scales(in, form.scale, Asymmetric ? 2 * b + 1 : b, Asymmetric ? 2 : 1, count) + VecF{};
    bad |= magnitude(step) == splat(__builtin_inff());
    store(steps + b, step);
    if constexpr (Asymmetric) {
      const VecF offset = read_scales(in, form.scale, 2 * b, 2, count);
      bad |= magnitude(offset) == splat(__builtin_inff());
      store(offsets + b, offset);
    }
  }
  if (any(bad)) return false;
  if constexpr (Asymmetric) {
    for (int64_t b = blocks; b < blocks + kUnit; ++b) offsets[b] = 0.0f;
  }
  const IntDecoder<Bits, Asymmetric> body{offsets, form.block};
  in += blocks * scale_size(form.scale) * (Asymmetric ? 2 : 1);
  decode_units<Bits>(in, n, form.block, steps, out, accumulate, body);
  return true;
}

template <int Bits>
bool decode_bits(const BlockForm& form, const uint8_t* in, int64_t n, float* out, bool accumulate) {
  return form.asymmetric ? decode_as<Bits, true>(form, in, n, out, accumulate)
                         : decode_as<Bits, false>(form, in, n, out, accumulate);
}

bool decode(const BlockForm& form, const uint8_t* in, int64_t n, float* out, bool accumulate) {
  return form.bits == 2   ? decode_bits<2>(form, in, n, out, accumulate)
         : form.bits == 4 ? decode_bits<4>(form, in, n, out, accumulate)
         : form.bits == 6 ? decode_bits<6>(form, in, n, out, accumulate)
                          : decode_bits<8>(form, in, n, out, accumulate);
}

}  // namespace

constinit const BlockKernels block_int_kernels = {encode, decode};

}  // namespace thinwire::TW_ISA
