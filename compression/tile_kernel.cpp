// Butterflies in registers, and element-by-element loops.
#include "compression/tile_kernel.h"

#include <utility>

#include "engine/base/ops/philox_simd.h"

namespace thinwire::TW_ISA {
namespace {

// One butterfly stage inside a vector: lane i and lane i ^ d become their sum and (lower minus upper) difference.
template <int d, int... i>
TW_INLINE VecF stage_of(VecF v, std::integer_sequence<int, i...>) {
  const VecF sign = {((i & d) ? -1.0f : 1.0f)...};
  return fma(v, sign, shuffled<(i ^ d)...>(v, v));
}
template <int d>
TW_INLINE VecF stage(VecF v) {
  return stage_of<d>(v, std::make_integer_sequence<int, kLanes>());
}

void hadamard(const float* x, float* out, int64_t n) {
  constexpr int kVectors = 32 / kLanes;
  const VecF scale = splat(0.17677669529663687f);  // 1 / sqrt(32)
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    VecF v[kVectors];
    for (int k = 0; k < kVectors; ++k) v[k] = load(x + i + k * kLanes);
    for (int d = kVectors / 2; d > 0; d /= 2) {
      for (int k = 0; k < kVectors; ++k) {
        if (k & d) continue;
        const VecF a = v[k], b = v[k + d];
        v[k] = a + b;
        v[k + d] = a - b;
      }
    }
    for (int k = 0; k < kVectors; ++k) {
      if constexpr (kLanes == 16) v[k] = stage<8>(v[k]);
      v[k] = stage<1>(stage<2>(stage<4>(v[k])));
      store(out + i + k * kLanes, v[k] * scale);
    }
  }
  for (; i < n; ++i) out[i] = x[i];
}

template <typename T>
void load_tile(const void* in_start, float* x, int64_t n) {
  const T* in = (const T*)in_start;
  for_vectors(
      n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA { store_at(part, x + i, load_at(part, in + i, m), m); });
}
template <typename T>
void load_add(const void* in_start, const float* e, float scale, float* x, int64_t n) {
  const T* in = (const T*)in_start;
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    store_at(part, x + i, fma(load_at(part, e + i, m), splat(scale), load_at(part, in + i, m)), m);
  });
}
template <typename T>
void subtract(const void* in_start, float* x, int64_t n) {
  const T* in = (const T*)in_start;
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    store_at(part, x + i, load_at(part, x + i, m) - load_at(part, in + i, m), m);
  });
}
template <typename T>
void add_raw(const void* in_start, float* x, int64_t n) {
  const T* in = (const T*)in_start;
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    store_at(part, x + i, load_at(part, x + i, m) + load_at(part, in + i, m), m);
  });
}
template <typename T>
void store_tile(const float* x, void* out_start, int64_t n) {
  T* out = (T*)out_start;
  for_vectors(n, [&](auto part, int64_t i, int64_t m)
                     TW_INLINE_LAMBDA { store_at(part, out + i, load_at(part, x + i, m), m); });
}
template <typename T>
void add_store(const float* x, void* out_start, int64_t n) {
  T* out = (T*)out_start;
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    store_at(part, out + i, load_at(part, out + i, m) + load_at(part, x + i, m), m);
  });
}

template <typename T>
bool all_finite(const void* in_start, int64_t n) {
  const T* in = (const T*)in_start;
  VecI most{};
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const VecI size = (VecI)load_at(part, in + i, m) & 0x7fffffff;
    most = size > most ? size : most;
  });
  for (int lane = 0; lane < kLanes; ++lane) {
    if (most[lane] >= 0x7f800000) return false;
  }
  return true;
}

void squares(const float* x, const float* decoded, int64_t n, TileSums& sums) {
  VecF error{}, signal{};
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const VecF v = load_at(part, x + i, m);
    const VecF e = v - load_at(part, decoded + i, m);
    error = fma(e, e, error);
    signal = fma(v, v, signal);
  });
  sums.error += reduce_add(error);
  sums.signal += reduce_add(signal);
}

// past_caches: what is kept is read again in the next step, and pushes out nothing that is needed before.
template <bool past_caches>
void keep_error(const float* x, const float* decoded, float inverse_scale, float* residual, int64_t n, TileSums& sums,
                const char* ahead0, const char* ahead1) {
  VecF error{}, signal{}, kept{};
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    __builtin_prefetch(ahead0 + i * 4);
    __builtin_prefetch(ahead1 + i * 4);
    const VecF v = load_at(part, x + i, m);
    const VecF e = v - load_at(part, decoded + i, m);
    const VecF r = e * splat(inverse_scale);
    if constexpr (past_caches) {
      stream_at(part, residual + i, r, m);
    } else {
      store_at(part, residual + i, r, m);
    }
    error = fma(e, e, error);
    signal = fma(v, v, signal);
    kept = fma(r, r, kept);
  });
  if constexpr (past_caches) end_streams();
  sums.error += reduce_add(error);
  sums.signal += reduce_add(signal);
  sums.residual += reduce_add(kept);
}

void error_feedback(const float* x, const float* decoded, float inverse_scale, float* residual, int64_t n,
                    TileSums& sums, const char* ahead0, const char* ahead1) {
  const auto keep = can_stream(residual) ? keep_error<true> : keep_error<false>;
  keep(x, decoded, inverse_scale, residual, n, sums, ahead0, ahead1);
}

void ema(const float* x, const float* decoded, const float* old, float beta, float inverse_scale, float* residual,
         int64_t n, TileSums& sums) {
  VecF error{}, signal{}, kept{};
  const VecF fresh = splat((1.0f - beta) * inverse_scale);
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const VecF v = load_at(part, x + i, m);
    const VecF e = v - load_at(part, decoded + i, m);
    const VecF r = fma(e, fresh, load_at(part, old + i, m) * splat(beta));
    store_at(part, residual + i, r, m);
    error = fma(e, e, error);
    signal = fma(v, v, signal);
    kept = fma(r, r, kept);
  });
  sums.error += reduce_add(error);
  sums.signal += reduce_add(signal);
  sums.residual += reduce_add(kept);
}

// How a block is kept in 8 bit. All 0 where something is not finite, and below 127 * 2^-126, where the quotient would
// lose its digits and the residual is nothing.
struct Scale8 {
  float scale, inverse;
};
TW_INLINE Scale8 scale8_of(const float* block, int64_t count) {
  VecI most{};
  for_vectors(count, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const VecI size = (VecI)load_at(part, block + i, m) & 0x7fffffff;  // of floats without sign: ordered like integers
    most = size > most ? size : most;
  });
  int32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits = most[lane] > bits ? most[lane] : bits;
  const float largest = __builtin_bit_cast(float, bits);
  if (bits >= 0x7f800000 || !(largest > 1.5e-36f)) return {0.0f, 0.0f};
  return {largest / 127.0f, 127.0f / largest};
}

void pack8(const float* x, int8_t* codes, float* scales, int64_t n) {
  for (int64_t first = 0; first < n; first += kResidualBlock) {
    const int64_t count = n - first < kResidualBlock ? n - first : kResidualBlock;
    const float* block = x + first;
    const Scale8 s = scale8_of(block, count);
    scales[first / kResidualBlock] = s.scale;
    for_vectors(count, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
      VecF v = load_at(part, block + i, m) * splat(s.inverse);
      v = s.inverse != 0.0f ? v : VecF{};
      const VecI q = __builtin_convertvector(vround(v), VecI);
      for (int64_t k = 0; k < m; ++k) codes[first + i + k] = (int8_t)q[k];
    });
  }
}

void dither8(const float* x, uint32_t key0, uint32_t key1, uint64_t first, int8_t* codes, float* scales, int64_t n) {
  uint16_t buffer[kResidualBlock + kHalvesSlack];
  for (int64_t at = 0; at < n; at += kResidualBlock) {
    const int64_t count = n - at < kResidualBlock ? n - at : kResidualBlock;
    const float* block = x + at;
    const Scale8 s = scale8_of(block, count);
    scales[at / kResidualBlock] = s.scale;
    const uint16_t* const bits = random_halves(key0, key1, 0, first + (uint64_t)at, count, buffer);
    for (int64_t i = 0; i < count; ++i) {
      const float v = s.inverse != 0.0f ? block[i] * s.inverse : 0.0f;
      const float down = __builtin_floorf(v);
      const float up = (v - down) * 65536.0f > (float)bits[i] + 0.5f ? 1.0f : 0.0f;
      const float q = down + up;
      codes[at + i] = (int8_t)(q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q);
    }
  }
}

void dither16(const float* x, uint32_t key0, uint32_t key1, uint64_t first, uint16_t* out, int64_t n) {
  uint16_t buffer[kResidualBlock + kHalvesSlack];
  for (int64_t at = 0; at < n; at += kResidualBlock) {
    const int64_t count = n - at < kResidualBlock ? n - at : kResidualBlock;
    const uint16_t* const bits = random_halves(key0, key1, 0, first + (uint64_t)at, count, buffer);
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t v = __builtin_bit_cast(uint32_t, x[at + i]);
      const uint32_t rounded = v + bits[i];
      // Never out of the finite numbers, and nothing to round where it is none (a NaN of all ones would end as 0).
      const bool grows = (rounded & 0x7f800000u) == 0x7f800000u || (v & 0x7fffffffu) > 0x7f800000u;
      out[at + i] = (uint16_t)((grows ? v : rounded) >> 16);
    }
  }
}

void unpack8(const int8_t* codes, const float* scales, float* x, int64_t n) {
  for (int64_t first = 0; first < n; first += kResidualBlock) {
    const int64_t last = n - first < kResidualBlock ? n : first + kResidualBlock;
    const float scale = scales[first / kResidualBlock];
    for (int64_t i = first; i < last; ++i) x[i] = (float)codes[i] * scale;
  }
}

}  // namespace

constinit const TileKernels tile_kernels = {
    hadamard,
    {load_tile<float>, load_tile<Bf16>, load_tile<Fp16>},
    {load_add<float>, load_add<Bf16>, load_add<Fp16>},
    {subtract<float>, subtract<Bf16>, subtract<Fp16>},
    {add_raw<float>, add_raw<Bf16>, add_raw<Fp16>},
    {store_tile<float>, store_tile<Bf16>, store_tile<Fp16>},
    {add_store<float>, add_store<Bf16>, add_store<Fp16>},
    {all_finite<float>, all_finite<Bf16>, all_finite<Fp16>},
    squares,
    error_feedback,
    ema,
    pack8,
    unpack8,
    dither8,
    dither16,
};

}  // namespace thinwire::TW_ISA
