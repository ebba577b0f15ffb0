// What files with CUDA kernels include: the GPU itself, or its programming model on one CPU thread, whichever folder
// the build names: cuda_native/ or tests/emulation/.
//
// Kernels are written against the names below, and nothing else of CUDA, so that any C++ compiler can build and run the
// same source: tests do, with threads of a block scheduled in random order between barriers
// (tests/emulation/cuda_emulation.h).
//
// - TW_KERNEL, TW_DEVICE: a kernel; a function that kernels call, inlined.
// - TW_GRID_CONSTANT: a parameter that stays where it is when it is indexed.
// - TW_UNROLL, TW_UNROLL_BY(n): in front of a loop.
// - TW_SHARED_ARRAY(Type, name, count): an array that the block shares, content undefined.
// - TW_DYNAMIC_SHARED(name): unsigned char* to the shared bytes that the launch asked for, aligned to 16.
// - threadIdx, blockIdx, blockDim, gridDim, __syncthreads, atomic_or, atomic_max.
// - shuffle_xor, shuffle_from: a value of another lane of the warp; warp_max: the largest of its 32. All lanes call.
// - Raw<kBytes>: a register word of 2, 4, 8, 16 or 32 bytes; load_raw and store_raw move it at once.
// - pick_bytes(a, b, picks): a word of bytes, each by four bits of `picks`: 0 to 3 are those of a, 4 to 7 of b.
// - half_to_float, float_to_half, float_to_bf16, pair_of_half, pair_of_bf16: conversions, nearest even.
// - fast_exp2, fast_divide: the GPU's approximations, where results are rounded to 16 bits or the error is bounded.
// - CudaQueue: where an op puts its kernels: launch(), scratch(), fault_word().
#pragma once

#include <cuda_backend.cuh>

namespace thinwire {

// out[c] += partials[0][c] + partials[1][c] + ... for c < cols; partial p starts at partials + p * stride. Pieces of
// neighbouring partials are added first, then the pieces in order: the order depends on `parts` alone. Defined in
// elementwise_cuda.cu.
void add_partials_cuda(CudaQueue& queue, float* out, const float* partials, int64_t stride, int64_t parts,
                       int64_t cols);

// Sorting pairs of 32-bit words, in the order of arrival where keys are equal (embedding_sort_cuda.cu). Bytes of
// scratch that sort_pairs_cuda wants; asks the library, queues nothing.
size_t sort_pairs_bytes_cuda(int64_t count, int key_bits);

// Sorts by the low key_bits of the keys, stable. In and out do not overlap.
void sort_pairs_cuda(CudaQueue& queue, void* scratch, size_t scratch_bytes, const uint32_t* keys, uint32_t* sorted_keys,
                     const int32_t* values, int32_t* sorted_values, int64_t count, int key_bits);

}  // namespace thinwire
