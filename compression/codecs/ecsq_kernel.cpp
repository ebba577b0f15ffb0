// Kernels of ecsq: units of blocks, elements to integers in these units, and back; compiled once per instruction set.
#include "compression/codecs/ecsq_kernel.h"

#include "compression/codecs/log_scale_simd.h"

namespace thinwire::TW_ISA {
namespace {

constexpr int64_t kMostBlocks = kEcsqFrame / kUnit;
// A larger element may decode to infinity, since the decoded value is up to half a step above it.
constexpr float kLargestElement = 0x1p+126f;

bool units(const float* x, int64_t n, int64_t block, float share, uint8_t* out, float* inverses, float* reach) {
  float scales[kMostBlocks + kLanes], largest[kMostBlocks];
  const int64_t blocks = (n + block - 1) / block;
  int64_t b = 0;
  for (; (b + kLanes) * block <= n; b += kLanes) {
    store(scales + b, sizes_of_blocks(x + b * block, block, largest + b));
  }
  for (; b < blocks; ++b) {
    const Size size = size_of_block(x + b * block, n - b * block < block ? n - b * block : block);
    scales[b] = size.mean;
    largest[b] = size.largest;
  }
  for (b = 0; b < blocks; ++b) {
    if (scales[b] > share * largest[b]) scales[b] = share * largest[b];
    if (scales[b] < kSmallestMean) scales[b] = 0.0f;
    if (scales[b] > kLargestScale) scales[b] = kLargestScale;  // of kLargestHead: the nearest in this case, too
    if (!(largest[b] <= kLargestElement)) scales[b] = __builtin_nanf("");
  }
  if (!write_scales(scales, blocks, out)) return false;
  read_scales(out, blocks, scales);
  *reach = 0.0f;
  for (b = 0; b < blocks; ++b) {
    inverses[b] = scales[b] >= kSmallestMean ? 1.0f / scales[b] : 0.0f;
    const float units_to_largest = largest[b] * inverses[b];
    *reach = units_to_largest > *reach ? units_to_largest : *reach;
  }
  return true;
}

int64_t sample(const float* x, int64_t n, int64_t block, const float* inverses, int64_t stride, uint32_t* bins) {
  for (int i = 0; i < kEcsqBins; ++i) bins[i] = 0;
  int64_t seen = 0;
  for (int64_t first = 0; first + kUnit <= n; first += stride * kUnit) {
    const float inverse = inverses[first / block];
    if (inverse == 0.0f) continue;
    const VecF factor = splat(inverse * kEcsqPerUnit), last = splat((float)(kEcsqBins - 1));
    uint32_t index[kUnit];
    for (int j = 0; j < kUnitVectors; ++j) {
      const VecF y = product(magnitude(load(x + first + j * kLanes)), factor);
      store_u(index + j * kLanes, (VecU)to_nearest(vfloor(vmin(y, last))));
    }
    for (int64_t i = 0; i < kUnit; ++i) ++bins[index[i]];
    seen += kUnit;
  }
  return seen;
}

// The integer nearest to x * factor moved by `less` towards zero (or across it), at most `most` either way.
TW_INLINE VecI quantized(VecF x, VecF factor, VecF less, VecF most) {
  const VecF y = product(x, factor);
  const VecF moved = y - (VecF)(((VecU)y & 0x80000000u) | (VecU)less);
  return to_nearest(vmin(vmax(moved, -most), most));
}
TW_INLINE void store_symbols(uint8_t* out, Codes c) {
#ifdef __AVX512F__
  _mm512_storeu_si512(out, _mm512_xor_si512(c.all, _mm512_set1_epi8((char)kEcsqZero)));
#else
  const __m256i zero = _mm256_set1_epi8((char)kEcsqZero);
  _mm256_storeu_si256((__m256i*)out, _mm256_xor_si256(c.low, zero));
  _mm256_storeu_si256((__m256i*)(out + 32), _mm256_xor_si256(c.high, zero));
#endif
}

void quantize(const float* x, int64_t n, int64_t block, const float* inverses, float fineness, float less, float most,
              uint8_t* symbols) {
  const VecF shift = splat(less), limit = splat(most);
  const int64_t full = n / kUnit * kUnit;  // elements in full runs of kUnit
  for (int64_t first = 0, b = 0; first < n; first += block, ++b) {
    const VecF factor = splat(rounded(splat(inverses[b]) * splat(fineness))[0]);
    const int64_t stop = first + block < full ? first + block : full;
    for (int64_t i = first; i < stop; i += kUnit) {
      VecI q[kUnitVectors];
      for (int j = 0; j < kUnitVectors; ++j) q[j] = quantized(load(x + i + j * kLanes), factor, shift, limit);
      store_symbols(symbols + i, narrow(q));
    }
    if (first + block <= full || full == n) continue;
    for (int64_t i = full; i < n; i += kLanes) {
      const int64_t left = n - i < kLanes ? n - i : kLanes;
      const VecI q = quantized(load_first(x + i, left), factor, shift, limit);
      for (int64_t k = 0; k < left; ++k) symbols[i + k] = (uint8_t)(q[k] + kEcsqZero);
    }
  }
}

TW_INLINE VecF value_of(const uint8_t* symbols, VecF factor) {
#ifdef __AVX512F__
  const VecI q = (VecI)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)symbols)) - (int32_t)kEcsqZero;
#else
  const VecI q = (VecI)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)symbols)) - (int32_t)kEcsqZero;
#endif
  return product(__builtin_convertvector(q, VecF), factor);
}

template <bool Add>
TW_INLINE void restore_all(const uint8_t* symbols, int64_t n, int64_t block, const float* scales, float step,
                           float* out) {
  for (int64_t first = 0, b = 0; first < n; first += block, ++b) {
    const VecF factor = splat(rounded(splat(scales[b]) * splat(step))[0]);
    const int64_t stop = first + block < n ? first + block : n;
    int64_t i = first;
    for (; i + kLanes <= stop; i += kLanes) {
      const VecF v = value_of(symbols + i, factor);
      store(out + i, Add ? load(out + i) + v : v);
    }
    if (i < stop) {
      uint8_t last[kLanes] = {};
      float values[kLanes];
      for (int64_t k = 0; k < stop - i; ++k) last[k] = symbols[i + k];
      store(values, value_of(last, factor));
      for (int64_t k = 0; k < stop - i; ++k) out[i + k] = Add ? out[i + k] + values[k] : values[k];
    }
  }
}

bool restore(const uint8_t* symbols, int64_t n, int64_t block, const uint8_t* in, float step, float* out,
             bool accumulate) {
  float scales[kMostBlocks];
  if (!read_scales(in, (n + block - 1) / block, scales)) return false;
  if (accumulate) {
    restore_all<true>(symbols, n, block, scales, step, out);
  } else {
    restore_all<false>(symbols, n, block, scales, step, out);
  }
  return true;
}

}  // namespace

constinit const EcsqKernels ecsq_kernels = {units, sample, quantize, restore};

}  // namespace thinwire::TW_ISA
