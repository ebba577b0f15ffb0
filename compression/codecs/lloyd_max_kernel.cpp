// Codec lloyd_max: levels for normally distributed numbers, a scale per block; compiled once per instruction set.
#include "compression/codecs/block_kernels.h"
#include "compression/codecs/block_simd.h"
#include "compression/codecs/log_scale_simd.h"

namespace thinwire::TW_ISA {
namespace {

// Levels for the magnitude of a standard normal number, each the mean of what lies between its thresholds. Thresholds
// are the midpoints of levels, as multiples of the mean magnitude, sqrt(2 / pi).
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

// Level k in lane k, repeated to fill the lanes.
template <int Bits>
TW_INLINE VecF level_table() {
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

// The level of a magnitude y, in units of the mean: how many thresholds it reaches.
template <int Bits>
TW_INLINE VecI level_index(VecF y) {
  VecI index{};
  for (const float t : Table<Bits>::kThresholds) index -= y >= splat(t);
  return index;
}

// The code of an element v: its level's index below its sign.
template <int Bits>
TW_INLINE VecI with_sign(VecI index, VecF v) {
  return index | ((VecI)v >> 31 & (1 << (Bits - 1)));
}

// ---- scales --------------------------------------------------------------------------------------------------------
struct BlockScales {
  float inverse_mean;
  float scale;  // NaN where something is not finite
};

// One block; its scale is the least-squares fit of levels to magnitudes. Lanes behind the last element get level 0.
template <int Bits>
TW_INLINE BlockScales scales_of(const float* x, int64_t n) {
  const Size size = size_of_block(x, n);
  if (!finite(size.largest)) return {0.0f, __builtin_nanf("")};
  const float m = size.mean;
  if (!(m >= kSmallestMean)) return {0.0f, 0.0f};
  const float inverse = 1.0f / m;
  Lanes dots, squares;
  for (int64_t i = 0; i < n; i += 16) {
    for (int j = 0; j < Lanes::kParts; ++j) {
      const int64_t at = i + j * kLanes, left = n - at;
      if (left <= 0) continue;
      const VecF y = product(magnitude(left >= kLanes ? load(x + at) : load_first(x + at, left)), splat(inverse));
      VecF level = look_up(level_table<Bits>(), level_index<Bits>(y));
      if (left < kLanes) {
        float l[kLanes] = {}, all[kLanes];
        store(all, level);
        for (int64_t q = 0; q < left; ++q) l[q] = all[q];
        level = load(l);
      }
      dots.part[j] = fma(y, level, dots.part[j]);
      squares.part[j] = fma(level, level, squares.part[j]);
    }
  }
  // y is in units of the mean, so neither sum can overflow. Up to kLargestScale, scale * level is finite, too.
  const float scale = dots.total() / squares.total() * m;
  return {inverse, scale < kLargestScale ? scale : kLargestScale};
}

// The same for kLanes whole blocks at once. Also writes their codes unless `codes` is nullptr; blocks are then whole
// units. False: an element is not finite, and what was written is to be overwritten.
template <int Bits>
TW_INLINE bool scales_of_blocks(const float* x, int64_t block, float* inverses, float* scales, uint8_t* codes) {
  float largest[kLanes];
  const VecF m = sizes_of_blocks(x, block, largest);
  for (const float v : largest) {
    if (!finite(v)) return false;
  }
  VecF block_dots[kLanes], block_squares[kLanes];
  const VecI kept = m >= splat(kSmallestMean);
  store(inverses, kept ? splat(1.0f) / m : VecF{});
  const VecF levels = level_table<Bits>();
  for (int b = 0; b < kLanes; ++b) {
    const VecF inverse = splat(inverses[b]);
    Lanes dots, squares;
    const float* const from = x + b * block;
    const auto add_and_code = [&](const float* p, int part) TW_INLINE_LAMBDA {
      const VecF v = load(p), y = product(magnitude(v), inverse);
      const VecI index = level_index<Bits>(y);
      const VecF level = look_up(levels, index);
      dots.part[part] = fma(y, level, dots.part[part]);
      squares.part[part] = fma(level, level, squares.part[part]);
      return with_sign<Bits>(index, v);
    };
    if (codes == nullptr) {
      for (int64_t i = 0; i < block; i += 16) {
        for (int j = 0; j < Lanes::kParts; ++j) add_and_code(from + i + j * kLanes, j);
      }
    } else {
      for (int64_t i = 0; i < block; i += kUnit, codes += kUnit * Bits / 8) {
        VecI q[kUnitVectors];
        for (int j = 0; j < kUnitVectors; ++j) q[j] = add_and_code(from + i + j * kLanes, j % Lanes::kParts);
        store_codes<Bits>(codes, narrow(q));
      }
    }
    block_dots[b] = dots.folded();
    block_squares[b] = squares.folded();
  }
  const VecF scale = product(lane_sums(block_dots) / lane_sums(block_squares), m);
  store(scales, kept ? (scale < splat(kLargestScale) ? scale : splat(kLargestScale)) : VecF{});
  return true;
}

// ---- encode --------------------------------------------------------------------------------------------------------
template <int Bits>
struct LevelEncoder {
  template <typename Scales>
  TW_INLINE Codes unit(const float* x, const Scales& inverse_means, int64_t) const {
    VecI q[kUnitVectors];
    for (int j = 0; j < kUnitVectors; ++j) {
      const VecF v = load(x + j * kLanes);
      q[j] = with_sign<Bits>(level_index<Bits>(product(magnitude(v), inverse_means.at(j))), v);
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
  int64_t done = 0;  // blocks whose scales are there, and their codes where blocks are whole units
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
  const bool good = write_scales(scales, blocks, out);
  LevelEncoder<Bits> body;
  const int64_t first = whole_units ? done * block : 0;
  if (first < n)
    encode_units<Bits>(x + first, n - first, block, inverses + first / block, codes + first * Bits / 8, body);
  return good;
}

bool encode(const BlockForm& form, const BlockNoise&, const float* x, int64_t n, uint8_t* out) {
  return form.bits == 2   ? encode_bits<2>(form.block, x, n, out)
         : form.bits == 3 ? encode_bits<3>(form.block, x, n, out)
                          : encode_bits<4>(form.block, x, n, out);
}

// ---- decode --------------------------------------------------------------------------------------------------------
template <int Bits>
struct LevelDecoder {
  // The value of code k in lane k, repeated: loose_codes() leaves rubbish above a code's bits.
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
    // Eight lanes hold the positive half of 16 values: the sign is bit 3 of the code.
    if constexpr (Bits == 4) level = (VecF)((VecU)level ^ (codes << 28 & 0x80000000u));
    return product(level, scales.at(j));
  }
#endif
};

template <int Bits>
bool decode_bits(int64_t block, const uint8_t* in, int64_t n, float* out, bool accumulate) {
  float scales[kMaxBlocks];
  const int64_t blocks = (n + block - 1) / block;
  if (!read_scales(in, blocks, scales)) return false;
  in += 2;
  const LevelDecoder<Bits> body;
  decode_units<Bits>(in + blocks, n, block, scales, out, accumulate, body);
  return true;
}

bool decode(const BlockForm& form, const uint8_t* in, int64_t n, float* out, bool accumulate) {
  return form.bits == 2   ? decode_bits<2>(form.block, in, n, out, accumulate)
         : form.bits == 3 ? decode_bits<3>(form.block, in, n, out, accumulate)
                          : decode_bits<4>(form.block, in, n, out, accumulate);
}

}  // namespace

constinit const BlockKernels lloyd_max_kernels = {encode, decode};

}  // namespace thinwire::TW_ISA
