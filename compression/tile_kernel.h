// What coders do to elements in cache beside the codec's own work: the Hadamard transform, other element types,
// residuals, sums of squares.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

// Residuals in 8 bit have one fp32 scale per so many elements of the message.
inline constexpr int64_t kEmaBlock = 256;

// Sums over a tile, for metrics. Taken in fp32 lanes: values beyond about 1e19 make them infinite.
struct TileSums {
  float error = 0.0f, signal = 0.0f, residual = 0.0f;  // squares of x - decoded, of x, of the residual written
};

// Arrays of three are indexed by the element type of the void pointer (index_of() in codec.h). Nothing needs alignment
// beyond that of its elements. Every function rounds each element the same way in every instruction set.
struct TileKernels {
  // out = blocks of 32 of x transformed, orthonormally (its own inverse), the rest as it is; may be x itself
  void (*hadamard)(const float* x, float* out, int64_t n);
  void (*load[3])(const void* in, float* x, int64_t n);                                   // x = in
  void (*load_add[3])(const void* in, const float* e, float scale, float* x, int64_t n);  // x = fma(e, scale, in)
  void (*subtract[3])(const void* in, float* x, int64_t n);                               // x -= in
  void (*add_raw[3])(const void* in, float* x, int64_t n);                                // x += in
  void (*store[3])(const float* x, void* out, int64_t n);                                 // out = x, rounded
  void (*add_store[3])(const float* x, void* out, int64_t n);                             // out = out + x, rounded once
  bool (*all_finite[3])(const void* in, int64_t n);
  void (*squares)(const float* x, const float* decoded, int64_t n, TileSums& sums);
  // residual = (x - decoded) * inverse_scale; may be `decoded` itself. The 4 n bytes at each `ahead` are fetched into
  // the cache meanwhile: they are what the next tile starts with (any address will do).
  void (*error_feedback)(const float* x, const float* decoded, float inverse_scale, float* residual, int64_t n,
                         TileSums& sums, const char* ahead0, const char* ahead1);
  // residual = beta * old + (1 - beta) * (x - decoded) * inverse_scale; may be `decoded` or `old` itself
  void (*ema)(const float* x, const float* decoded, const float* old, float beta, float inverse_scale, float* residual,
              int64_t n, TileSums& sums);
  // Blocks of kEmaBlock, the last one ragged: scale = max|x| / 127, code = nearest even of x / scale. 0 for what is not
  // finite. unpack: x = code * scale.
  void (*pack8)(const float* x, int8_t* codes, float* scales, int64_t n);
  void (*unpack8)(const int8_t* codes, const float* scales, float* x, int64_t n);
  // The same in 8 bit, and in bf16, rounded up or down so that the mean is x: by 16 bits of Philox block e / 8 for
  // element e = first + i of the message.
  void (*dither8)(const float* x, uint32_t key0, uint32_t key1, uint64_t first, int8_t* codes, float* scales,
                  int64_t n);
  void (*dither16)(const float* x, uint32_t key0, uint32_t key1, uint64_t first, uint16_t* out, int64_t n);
};
TW_DECLARE_KERNELS(TileKernels, tile_kernels)

}  // namespace thinwire
