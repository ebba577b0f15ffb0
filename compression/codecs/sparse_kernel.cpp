// Counting, finding and packing the largest numbers of a vector; compiled once per instruction set.
#include "compression/codecs/sparse_kernel.h"

#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

constexpr uint32_t kAllLanes = (1u << kLanes) - 1u;
constexpr int32_t kKeyBits = 0x7fffffff;

TW_INLINE VecI keys_of(VecF v) {
  return (VecI)v & splat_i(kKeyBits);
}
TW_INLINE VecI load_keys(const uint32_t* p) {
  return (VecI)load((const float*)p);  // bits only: nothing is computed in fp32
}
TW_INLINE uint32_t lanes_of(int64_t n) {
  return n >= kLanes ? kAllLanes : (1u << n) - 1u;
}

// One bit per lane. Keys are below 2^31, so signed comparisons order them.
TW_INLINE VecI max_keys(VecI a, VecI b) {
  return (VecI)TW_V(max_epi32)((NativeI)a, (NativeI)b);
}
#ifdef __AVX512F__
TW_INLINE uint32_t above(VecI a, VecI b) {
  return bits_of(_mm512_cmpgt_epi32_mask((__m512i)a, (__m512i)b));
}
TW_INLINE uint32_t equal(VecI a, VecI b) {
  return bits_of(_mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b));
}
// The lanes in mask, packed; writes a whole vector.
TW_INLINE void put_lanes(float* out, uint32_t mask, VecF v) {
  _mm512_storeu_ps(out, _mm512_maskz_compress_ps((__mmask16)mask, (__m512)v));
}
TW_INLINE VecF get_lanes(const float* from, uint32_t mask) {
  return (VecF)_mm512_maskz_expand_ps((__mmask16)mask, _mm512_loadu_ps(from));
}
TW_INLINE VecF keep_lanes(uint32_t mask, VecF v) {
  return (VecF)_mm512_maskz_mov_ps((__mmask16)mask, (__m512)v);
}
#else
TW_INLINE uint32_t above(VecI a, VecI b) {
  return (uint32_t)_mm256_movemask_ps((__m256)_mm256_cmpgt_epi32((__m256i)a, (__m256i)b));
}
TW_INLINE uint32_t equal(VecI a, VecI b) {
  return (uint32_t)_mm256_movemask_ps((__m256)_mm256_cmpeq_epi32((__m256i)a, (__m256i)b));
}
TW_INLINE void put_lanes(float* out, uint32_t mask, VecF v) {
  alignas(32) float lanes[kLanes];
  store(lanes, v);
  for (; mask != 0; mask &= mask - 1) *out++ = lanes[__builtin_ctz(mask)];
}
TW_INLINE VecF get_lanes(const float* from, uint32_t mask) {
  alignas(32) float lanes[kLanes] = {};
  for (; mask != 0; mask &= mask - 1) lanes[__builtin_ctz(mask)] = *from++;
  return load(lanes);
}
TW_INLINE VecF keep_lanes(uint32_t mask, VecF v) {
  const VecI bit = splat_i(1) << lane_numbers();
  return (VecF)((VecI)v & (VecI)_mm256_cmpeq_epi32((__m256i)(splat_i((int32_t)mask) & bit), (__m256i)bit));
}
#endif

TW_INLINE uint32_t reduce_keys(VecI v) {
  alignas(64) uint32_t lanes[kLanes];
  store((float*)lanes, (VecF)v);
  uint32_t best = 0;
  for (int i = 0; i < kLanes; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

// The bitmap's bits of the kLanes elements from i (a multiple of kLanes); bytes behind element n are not touched.
TW_INLINE uint32_t bits_at(Whole, const uint8_t* bits, int64_t i, int64_t) {
#ifdef __AVX512F__
  return (uint32_t)bits[i / 8] | (uint32_t)bits[i / 8 + 1] << 8;
#else
  return bits[i / 8];
#endif
}
TW_INLINE uint32_t bits_at(Ragged, const uint8_t* bits, int64_t i, int64_t n) {
  uint32_t mask = bits[i / 8];
  if (n > 8) mask |= (uint32_t)bits[i / 8 + 1] << 8;
  return mask & lanes_of(n);
}
TW_INLINE void put_bits(uint8_t* bits, int64_t i, int64_t n, uint32_t mask) {
  bits[i / 8] = (uint8_t)mask;
  if (n > 8) bits[i / 8 + 1] = (uint8_t)(mask >> 8);
}

void bracket(const float* x, int64_t n, uint32_t low, uint32_t high, Bracket* counts) {
  const VecI vlow = splat_i((int32_t)low), vhigh = splat_i((int32_t)high);
  int64_t above_low = 0, above_high = 0, at_low = 0, at_high = 0;
  VecI best = splat_i(0);
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const VecI key = keys_of(load_at(part, x + i, m));
    const uint32_t valid = lanes_of(m);
    best = max_keys(best, key);  // lanes behind the end are 0
    above_low += __builtin_popcount(above(key, vlow) & valid);
    above_high += __builtin_popcount(above(key, vhigh) & valid);
    at_low += __builtin_popcount(equal(key, vlow) & valid);
    at_high += __builtin_popcount(equal(key, vhigh) & valid);
  });
  counts->above += above_high;
  counts->at_high += at_high;
  if (low != high) {
    counts->between += above_low - above_high - at_high;
    counts->at_low += at_low;
  }
  const uint32_t m = reduce_keys(best);
  counts->max_key = m > counts->max_key ? m : counts->max_key;
}

int64_t gather_keys(const float* x, int64_t n, uint32_t low, uint32_t high, uint32_t* keys) {
  const VecI vlow = splat_i((int32_t)low), vhigh = splat_i((int32_t)high);
  int64_t count = 0;
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const VecI key = keys_of(load_at(part, x + i, m));
    const uint32_t mask = above(key, vlow) & above(vhigh, key) & lanes_of(m);
    if (mask != 0) put_lanes((float*)keys + count, mask, (VecF)key);
    count += __builtin_popcount(mask);
  });
  return count;
}

TW_INLINE int64_t count_at_least(const uint32_t* keys, int64_t n, uint32_t key) {
  const VecI limit = splat_i((int32_t)(key - 1u));
  int64_t count = 0, i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    count += __builtin_popcount(above(load_keys(keys + i), limit));
    count += __builtin_popcount(above(load_keys(keys + i + kLanes), limit));
  }
  if (i + kLanes <= n) {
    count += __builtin_popcount(above(load_keys(keys + i), limit));
    i += kLanes;
  }
  if (i < n)
    count += __builtin_popcount(above((VecI)load_first((const float*)keys + i, n - i), limit) & lanes_of(n - i));
  return count;
}

// The largest key that at least k keys reach, found bit by bit from the highest bit in which low and high differ.
uint32_t kth_largest(const uint32_t* keys, int64_t n, int64_t k, uint32_t low, uint32_t high) {
  const uint32_t differ = low ^ high;
  if (differ == 0) return low;
  const int top = 31 - __builtin_clz(differ);
  uint32_t key = low & ~((2u << top) - 1u);
  for (int bit = top; bit >= 0; --bit) {
    const uint32_t candidate = key | 1u << bit;
    if (candidate <= high && count_at_least(keys, n, candidate) >= k) key = candidate;
  }
  return key;
}

// Maxima of disjoint groups, at least `keep` groups: their keep-th largest is a lower bound that few keys reach.
TW_INLINE uint32_t lower_bound_of(const float* x, int64_t n, int64_t keep, uint32_t* maxima, uint32_t* best) {
  const int64_t vectors = n / kLanes;
  int64_t groups = (2 * keep + kLanes - 1) / kLanes;  // in vectors
  if (4 * groups > vectors) {
    *best = 0;
    return 0;
  }
  VecI all = splat_i(0), least = splat_i(kKeyBits);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = g * vectors / groups, last = (g + 1) * vectors / groups;
    VecI m = splat_i(0);
    for (int64_t v = first; v < last; ++v) m = max_keys(m, keys_of(load(x + v * kLanes)));
    store((float*)maxima + g * kLanes, (VecF)m);
    all = max_keys(all, m);
    least = splat_i(kKeyBits) - max_keys(splat_i(kKeyBits) - least, splat_i(kKeyBits) - m);
  }
  *best = reduce_keys(all);
  const uint32_t lowest = (uint32_t)kKeyBits - reduce_keys(splat_i(kKeyBits) - least);
  return kth_largest(maxima, groups * kLanes, keep, lowest, *best);
}

Threshold find_small(const float* x, int64_t n, int64_t keep, uint32_t* scratch) {
  uint32_t best = 0;
  const uint32_t low = lower_bound_of(x, n, keep, scratch, &best);
  const VecI limit = splat_i((int32_t)low - 1);
  VecI most = splat_i(0);
  int64_t count = 0;
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const VecI key = keys_of(load_at(part, x + i, m));
    const uint32_t mask = above(key, limit) & lanes_of(m);
    if (mask == 0) return;
    most = max_keys(most, key);
    put_lanes((float*)scratch + count, mask, (VecF)key);
    count += __builtin_popcount(mask);
  });
  Threshold t;
  t.max_key = reduce_keys(most);
  t.key = kth_largest(scratch, count, keep, low, t.max_key);
  t.ties = keep - count_at_least(scratch, count, t.key + 1);
  return t;
}

// The lanes above the threshold, and the first of those on it.
TW_INLINE uint32_t taken(VecI key, VecI limit, uint32_t valid, int64_t* ties) {
  const uint32_t more = above(key, limit) & valid;
  uint32_t same = equal(key, limit) & valid;
  if (same == 0 || *ties == 0) return more;
  while (__builtin_popcount(same) > *ties) same &= ~(0x80000000u >> __builtin_clz(same));
  *ties -= __builtin_popcount(same);
  return more | same;
}

int64_t take(const float* x, int64_t n, uint32_t key, int64_t* ties, uint32_t* index, float* value) {
  const VecI limit = splat_i((int32_t)key);
  const VecI lane = lane_numbers();
  int64_t count = 0;
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const VecF v = load_at(part, x + i, m);
    const uint32_t mask = taken(keys_of(v), limit, lanes_of(m), ties);
    if (mask == 0) return;
    put_lanes((float*)index + count, mask, (VecF)(lane + splat_i((int32_t)i)));
    put_lanes(value + count, mask, v);
    count += __builtin_popcount(mask);
  });
  return count;
}

int64_t take_bits(const float* x, int64_t n, uint32_t key, int64_t* ties, uint8_t* bits, float* value) {
  const VecI limit = splat_i((int32_t)key);
  int64_t count = 0;
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const VecF v = load_at(part, x + i, m);
    const uint32_t mask = taken(keys_of(v), limit, lanes_of(m), ties);
    put_bits(bits, i, m, mask);
    if (value != nullptr && mask != 0) put_lanes(value + count, mask, v);
    count += __builtin_popcount(mask);
  });
  return count;
}

int64_t pack(const float* x, int64_t n, const uint8_t* bits, float* values) {
  int64_t count = 0;
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const uint32_t mask = bits_at(part, bits, i, m);
    if (mask == 0) return;
    put_lanes(values + count, mask, load_at(part, x + i, m));
    count += __builtin_popcount(mask);
  });
  return count;
}

int64_t unpack(const uint8_t* bits, int64_t n, const float* values, float* out, bool accumulate) {
  int64_t count = 0;
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const uint32_t mask = bits_at(part, bits, i, m);
    if (mask == 0) {
      if (!accumulate) store_at(part, out + i, VecF{}, m);
      return;
    }
    VecF v = get_lanes(values + count, mask);
    if (accumulate) {  // what is not in the payload stays, -0 too
      const VecF old = load_at(part, out + i, m);
      v = (VecF)((VecI)keep_lanes(mask, old + v) | (VecI)keep_lanes(~mask & kAllLanes, old));
    }
    store_at(part, out + i, v, m);
    count += __builtin_popcount(mask);
  });
  return count;
}

void clear(float* x, int64_t n, const uint8_t* bits) {
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const uint32_t mask = bits_at(part, bits, i, m);
    if (mask != 0) store_at(part, x + i, keep_lanes(~mask & kAllLanes, load_at(part, x + i, m)), m);
  });
}

// Finite numbers bounded by +-limit; others as they are.
TW_INLINE VecF saturate(VecF v, float limit) {
  const VecF bounded = vmax(splat(-limit), vmin(splat(limit), v));
  return keys_of(v) >= splat_i((int32_t)kInfiniteKey) ? v : bounded;
}

void to_bf16(const float* v, int64_t n, uint16_t* out) {
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    store_at(part, (Bf16*)out + i, saturate(load_at(part, v + i, m), 0x1.fep127f), m);
  });
}
void to_fp16(const float* v, int64_t n, float scale, uint16_t* out) {
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    store_at(part, (Fp16*)out + i, saturate(load_at(part, v + i, m) * splat(scale), 65504.0f), m);
  });
}
void from_fp16(const uint16_t* v, int64_t n, float scale, float* out) {
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    store_at(part, out + i, load_at(part, (const Fp16*)v + i, m) * splat(scale), m);
  });
}

uint32_t max_key(const float* x, int64_t n) {
  VecI best = splat_i(0);
  for_vectors(n, [&](auto part, int64_t i, int64_t m)
                     TW_INLINE_LAMBDA { best = max_keys(best, keys_of(load_at(part, x + i, m))); });
  return reduce_keys(best);
}

void add_to_tables(const float* x, int64_t n, const uint8_t* bits, const uint32_t* cells, float inverse,
                   int32_t* table) {
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const uint32_t mask = bits_at(part, bits, i, m);
    if (mask == 0) return;
    const VecF whole = keep_lanes(mask, vround(load_at(part, x + i, m) * splat(inverse)));
    const VecU q = (VecU) __builtin_convertvector(whole, VecI);
    const uint32_t* rows = cells + i / kSketchLanes * 3;
    for (int j = 0; j < 3; ++j) {
      float* row = (float*)(table + rows[j] + i % kSketchLanes);  // bits only; rows are always whole
      store(row, (VecF)((VecU)load(row) + q));
    }
  });
}

void subtract_rounded(float* x, int64_t n, const uint8_t* bits, float inverse, float step) {
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const uint32_t mask = bits_at(part, bits, i, m);
    if (mask == 0) return;
    const VecF v = load_at(part, x + i, m);
    store_at(part, x + i, v - keep_lanes(mask, vround(v * splat(inverse)) * splat(step)), m);
  });
}

}  // namespace

constinit const SparseKernels sparse_kernels = {bracket,   gather_keys, kth_largest, find_small,    take,
                                                take_bits, pack,        unpack,      clear,         to_bf16,
                                                to_fp16,   from_fp16,   max_key,     add_to_tables, subtract_rounded};

}  // namespace thinwire::TW_ISA
