// A matrix product as a library for GPUs is asked for it, and which one an op becomes. Nothing here needs CUDA.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/base/ops/ops.h"

namespace thinwire {

enum class MatmulEpilogue : uint8_t { kNone, kBias, kGelu, kGeluBias, kGeluGradient, kRowSums };

enum class Fp8Kind : uint8_t { kNone, kE4m3, kE5m2 };

// A product of column-major matrices as cuBLASLt sees it: d[rows, cols] = op(a)[rows, depth] op(b)[depth, cols] + c.
struct MatmulKey {
  int64_t rows = 0, cols = 0, depth = 0;
  bool trans_a = false, trans_b = false, accumulate = false;
  DType input = DType::f32, output = DType::f32;
  MatmulEpilogue epilogue = MatmulEpilogue::kNone;
  Fp8Kind fp8_a = Fp8Kind::kNone, fp8_b = Fp8Kind::kNone;  // instead of `input`, both or neither
  // Bytes that the pointers are multiples of, at most 256; 0 for what is not there. The library trusts these.
  uint16_t align_a = 0, align_b = 0, align_d = 0, align_vector = 0, align_aux = 0;
  auto operator<=>(const MatmulKey&) const = default;
};

// "768x4096x3072 TN bf16 to fp32 added row_sums, aligned 256 256 256 256 0": all of the key, for files.
std::string text_of(const MatmulKey& key);

// The largest power of two up to 256 that `pointer` is a multiple of.
uint16_t alignment_of(const void* pointer);

// Scratch memory is on so many bytes, and more.
inline constexpr uint16_t kScratchAlignment = 256;

// Of a GPU, what decides which products ops become: its compute capability (90), and whether products take GELU and row
// sums along (CudaState::fuses).
struct ProductRules {
  int capability = 0;
  bool fuses = true;
};

// The product without what is fused into it, as `epilogue` says. align_vector, align_aux: of what that reads or writes.
MatmulKey product_key(const Matmul& op, MatmulEpilogue epilogue, uint16_t align_vector, uint16_t align_aux);

// Whether the op can be made in fp8: sizes, types, alignments. Then operands lie in scratch, rounded.
bool fits_fp8(const Matmul& op, const ProductRules& rules);
MatmulKey fp8_key(const Matmul& op);
// Where the operands of a product of [m, k] and [k, n] lie then, in bytes: behind the words of both scales a, and b
// unless it is a weight whose copy is kept (Fp8Weights).
struct Fp8Scratch {
  size_t a = 0, b = 0, bytes = 0;
};
Fp8Scratch fp8_scratch(int64_t m, int64_t n, int64_t k, bool keeps_b);

// The epilogue that takes the op's gelu_input, dgelu_input or a_sums along; kNone where nothing may be fused, or there
// is none of them.
MatmulEpilogue fused_epilogue(const Matmul& op, const ProductRules& rules);

// The product that the op (with something to compute) is tried as first.
MatmulKey first_key(const Matmul& op, const ProductRules& rules);

}  // namespace thinwire
