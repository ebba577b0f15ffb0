// Sums over warps and blocks in an order that is fixed by thread numbers alone.
#pragma once

#include "engine/base/ops/cuda_kernel.h"

namespace thinwire {

constexpr int kMostWarps = 32;

// Every lane gets the same bits: both sides of each exchange add the same two numbers.
template <typename T>
TW_DEVICE T warp_sum(T v) {
  TW_UNROLL
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) v += shuffle_xor(v, lanes);
  return v;
}

// The sum over a block of whole warps, in every thread; warps are added in order. `slots` is shared memory for
// kMostWarps values. Slots may be used again by a call behind another barrier: callers alternate between two arrays, or
// put a barrier between calls.
template <typename T>
TW_DEVICE T block_sum(T v, T* slots) {
  v = warp_sum(v);
  if (threadIdx.x % kWarp == 0) slots[threadIdx.x / kWarp] = v;
  __syncthreads();
  const unsigned warps = blockDim.x / kWarp;
  T sum = slots[0];
  for (unsigned w = 1; w < warps; ++w) sum += slots[w];
  return sum;
}

// Two sums behind one barrier; slots for 2 * kMostWarps values.
TW_DEVICE void block_sums(float& a, float& b, float* slots) {
  a = warp_sum(a);
  b = warp_sum(b);
  if (threadIdx.x % kWarp == 0) {
    slots[threadIdx.x / kWarp] = a;
    slots[kMostWarps + threadIdx.x / kWarp] = b;
  }
  __syncthreads();
  const unsigned warps = blockDim.x / kWarp;
  a = slots[0];
  b = slots[kMostWarps];
  for (unsigned w = 1; w < warps; ++w) {
    a += slots[w];
    b += slots[kMostWarps + w];
  }
}

}  // namespace thinwire
