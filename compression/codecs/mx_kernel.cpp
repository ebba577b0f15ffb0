// Small floats with shared scales; compiled once per instruction set.
#include "compression/codecs/block_kernels.h"
#include "compression/codecs/block_simd.h"

namespace thinwire::TW_ISA {
namespace {

// The code without sign of |v| (bits of a finite number >= 0): nearest, ties to even, saturated. Adding a power of two
// that is 2^(23 - M) times the number's own exponent leaves a mantissa of M bits, correctly rounded, in the low bits.
template <typename F>
TW_INLINE VecI small_code(VecU bits) {
  constexpr uint32_t kLowest = (uint32_t)(128 - F::kBias) << 23;  // exponent field of the smallest normal number
  const VecU exponent = vmax_u(bits & 0x7f800000u, VecU{} + kLowest);
  const VecU anchor = exponent + ((uint32_t)(23 - F::kMantissa) << 23);
  const VecU steps = (VecU)rounded((VecF)bits + (VecF)anchor) - anchor;
  const VecI code = (VecI)(((exponent - kLowest) >> (23 - F::kMantissa)) + steps);
  return code > F::kLargest ? splat_i(F::kLargest) : code;
}

// Bad blocks have NaN factors. Careful: their elements get the code 0; without it the codes would be arbitrary.
template <typename F, bool Careful>
struct SmallEncoder {
  template <typename Scales>
  TW_INLINE Codes unit(const float* x, const Scales& scales, int64_t) const {
    VecI q[kUnitVectors];
    for (int j = 0; j < kUnitVectors; ++j) {
      VecF v = product(load(x + j * kLanes), scales.at(j));
      if constexpr (Careful) v = v == v ? v : VecF{};
      // The sign is spread over all higher bits: narrowing saturates.
      q[j] = small_code<F>((VecU)v & 0x7fffffffu) | ((VecI)v >> 31) << (F::kBits - 1);
    }
    return narrow(q);
  }
};

// Returns whether no block is bad.
template <typename F>
TW_INLINE bool encode_small(const float* x, int64_t n, int64_t block, const float* inverses, uint8_t* out, bool bad) {
  SmallEncoder<F, true> careful;
  SmallEncoder<F, false> plain;
  if (bad) {
    encode_units<F::kBits>(x, n, block, inverses, out, careful);
  } else {
    encode_units<F::kBits>(x, n, block, inverses, out, plain);
  }
  return !bad;
}

template <typename F>
struct SmallDecoder {
  TW_INLINE VecF values(VecF) const { return VecF{}; }
  template <typename Scales>
  TW_INLINE VecF vector(const uint8_t* in, const Scales& scales, int j, int64_t) const {
    return product(element(in), scales.at(j));
  }
  TW_INLINE static VecF element(const uint8_t* in) {
    if constexpr (F::kBits == 8) {
      // As fp16, whose exponent has 5 bits: E5M2 is its upper byte; E4M3 is 2^8 times what its bits mean there.
      constexpr int kShift = 10 - F::kMantissa;
#ifdef __AVX512F__
      const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)in));
      const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, kShift), _mm256_set1_epi16((int16_t)0xbfff));
      const VecF v = (VecF)_mm512_cvtph_ps(kShift == 8 ? _mm256_slli_epi16(wide, 8) : half);
#else
      const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)in));
      const __m128i half = _mm_and_si128(_mm_slli_epi16(wide, kShift), _mm_set1_epi16((int16_t)0xbfff));
      const VecF v = (VecF)_mm256_cvtph_ps(kShift == 8 ? _mm_slli_epi16(wide, 8) : half);
#endif
      if constexpr (kShift == 8) return v;
      const VecF scaled = product(v, splat(0x1p8f));
      return magnitude(scaled) == splat(480.0f) ? splat(__builtin_nanf("")) : scaled;
    } else {
#ifdef __AVX512F__
      if constexpr (F::kBits == 4) {
        const __m512 table = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6);
        return (VecF)_mm512_permutexvar_ps((__m512i)loose_codes<4>(in), table);
      }
#else
      if constexpr (F::kBits == 4) {
        const __m256 table = _mm256_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6);
        const VecU codes = loose_codes<4>(in);
        return (VecF)((VecU)_mm256_permutevar8x32_ps(table, (__m256i)codes) | (codes << 28 & 0x80000000u));
      }
#endif
      // Numbers below the smallest normal one are multiples of the step there; the others have the bits of a float.
      const VecU code = loose_codes<F::kBits>(in), size = code & ((1u << (F::kBits - 1)) - 1u);
      const VecU normal = (size << (23 - F::kMantissa)) + ((uint32_t)(127 - F::kBias) << 23);
      const float step = 1.0f / (1 << (F::kBias - 1 + F::kMantissa));
      const VecF tiny = product(__builtin_convertvector((VecI)size, VecF), splat(step));
      const VecU value = size < (1u << F::kMantissa) ? (VecU)tiny : normal;
      return (VecF)(value | (code << (32 - F::kBits) & 0x80000000u));
    }
  }
};

// ---- E8M0 scales ---------------------------------------------------------------------------------------------------
constexpr int64_t kMxBlock = 32, kMaxMxBlocks = 4096 / 16;

template <typename F>
bool encode_mx(const float* x, int64_t n, uint8_t* out) {
  uint32_t keys[kMaxMxBlocks], bytes[kLanes];
  float inverses[kMaxMxBlocks];
  const int64_t blocks = block_keys(x, n, kMxBlock, keys);
  VecI bad{};
  for (int64_t b = 0; b < blocks; b += kLanes) {
    const VecU key = load_u(keys + b);
    const VecI wrong = key >= kBadKey;
    const VecI exponent = (VecI)(key >> 24) - F::kMaxExponent;
    const VecI e = exponent < 0 ? splat_i(0) : exponent;
    bad |= wrong;
    store(inverses + b, (VecF)(wrong ? splat_i(0x7fc00000) : (254 - e) << 23));
    store_u(bytes, (VecU)(wrong ? splat_i(255) : e));
    for (int64_t i = 0; i < kLanes && b + i < blocks; ++i) out[b + i] = (uint8_t)bytes[i];
  }
  out += blocks;
  return encode_small<F>(x, n, kMxBlock, inverses, out, any(bad));
}

template <typename F>
bool decode_mx(const uint8_t* in, int64_t n, float* out, bool accumulate) {
  float steps[kMaxMxBlocks];
  const int64_t blocks = (n + kMxBlock - 1) / kMxBlock;
  for (int64_t b = 0; b < blocks; ++b) {
    const uint32_t e = in[b], bits = e == 255 ? 0x7fc00000u : e == 0 ? 0x00400000u : e << 23;
    __builtin_memcpy(&steps[b], &bits, 4);
  }
  const SmallDecoder<F> body;
  decode_units<F::kBits>(in + blocks, n, kMxBlock, steps, out, accumulate, body);
  return true;
}

// ---- NVFP4 ---------------------------------------------------------------------------------------------------------
constexpr int64_t kNvBlock = 16;
constexpr float kSmallestGroupScale = 0x1p-100f;  // 2^-9 of it has a finite inverse
constexpr float kLargestGroupScale = 0x1.8p116f;  // 448 * 6 times it is finite

bool encode_nvfp4(const float* x, int64_t n, uint8_t* out) {
  uint32_t keys[kMaxMxBlocks], bytes[kLanes];
  float inverses[kMaxMxBlocks];
  const int64_t blocks = block_keys(x, n, kNvBlock, keys);
  VecU largest{};
  VecI bad{};
  for (int64_t b = 0; b < blocks; b += kLanes) {
    const VecU key = load_u(keys + b);
    bad |= key >= kBadKey;
    largest = vmax_u(largest, key >= kBadKey ? VecU{} : key);
  }
  const float most = reduce_max(magnitude(value_of_key(largest)));
  float group = product(splat(most), splat(1.0f / 2688.0f))[0];
  if (group < kSmallestGroupScale) group = kSmallestGroupScale;
  if (group > kLargestGroupScale) group = kLargestGroupScale;
  if (most == 0.0f) group = 0.0f;
  __builtin_memcpy(out, &group, 4);
  out += 4;
  const VecF per_group = most == 0.0f ? VecF{} : splat(1.0f) / product(splat(group), splat(6.0f));
  for (int64_t b = 0; b < blocks; b += kLanes) {
    const VecU key = load_u(keys + b);
    const VecI wrong = key >= kBadKey;
    const VecF top = wrong ? VecF{} : magnitude(value_of_key(key));
    VecI code = small_code<E4m3>((VecU)product(top, per_group));
    code = (code == 0) & (top > 0.0f) ? splat_i(1) : code;
    code = wrong ? splat_i(0x7f) : code;
    store_u(bytes, (VecU)code);
    uint8_t packed[kLanes];
    for (int i = 0; i < kLanes; ++i) packed[i] = (uint8_t)bytes[i];
    const VecF step = product(SmallDecoder<E4m3>::element(packed), splat(group));
    store(inverses + b, code == 0 ? VecF{} : splat(1.0f) / step);
    for (int64_t i = 0; i < kLanes && b + i < blocks; ++i) out[b + i] = packed[i];
  }
  out += blocks;
  return encode_small<E2m1>(x, n, kNvBlock, inverses, out, any(bad));
}

bool decode_nvfp4(const uint8_t* in, int64_t n, float* out, bool accumulate) {
  float steps[kMaxMxBlocks], group;
  const int64_t blocks = (n + kNvBlock - 1) / kNvBlock;
  __builtin_memcpy(&group, in, 4);
  if (!(group >= 0.0f && group <= kLargestGroupScale)) return false;
  in += 4;
  uint8_t signs = 0;
  for (int64_t b = 0; b < blocks; b += kLanes) {
    uint8_t bytes[kLanes] = {};
    for (int64_t i = 0; i < kLanes && b + i < blocks; ++i) signs |= bytes[i] = in[b + i];
    store(steps + b, product(SmallDecoder<E4m3>::element(bytes), splat(group)));
  }
  if (signs & 0x80) return false;
  const SmallDecoder<E2m1> body;
  decode_units<4>(in + blocks, n, kNvBlock, steps, out, accumulate, body);
  return true;
}

bool encode(const BlockForm& form, const BlockNoise&, const float* x, int64_t n, uint8_t* out) {
  const MxFormat format = form.format;
  return format == MxFormat::kE4m3   ? encode_mx<E4m3>(x, n, out)
         : format == MxFormat::kE5m2 ? encode_mx<E5m2>(x, n, out)
         : format == MxFormat::kE2m3 ? encode_mx<E2m3>(x, n, out)
         : format == MxFormat::kE3m2 ? encode_mx<E3m2>(x, n, out)
         : format == MxFormat::kE2m1 ? encode_mx<E2m1>(x, n, out)
                                     : encode_nvfp4(x, n, out);
}

bool decode(const BlockForm& form, const uint8_t* in, int64_t n, float* out, bool accumulate) {
  const MxFormat format = form.format;
  return format == MxFormat::kE4m3   ? decode_mx<E4m3>(in, n, out, accumulate)
         : format == MxFormat::kE5m2 ? decode_mx<E5m2>(in, n, out, accumulate)
         : format == MxFormat::kE2m3 ? decode_mx<E2m3>(in, n, out, accumulate)
         : format == MxFormat::kE3m2 ? decode_mx<E3m2>(in, n, out, accumulate)
         : format == MxFormat::kE2m1 ? decode_mx<E2m1>(in, n, out, accumulate)
                                     : decode_nvfp4(in, n, out, accumulate);
}

}  // namespace

constinit const BlockKernels mx_kernels = {encode, decode};

}  // namespace thinwire::TW_ISA
