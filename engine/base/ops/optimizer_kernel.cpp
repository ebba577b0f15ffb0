// AdamW and SGD over a run of elements, one vector at a time; compiled once per instruction set.
#include "engine/base/ops/optimizer_kernel.h"

#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

enum class Working { kNone, kBf16, kFp16 };

// Loads and stores of a full vector or of the first n lanes, chosen at compile time: the same arithmetic serves both.
template <bool kFull>
TW_INLINE VecF take(const float* p, int64_t n) {
  if constexpr (kFull)
    return load(p);
  else
    return load_first(p, n);
}
template <bool kFull, typename T>
TW_INLINE void put(T* p, VecF v, int64_t n) {
  if constexpr (kFull)
    store(p, v);
  else
    store_first(p, v, n);
}
template <Working kWorking, bool kFull, typename Block>
TW_INLINE void put_working(const Block& b, int64_t i, VecF p, int64_t n) {
  if constexpr (kWorking == Working::kBf16) put<kFull>(b.working_bf16 + i, p, n);
  if constexpr (kWorking == Working::kFp16) put<kFull>(b.working_fp16 + i, p, n);
}

template <Working kWorking, bool kFull>
TW_INLINE void adamw_vector(const AdamWBlock& b, int64_t i, int64_t n) {
  const VecF g = take<kFull>(b.gradient + i, n) * splat(b.grad_scale);
  VecF p = take<kFull>(b.master + i, n);
  const VecF m = fma(splat(b.beta1), take<kFull>(b.m + i, n), splat(b.one_minus_beta1) * g);
  const VecF v = fma(splat(b.beta2), take<kFull>(b.v + i, n), splat(b.one_minus_beta2) * g * g);
  const VecF update = m * splat(b.inverse_correction1) / (vsqrt(v * splat(b.inverse_correction2)) + splat(b.eps));
  p = p - splat(b.lr) * fma(splat(b.decay), p, update);
  put<kFull>(b.m + i, m, n);
  put<kFull>(b.v + i, v, n);
  put<kFull>(b.master + i, p, n);
  put_working<kWorking, kFull>(b, i, p, n);
  if (b.zero_gradient) put<kFull>(b.gradient + i, VecF{}, n);
}

// The momentum comes ready, and v is that of the last plain step. Where v is zero m stays zero: times a huge number,
// the root is a limit that holds nowhere else.
template <Working kWorking, bool kFull>
TW_INLINE void momentum_vector(const AdamWBlock& b, int64_t i, int64_t n) {
  const VecF m = take<kFull>(b.gradient + i, n) * splat(b.grad_scale);
  VecF p = take<kFull>(b.master + i, n);
  const VecF root = vsqrt(take<kFull>(b.v + i, n) * splat(b.inverse_correction2));
  const VecF limit = root * splat(b.momentum_limit);
  const VecF step = vmin(vmax(m * splat(b.inverse_correction1), VecF{} - limit), limit);
  p = p - splat(b.lr) * fma(splat(b.decay), p, step / (root + splat(b.eps)));
  const VecF mask = root * splat(1e30f);
  put<kFull>(b.m + i, vmin(vmax(m, VecF{} - mask), mask), n);
  put<kFull>(b.master + i, p, n);
  put_working<kWorking, kFull>(b, i, p, n);
  if (b.zero_gradient) put<kFull>(b.gradient + i, VecF{}, n);
}

template <Working kWorking, bool kFull>
TW_INLINE void sgd_vector(const SgdBlock& b, int64_t i, int64_t n) {
  VecF p = take<kFull>(b.master + i, n);
  VecF step = fma(splat(b.decay), p, take<kFull>(b.gradient + i, n) * splat(b.grad_scale));
  if (b.buffer != nullptr) {
    step = fma(splat(b.momentum), take<kFull>(b.buffer + i, n), step);
    put<kFull>(b.buffer + i, step, n);
  }
  p = p - splat(b.lr) * step;
  put<kFull>(b.master + i, p, n);
  put_working<kWorking, kFull>(b, i, p, n);
  if (b.zero_gradient) put<kFull>(b.gradient + i, VecF{}, n);
}

template <Working kWorking>
void adamw_run(const AdamWBlock& block) {
  const AdamWBlock b = block;  // a local copy cannot alias the stores: its fields stay in registers
  int64_t i = b.first;
  if (b.takes_momentum) {
    for (; i + kLanes <= b.last; i += kLanes) momentum_vector<kWorking, true>(b, i, kLanes);
    if (i < b.last) momentum_vector<kWorking, false>(b, i, b.last - i);
    return;
  }
  for (; i + kLanes <= b.last; i += kLanes) adamw_vector<kWorking, true>(b, i, kLanes);
  if (i < b.last) adamw_vector<kWorking, false>(b, i, b.last - i);
}

template <Working kWorking>
void sgd_run(const SgdBlock& block) {
  const SgdBlock b = block;
  int64_t i = b.first;
  for (; i + kLanes <= b.last; i += kLanes) sgd_vector<kWorking, true>(b, i, kLanes);
  if (i < b.last) sgd_vector<kWorking, false>(b, i, b.last - i);
}

void adamw_block(const AdamWBlock& b) {
  if (b.working_bf16 != nullptr)
    adamw_run<Working::kBf16>(b);
  else if (b.working_fp16 != nullptr)
    adamw_run<Working::kFp16>(b);
  else
    adamw_run<Working::kNone>(b);
}

void sgd_block(const SgdBlock& b) {
  if (b.working_bf16 != nullptr)
    sgd_run<Working::kBf16>(b);
  else if (b.working_fp16 != nullptr)
    sgd_run<Working::kFp16>(b);
  else
    sgd_run<Working::kNone>(b);
}

void momentum_share_block(const float* m, float* gradient, int64_t n, float momentum_factor, float gradient_factor) {
  const auto one = [&]<bool kFull>(int64_t i, int64_t lanes) {
    const VecF g = take<kFull>(gradient + i, lanes) * splat(gradient_factor);
    put<kFull>(gradient + i, fma(splat(momentum_factor), take<kFull>(m + i, lanes), g), lanes);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) one.template operator()<true>(i, kLanes);
  if (i < n) one.template operator()<false>(i, n - i);
}

}  // namespace

constinit const OptimizerKernels optimizer_kernels = {adamw_block, sgd_block, momentum_share_block};

}  // namespace thinwire::TW_ISA
