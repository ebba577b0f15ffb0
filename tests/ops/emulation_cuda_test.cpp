// The emulated CUDA block catches the mistakes that it is there to catch, and computes what a block computes.
#include <gtest/gtest.h>

#include "engine/base/core/error.h"
#include "engine/base/ops/cuda_kernel.h"
#include "engine/base/ops/cuda_reduce.h"
#include "engine/base/ops/cuda_vector.h"

namespace thinwire::emulation_cuda_test {
namespace {

TW_KERNEL void neighbours_kernel(int* out, bool with_barrier) {
  TW_SHARED_ARRAY(int, shared, 256);
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (with_barrier) __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x];
}

// Shuffles keep the lanes of a warp together, not the warps: the second use of `shared` needs a barrier.
TW_KERNEL void reuse_kernel(int* out, bool with_barrier) {
  TW_SHARED_ARRAY(int, shared, 256);
  const unsigned other = (threadIdx.x + 128) % 256;
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  const int seen = shuffle_xor(shared[other], 0);
  if (with_barrier) __syncthreads();
  shared[threadIdx.x] = shuffle_xor(-1, 1);
  out[blockIdx.x * blockDim.x + threadIdx.x] = seen;
}

TW_KERNEL void divergent_barrier_kernel(bool at_two_lines) {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else if (at_two_lines) {
    __syncthreads();
  }
}

TW_KERNEL void divergent_shuffle_kernel(float* out) {
  if (threadIdx.x % 2 == 0) out[threadIdx.x] = shuffle_xor(1.0f, 2);
}

TW_KERNEL void sums_kernel(const float* in, float* out, double* out_double) {
  TW_SHARED_ARRAY(float, slots, kMostWarps);
  TW_SHARED_ARRAY(double, wide_slots, kMostWarps);
  const float sum = block_sum(in[threadIdx.x], slots);
  out[threadIdx.x] = sum;
  out_double[threadIdx.x] = block_sum(static_cast<double>(in[threadIdx.x]), wide_slots);
}

TW_KERNEL void copy_kernel(const float* in, float* out) {
  float v[4];
  load_values<4>(in, v);
  store_values<4>(out, v);
}

TW_KERNEL void stale_shared_kernel(float* out) {
  TW_DYNAMIC_SHARED(shared);
  out[threadIdx.x] = reinterpret_cast<float*>(shared)[threadIdx.x];
}

TW_KERNEL void throwing_kernel() {
  __syncthreads();
  TW_CHECK(threadIdx.x != 7, "thread seven");
  __syncthreads();
}

template <typename Kernel, typename... Arguments>
void run(Kernel kernel, int blocks, int threads, size_t shared, Arguments... arguments) {
  emulation::run_grid("test", blocks, 1, threads, shared, [&] { kernel(arguments...); });
}

TEST(CudaEmulation, BarriersMakeWritesVisibleAndMissingOnesShow) {
  std::vector<int> out(4 * 256);
  int wrong[2] = {};
  for (bool with_barrier : {false, true}) {
    run(neighbours_kernel, 4, 256, 0, out.data(), with_barrier);
    for (int i = 0; i < 4 * 256; ++i) wrong[with_barrier] += out[static_cast<size_t>(i)] != (i % 256 + 1) % 256;
  }
  EXPECT_GT(wrong[0], 100);
  EXPECT_EQ(wrong[1], 0);
}

TEST(CudaEmulation, WarpsRunAheadWhereNoBarrierHoldsThem) {
  std::vector<int> out(16 * 256);
  int wrong[2] = {};
  for (bool with_barrier : {false, true}) {
    run(reuse_kernel, 16, 256, 0, out.data(), with_barrier);
    for (int i = 0; i < 16 * 256; ++i) wrong[with_barrier] += out[static_cast<size_t>(i)] != (i + 128) % 256;
  }
  EXPECT_GT(wrong[0], 100);
  EXPECT_EQ(wrong[1], 0);
}

TEST(CudaEmulation, BarriersThatNotAllThreadsReachAreErrors) {
  EXPECT_THROW(run(divergent_barrier_kernel, 1, 64, 0, false), Error);
  EXPECT_THROW(run(divergent_barrier_kernel, 1, 64, 0, true), Error);
}

TEST(CudaEmulation, ShufflesOfHalfAWarpAreErrors) {
  std::vector<float> out(32);
  EXPECT_THROW(run(divergent_shuffle_kernel, 1, 32, 0, out.data()), Error);
}

TEST(CudaEmulation, UnalignedVectorsAreErrors) {
  alignas(16) float in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8] = {};
  run(copy_kernel, 1, 32, 0, in + 4, out);
  EXPECT_EQ(out[3], 8.0f);
  EXPECT_THROW(run(copy_kernel, 1, 32, 0, in + 1, out), Error);
  EXPECT_THROW(run(copy_kernel, 1, 32, 0, in, out + 2), Error);
}

TEST(CudaEmulation, LaunchesBeyondTheLimitsAreErrors) {
  const auto launch = [](int64_t y, int threads, size_t shared) {
    emulation::run_grid("test", 1, y, threads, shared, [] {});
  };
  launch(2, 1024, 162 << 10);
  EXPECT_THROW(launch(1, 1056, 0), Error);
  EXPECT_THROW(launch(1, 33, 0), Error);
  EXPECT_THROW(launch(1, 32, (162 << 10) + 1), Error);
  EXPECT_THROW(launch(65536, 32, 0), Error);
}

TEST(CudaEmulation, SharedMemoryStartsAsRubbish) {
  std::vector<float> out(64, 0.0f);
  run(stale_shared_kernel, 1, 64, 64 * sizeof(float), out.data());
  for (float v : out) EXPECT_TRUE(std::isnan(v));
}

TEST(CudaEmulation, WhatAThreadThrowsArrivesAndTheNextLaunchWorks) {
  EXPECT_THROW(run(throwing_kernel, 2, 64, 0), Error);
  std::vector<int> out(256);
  run(neighbours_kernel, 1, 256, 0, out.data(), true);
  EXPECT_EQ(out[255], 0);
}

TEST(CudaReduce, SumsAreTheSameInEveryThreadAndInAFixedOrder) {
  for (int threads : {32, 64, 256, 1024}) {
    std::vector<float> in(static_cast<size_t>(threads)), out(in.size()), again(in.size());
    std::vector<double> wide(in.size());
    double exact = 0.0, size = 0.0;
    for (size_t i = 0; i < in.size(); ++i) {
      in[i] = std::sin(static_cast<float>(i) * 37.0f) * static_cast<float>(1 << (i % 11));
      exact += in[i];
      size += std::abs(in[i]);
    }
    run(sums_kernel, 1, threads, 0, in.data(), out.data(), wide.data());
    run(sums_kernel, 1, threads, 0, in.data(), again.data(), wide.data());
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i], out[0]);
      ASSERT_EQ(out[i], again[i]);
      ASSERT_EQ(wide[i], wide[0]);
    }
    // Five levels within a warp, then at most 32 warps one by one.
    EXPECT_NEAR(out[0], exact, 37 * 0x1p-24 * size);
    EXPECT_NEAR(wide[0], exact, 74 * 0x1p-53 * size);
  }
}

}  // namespace
}  // namespace thinwire::emulation_cuda_test
