// Kernels of coders for a tile in cache, beside the codec's own: Hadamard transform, conversion of element types,
// residuals, sums of squares.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

// Elements of the message that share one fp32 scale in an int8 residual.
inline constexpr int64_t kResidualBlock = 256;

// Sums of squares over a tile, for metrics. In fp32: values beyond about 1e19 make them infinite.
struct TileSums {
  float error = 0.0f, signal = 0.0f, residual = 0.0f;  // of x - decoded, of x, of the residual written
};

// Arrays of three: one function per element type of the void pointer (index_of() in codec.h). Pointers need the
// alignment of their elements only. Every function rounds each element the same way in every instruction set.
struct TileKernels {
  // out = x, each full block of 32 transformed, orthonormally (its own inverse); may be x itself
  void (*hadamard)(const float* x, float* out, int64_t n);
  void (*load[3])(const void* in, float* x, int64_t n);                                   // x = in
  void (*load_add[3])(const void* in, const float* e, float scale, float* x, int64_t n);  // x = fma(e, scale, in)
  void (*subtract[3])(const void* in, float* x, int64_t n);                               // x -= in
  void (*add_raw[3])(const void* in, float* x, int64_t n);                                // x += in
  void (*store[3])(const float* x, void* out, int64_t n);                                 // out = x, rounded
  void (*add_store[3])(const float* x, void* out, int64_t n);                             // out = out + x, rounded once
  bool (*all_finite[3])(const void* in, int64_t n);
  void (*squares)(const float* x, const float* decoded, int64_t n, TileSums& sums);
  // residual = (x - decoded) * inverse_scale; may be `decoded` itself. Meanwhile the 4 n bytes at each `ahead`, which
  // the next tile reads first, are prefetched into the cache (any address will do).
  void (*error_feedback)(const float* x, const float* decoded, float inverse_scale, float* residual, int64_t n,
                         TileSums& sums, const char* ahead0, const char* ahead1);
  // residual = beta * old + (1 - beta) * (x - decoded) * inverse_scale; may be `decoded` or `old` itself
  void (*ema)(const float* x, const float* decoded, const float* old, float beta, float inverse_scale, float* residual,
              int64_t n, TileSums& sums);
  // In blocks of kResidualBlock, the last one shorter: scale = max|x| / 127, code = x / scale rounded to nearest even;
  // all 0 where a block is not finite. unpack8: x = code * scale.
  void (*pack8)(const float* x, int8_t* codes, float* scales, int64_t n);
  void (*unpack8)(const int8_t* codes, const float* scales, float* x, int64_t n);
  // To 8 bit as pack8, and to bf16, but rounded stochastically (the mean is x): element e = first + i of the message
  // takes 16 bits of Philox block e / 8.
  void (*dither8)(const float* x, uint32_t key0, uint32_t key1, uint64_t first, int8_t* codes, float* scales,
                  int64_t n);
  void (*dither16)(const float* x, uint32_t key0, uint32_t key1, uint64_t first, uint16_t* out, int64_t n);
};
TW_DECLARE_KERNELS(TileKernels, tile_kernels)

}  // namespace thinwire
