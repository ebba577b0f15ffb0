// Levels for normal numbers with a scale per block; compiled once per instruction set.
#include "compression/codecs/lloyd_max_kernel.h"

#include "compression/codecs/block_simd.h"

namespace thinwire::TW_ISA {
namespace {

// Levels of a standard normal distribution's magnitudes, and the magnitudes between them in units of the mean one,
// sqrt(2 / pi): midpoints of levels, each level the mean of what lies between its thresholds.
template <int Bits>
struct Table;
template <>
struct Table<2> {
  static constexpr float kLevels[] = {0.45278003f, 1.51041761f};
  static constexpr float kThresholds[] = {1.23025168f};
};
template <>
struct Table<3> {
  static constexpr float kLevels[] = {0.24509418f, 0.75600528f, 1.34390928f, 2.1519457f};
  static constexpr float kThresholds[] = {0.62734605f, 1.3159263f, 2.19070224f};
};
template <>
struct Table<4> {
  static constexpr float kLevels[] = {0.12839503f, 0.3880483f,  0.65675912f, 0.94234046f,
                                      1.2562312f,  1.61804639f, 2.06901723f, 2.73258957f};
  static constexpr float kThresholds[] = {0.32363286f, 0.65473595f, 1.00208705f, 1.37775047f,
                                          1.80118636f, 2.31052448f, 3.00896084f};
};

constexpr float kLargestScale = 0x1.fcp+125f;
constexpr uint16_t kLargestHead = 0x7e7e;  // in bf16

// Level k in lane k, over and over.
template <int Bits>
TW_INLINE VecF magnitudes() {
  float v[kLanes];
  for (int i = 0; i < kLanes; ++i) v[i] = Table<Bits>::kLevels[i % (1 << (Bits - 1))];
  return load(v);
}
TW_INLINE VecF look_up(VecF table, VecI lane) {
#ifdef __AVX512F__
  return (VecF)_mm512_permutexvar_ps((__m512i)lane, (__m512)table);
#else
  return (VecF)_mm256_permutevar8x32_ps((__m256)table, (__m256i)lane);
#endif
}

// Number of thresholds that y reaches.
template <int Bits>
TW_INLINE VecI rank_of(VecF y) {
  VecI rank{};
  for (const float t : Table<Bits>::kThresholds) rank -= y >= splat(t);
  return rank;
}

// The code of an element v of that rank.
template <int Bits>
TW_INLINE VecI with_sign(VecI rank, VecF v) {
  return rank | ((VecI)v >> 31 & (1 << (Bits - 1)));
}

// ---- scales --------------------------------------------------------------------------------------------------------
// Sums over a block in 16 lanes, element i in lane i % 16, and the lanes pairwise: the same in every instruction set.
struct Lanes {
  static constexpr int kParts = 16 / kLanes;
  VecF part[kParts] = {};
  // Of 16 / kParts lanes, the first step taken.
  TW_INLINE VecF folded() const {
    VecF sum = part[0];
    if constexpr (kParts == 2) sum += part[kParts - 1];
    return sum;
  }
  TW_INLINE float total() const {
    float v[16];
    for (int j = 0; j < kParts; ++j) store(v + j * kLanes, part[j]);
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) v[i] += v[i + width];
    }
    return v[0];
  }
};

struct BlockScales {
  float inverse_mean;
  float scale;  // NaN where something is not finite
};

// Below this mean the inverse overflows: nothing is left of such a block (a residual keeps it).
constexpr float kSmallestMean = 0x1p-120f;

// One block. Zeros behind the last element count in neither sum: their level is masked out.
template <int Bits>
TW_INLINE BlockScales scales_of(const float* x, int64_t n) {
  const float share = 1.0f / (float)n;
  Lanes mean;
  VecI bad{};
  for (int64_t i = 0; i < n; i += 16) {
    for (int j = 0; j < Lanes::kParts; ++j) {
      const int64_t at = i + j * kLanes, left = n - at;
      const VecF v = magnitude(left >= kLanes ? load(x + at) : left > 0 ? load_first(x + at, left) : VecF{});
      bad |= (VecI)v >= 0x7f800000;
      mean.part[j] = fma(v, splat(share), mean.part[j]);
    }
  }
  if (any(bad)) return {0.0f, __builtin_nanf("")};
  const float m = mean.total();
  if (!(m >= kSmallestMean)) return {0.0f, 0.0f};
  const float inverse = 1.0f / m;
  Lanes with, of;
  for (int64_t i = 0; i < n; i += 16) {
    for (int j = 0; j < Lanes::kParts; ++j) {
      const int64_t at = i + j * kLanes, left = n - at;
      if (left <= 0) continue;
      const VecF y = product(magnitude(left >= kLanes ? load(x + at) : load_first(x + at, left)), splat(inverse));
      VecF level = look_up(magnitudes<Bits>(), rank_of<Bits>(y));
      if (left < kLanes) {
        float l[kLanes] = {}, all[kLanes];
        store(all, level);
        for (int64_t q = 0; q < left; ++q) l[q] = all[q];
        level = load(l);
      }
      with.part[j] = fma(y, level, with.part[j]);
      of.part[j] = fma(level, level, of.part[j]);
    }
  }
  // y is in units of the mean, so neither sum can overflow. The highest level of the largest scale must be finite.
  const float scale = with.total() / of.total() * m;
  return {inverse, scale < kLargestScale ? scale : kLargestScale};
}

// kLanes whole blocks at once, with the same sums; also their codes, where blocks are whole units and `codes` is there.
// False: something is not finite, and what was written is worth nothing.
template <int Bits>
TW_INLINE bool scales_of_blocks(const float* x, int64_t block, float* inverses, float* scales, uint8_t* codes) {
  const VecF share = splat(1.0f / (float)block);
  VecF sums[kLanes], weights[kLanes];
  VecI bad{};
  for (int b = 0; b < kLanes; ++b) {
    Lanes mean;
    for (int64_t i = 0; i < block; i += 16) {
      for (int j = 0; j < Lanes::kParts; ++j) {
        const VecF v = magnitude(load(x + b * block + i + j * kLanes));
        bad |= (VecI)v >= 0x7f800000;
        mean.part[j] = fma(v, share, mean.part[j]);
      }
    }
    sums[b] = mean.folded();
  }
  if (any(bad)) return false;
  const VecF m = lane_sums(sums);
  const VecI there = m >= splat(kSmallestMean);
  store(inverses, there ? splat(1.0f) / m : VecF{});
  const VecF levels = magnitudes<Bits>();
  for (int b = 0; b < kLanes; ++b) {
    const VecF inverse = splat(inverses[b]);
    Lanes with, of;
    const float* const from = x + b * block;
    const auto add = [&](const float* p, int part) TW_INLINE_LAMBDA {
      const VecF v = load(p), y = product(magnitude(v), inverse);
      const VecI rank = rank_of<Bits>(y);
      const VecF level = look_up(levels, rank);
      with.part[part] = fma(y, level, with.part[part]);
      of.part[part] = fma(level, level, of.part[part]);
      return with_sign<Bits>(rank, v);
    };
    if (codes == nullptr) {
      for (int64_t i = 0; i < block; i += 16) {
        for (int j = 0; j < Lanes::kParts; ++j) add(from + i + j * kLanes, j);
      }
    } else {
      for (int64_t i = 0; i < block; i += kUnit, codes += kUnit * Bits / 8) {
        VecI q[kUnitVectors];
        for (int j = 0; j < kUnitVectors; ++j) q[j] = add(from + i + j * kLanes, j % Lanes::kParts);
        store_codes<Bits>(codes, narrow(q));
      }
    }
    sums[b] = with.folded();
    weights[b] = of.folded();
  }
  const VecF scale = product(lane_sums(sums) / lane_sums(weights), m);
  store(scales, there ? (scale < splat(kLargestScale) ? scale : splat(kLargestScale)) : VecF{});
  return true;
}

// A group's largest scale travels in bf16, rounded up, and that of a block as its logarithm below: code c stands for
// head * 2^((c - 255) / 8), 0 for nothing at all.
constexpr float kEighths[] = {1.0f,        1.09050773f, 1.18920712f, 1.29683955f,
                              1.41421356f, 1.54221083f, 1.68179283f, 1.83400809f};
TW_INLINE float power_of_two(int e) {
  const uint32_t bits = (uint32_t)(e + 127) << 23;
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}
TW_INLINE float scale_of(float head, uint8_t code) {
  const int steps = code - 255 + 256;  // > 0
  return code == 0 ? 0.0f : head * power_of_two(steps / 8 - 32) * kEighths[steps % 8];
}
// The nearest codes, in the logarithm; ratio = scale / head in [0, 1], or NaN.
TW_INLINE VecI codes_of(VecF ratio) {
  constexpr float kHalf = 1.04427378f;  // 2^(1/16)
  const VecI bits = (VecI)product(ratio, splat(kHalf));
  const VecF fraction = (VecF)((bits & 0x7fffff) | 0x3f800000);
  VecI code = ((bits >> 23) - 127) * 8 + 255;
  for (int k = 1; k < 8; ++k) code -= fraction >= splat(kEighths[k]);
  code = code > 255 ? splat_i(255) : code;
  return ratio >= splat(0x1p-31f) ? code : VecI{};
}

// ---- encode --------------------------------------------------------------------------------------------------------
template <int Bits>
struct LevelEncoder {
  template <typename Scales>
  TW_INLINE Codes unit(const float* x, const Scales& scales, int64_t) const {
    VecI q[kUnitVectors];
    for (int j = 0; j < kUnitVectors; ++j) {
      const VecF v = load(x + j * kLanes);
      q[j] = with_sign<Bits>(rank_of<Bits>(product(magnitude(v), scales.at(j))), v);
    }
    return narrow(q);
  }
};

template <int Bits>
bool encode_bits(int64_t block, const float* x, int64_t n, uint8_t* out) {
  float inverses[kMaxBlocks], scales[kMaxBlocks + kLanes];
  const int64_t blocks = (n + block - 1) / block;
  uint8_t* const codes = out + 2 + blocks;
  const bool whole_units = block % kUnit == 0;
  int64_t done = 0;  // blocks
  for (; (done + kLanes) * block <= n; done += kLanes) {
    const int64_t first = done * block;
    uint8_t* const to = whole_units ? codes + first * Bits / 8 : nullptr;
    if (!scales_of_blocks<Bits>(x + first, block, inverses + done, scales + done, to)) break;
  }
  for (int64_t b = done; b < blocks; ++b) {
    const int64_t first = b * block, left = n - first;
    const BlockScales s = scales_of<Bits>(x + first, left < block ? left : block);
    inverses[b] = s.inverse_mean;
    scales[b] = s.scale;
  }
  float largest = 0.0f;
  bool good = true;
  for (int64_t b = 0; b < blocks; ++b) {
    good &= scales[b] == scales[b];
    largest = scales[b] > largest ? scales[b] : largest;
  }
  uint32_t bits;
  __builtin_memcpy(&bits, &largest, 4);
  bits = (bits + 0xffffu) & 0xffff0000u;
  const uint16_t half = good ? (uint16_t)(bits >> 16) : 0x7fc0;
  __builtin_memcpy(out, &half, 2);
  float head;
  __builtin_memcpy(&head, &bits, 4);
  const VecF inverse = splat(good && head > 0.0f ? 1.0f / head : 0.0f);
  for (int i = 0; i < kLanes; ++i) scales[blocks + i] = 0.0f;
  for (int64_t b = 0; b < blocks; b += kLanes) {
    int32_t each[kLanes];
    store_u((uint32_t*)each, (VecU)codes_of(product(load(scales + b), inverse)));
    const int64_t count = blocks - b < kLanes ? blocks - b : kLanes;
    for (int64_t i = 0; i < count; ++i) out[2 + b + i] = (uint8_t)each[i];
  }
  LevelEncoder<Bits> body;
  const int64_t first = whole_units ? done * block : 0;
  if (first < n)
    encode_units<Bits>(x + first, n - first, block, inverses + first / block, codes + first * Bits / 8, body);
  return good;
}

bool encode(int bits, int64_t block, const float* x, int64_t n, uint8_t* out) {
  return bits == 2   ? encode_bits<2>(block, x, n, out)
         : bits == 3 ? encode_bits<3>(block, x, n, out)
                     : encode_bits<4>(block, x, n, out);
}

// ---- decode --------------------------------------------------------------------------------------------------------
template <int Bits>
struct LevelDecoder {
  // Every code's level, over and over: lanes are chosen by more bits than a code has.
  TW_INLINE static VecF levels() {
    constexpr int kHalf = 1 << (Bits - 1);
    float v[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const float l = Table<Bits>::kLevels[i % kHalf];
      v[i] = (i & kHalf) != 0 ? -l : l;
    }
    return load(v);
  }
#ifdef __AVX512F__
  TW_INLINE VecF values(VecF step) const {
    return product(levels(), step);
  }
  template <typename Scales>
  TW_INLINE VecF vector(const uint8_t* in, const Scales& scales, int j, int64_t) const {
    return product((VecF)_mm512_permutexvar_ps((__m512i)loose_codes<Bits>(in), (__m512)levels()), scales.at(j));
  }
  TW_INLINE VecF vector(const uint8_t* in, const OneScale& scales, int, int64_t) const {
    return (VecF)_mm512_permutexvar_ps((__m512i)loose_codes<Bits>(in), (__m512)scales.values);
  }
#else
  TW_INLINE VecF values(VecF) const {
    return VecF{};
  }
  template <typename Scales>
  TW_INLINE VecF vector(const uint8_t* in, const Scales& scales, int j, int64_t) const {
    const VecU codes = loose_codes<Bits>(in);
    VecF level = (VecF)_mm256_permutevar8x32_ps((__m256)levels(), (__m256i)codes);
    // Eight lanes hold the levels of four bits without their sign.
    if constexpr (Bits == 4) level = (VecF)((VecU)level ^ (codes << 28 & 0x80000000u));
    return product(level, scales.at(j));
  }
#endif
};

template <int Bits>
bool decode_bits(int64_t block, const uint8_t* in, int64_t n, float* out, bool accumulate) {
  float scales[kMaxBlocks];
  const int64_t blocks = (n + block - 1) / block;
  uint16_t half;
  __builtin_memcpy(&half, in, 2);
  if (half > kLargestHead && half != 0x7fc0) return false;
  const uint32_t bits = (uint32_t)half << 16;
  float head;
  __builtin_memcpy(&head, &bits, 4);
  in += 2;
  for (int64_t b = 0; b < blocks; ++b) scales[b] = half == 0x7fc0 ? head : scale_of(head, in[b]);
  const LevelDecoder<Bits> body;
  if (accumulate) {
    decode_units<true, Bits>(in + blocks, n, block, scales, out, body);
  } else {
    decode_units<false, Bits>(in + blocks, n, block, scales, out, body);
  }
  return true;
}

bool decode(int bits, int64_t block, const uint8_t* in, int64_t n, float* out, bool accumulate) {
  return bits == 2   ? decode_bits<2>(block, in, n, out, accumulate)
         : bits == 3 ? decode_bits<3>(block, in, n, out, accumulate)
                     : decode_bits<4>(block, in, n, out, accumulate);
}

}  // namespace

constinit const LloydMaxKernels lloyd_max_kernels = {encode, decode};

}  // namespace thinwire::TW_ISA
