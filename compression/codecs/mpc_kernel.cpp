// Units of codec mpc: differences, bit transpose, differences of planes, and the zeros squeezed out.
#include "compression/codecs/mpc_kernel.h"

#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

typedef uint32_t Loose32 __attribute__((aligned(1), may_alias));

// Word l of the result holds bit l of the 32 words, that of word i in bit i. Its own inverse.
TW_INLINE void transpose32(const uint32_t* in, uint32_t* out) {
  // Bytes first: v[k] becomes byte k of words 0..31.
  const __m256i by_byte = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9,
                                           13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m256i join = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m256i q[4];
  for (int i = 0; i < 4; ++i) {
    const __m256i w = _mm256_loadu_si256((const __m256i*)(in + 8 * i));
    q[i] = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(w, by_byte), join);
  }
  const __m256i a = _mm256_unpacklo_epi64(q[0], q[1]), b = _mm256_unpackhi_epi64(q[0], q[1]);
  const __m256i c = _mm256_unpacklo_epi64(q[2], q[3]), d = _mm256_unpackhi_epi64(q[2], q[3]);
  __m256i v[4] = {_mm256_permute2x128_si256(a, c, 0x20), _mm256_permute2x128_si256(b, d, 0x20),
                  _mm256_permute2x128_si256(a, c, 0x31), _mm256_permute2x128_si256(b, d, 0x31)};
  for (int k = 0; k < 4; ++k)
    for (int bit = 7; bit >= 0; --bit) {
      out[8 * k + bit] = static_cast<uint32_t>(_mm256_movemask_epi8(v[k]));
      v[k] = _mm256_add_epi8(v[k], v[k]);
    }
}

// The words of 32 that are not zero go to `to`; their bitmap comes back.
TW_INLINE uint32_t squeeze(const uint32_t* d, std::byte*& to) {
#ifdef __AVX512F__
  uint32_t bitmap = 0;
  for (int half = 0; half < 2; ++half) {
    const __m512i v = _mm512_loadu_si512(d + 16 * half);
    const __mmask16 set = _mm512_test_epi32_mask(v, v);
    const int n = __builtin_popcount(set);
    _mm512_mask_storeu_epi32(to, (__mmask16)((1u << n) - 1u), _mm512_maskz_compress_epi32(set, v));
    to += 4 * n;
    bitmap |= static_cast<uint32_t>(set) << 16 * half;
  }
  return bitmap;
#else
  uint32_t bitmap = 0;
  for (int l = 0; l < 32; ++l) {
    *(Loose32*)to = d[l];
    const uint32_t set = d[l] != 0;
    to += 4 * set;  // at most l words so far, so the store stays inside of the group's 32
    bitmap |= set << l;
  }
  return bitmap;
#endif
}

// `last`: the last word of the payload; never read beyond it.
TW_INLINE void unsqueeze(uint32_t bitmap, const std::byte*& from, const std::byte* last, uint32_t* d) {
#ifdef __AVX512F__
  (void)last;
  for (int half = 0; half < 2; ++half) {
    const __mmask16 set = (__mmask16)(bitmap >> 16 * half);
    const int n = __builtin_popcount(set);
    const __m512i v = _mm512_maskz_loadu_epi32((__mmask16)((1u << n) - 1u), from);
    _mm512_storeu_si512(d + 16 * half, _mm512_maskz_expand_epi32(set, v));
    from += 4 * n;
  }
#else
  if (bitmap == 0) {
    for (int l = 0; l < 32; ++l) d[l] = 0;
    return;
  }
  for (int l = 0; l < 32; ++l) {
    const uint32_t set = bitmap >> l & 1u;
    d[l] = *(const Loose32*)(from < last ? from : last) & (0u - set);
    from += 4 * set;
  }
#endif
}

int64_t encode_unit(const std::byte* in, int64_t words, int dimension, std::byte* bitmap, std::byte* payload) {
  alignas(64) uint32_t v[kMpcUnit], t[kMpcUnit + 16];
  const Loose32* a = (const Loose32*)in;
  const int64_t groups = (words + 31) / 32, raw = words < dimension ? words : dimension;
  for (int64_t i = 0; i < raw; ++i) v[i] = a[i];
  for (int64_t i = raw; i < words; ++i) v[i] = a[i] - a[i - dimension];
  for (int64_t i = words; i < 32 * groups; ++i) v[i] = 0;  // not differenced: the planes end at the data
  uint32_t* planes = t + 16;
  planes[-1] = 0;
  for (int64_t g = 0; g < groups; ++g) transpose32(v + 32 * g, planes + 32 * g);
  for (int64_t i = 0; i < 32 * groups; ++i) v[i] = planes[i] - planes[i - 1];
  std::byte* to = payload;
  for (int64_t g = 0; g < groups; ++g) ((Loose32*)bitmap)[g] = squeeze(v + 32 * g, to);
  return (to - payload) / 4;
}

int64_t count_bits(const std::byte* bitmap, int64_t words) {
  int64_t bits = 0;
  for (int64_t i = 0; i < words; ++i) bits += __builtin_popcount(((const Loose32*)bitmap)[i]);
  return bits;
}

void decode_unit(const std::byte* bitmap, const std::byte* payload, int64_t words, int dimension, uint32_t* out) {
  alignas(64) uint32_t d[kMpcUnit];
  const int64_t groups = (words + 31) / 32, n = 32 * groups;
  const std::byte* const last = payload + 4 * (count_bits(bitmap, groups) - 1);
  for (int64_t g = 0; g < groups; ++g) unsqueeze(((const Loose32*)bitmap)[g], payload, last, d + 32 * g);
  uint32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) d[i] = sum += d[i];
  for (int64_t g = 0; g < groups; ++g) transpose32(d + 32 * g, out + 32 * g);
  if (dimension == 1) {
    sum = 0;
    for (int64_t i = 0; i < n; ++i) out[i] = sum += out[i];
    return;
  }
  for (int64_t i = dimension; i < n; ++i) out[i] += out[i - dimension];
}

}  // namespace

constinit const MpcKernels mpc_kernels = {encode_unit, count_bits, decode_unit};

}  // namespace thinwire::TW_ISA
