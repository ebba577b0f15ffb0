// Orthonormal bases of tall skinny matrices, several at once, all columns at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace thinwire {

// What decides bits, here and on a GPU (orthonormalize_cuda.cu).
inline constexpr int kOrthonormalPasses = 8;  // at most
// Less than sqrt of this of a vector's length, and the rest is rounding of its fp32 elements (4 epsilon).
inline constexpr double kDependentRest = 0x1p-42;
// |gram^-1| up to which the Gram matrix's rounding (2^-53 times the length of a sum, / 8) is below 2^-24 behind it.
inline constexpr double kFineAtOnce = 0x1p14;
inline constexpr uint32_t kDirections = 0x6f727468;  // tag in the counter of random directions

// `vectors` vectors of `length` fp32 elements, one behind the other; 1 <= vectors <= length.
struct Basis {
  float* data = nullptr;
  int64_t length = 0, vectors = 0;
};

// What orthonormalize() needs while it runs, 2 vectors^2 numbers and as many flags as vectors of each basis; only
// grows.
struct OrthonormalScratch {
  std::vector<double> numbers;
  std::vector<uint8_t> flags;
};

// In place: the vectors become orthonormal, |<p_i, p_j> - [i == j]| <= 2^-23 up to second order, and vector j keeps to
// the span of vectors 0..j (as Gram-Schmidt would have it, <p_j, a_j> >= 0): every input vector is within
// 2^-21 + sqrt(vectors) 2^-23 of its length of the span of the result. A vector of which less than 2^-21 of its length
// stands out of those before it (so its rest is fp32 rounding), zeros among them, gives way to a pseudo-random
// direction that depends on (length, index) alone.
//
// CholeskyQR on the Gram matrix in double with columns scaled to length one, repeated where the condition demands it
// (Yamamoto et al., ETNA 44, 2015: two passes do for any condition below 1e8 in double); finite input of any magnitude
// between the smallest subnormal and the largest number. At most kOrthonormalPasses passes; 3 were enough for
// everything tried. From 2^14 vectors on all of them are taken: the test of the last one never passes. A vector that
// still depends on others behind the last pass becomes zero. Bits depend on the input alone, neither on threads nor on
// the instruction set. Returns whether all input was finite; a basis with NaN or infinity in it becomes all NaN, the
// others do not suffer.
bool orthonormalize(std::span<const Basis> bases, int threads, OrthonormalScratch& scratch);

}  // namespace thinwire
