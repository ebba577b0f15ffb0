// AdamW and SGD over a run of elements, one vector at a time; compiled once per instruction set.
#include "engine/base/ops/kernels.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

// fp32: the master is what computes.
template <typename Part>
TW_INLINE void put_working(Part, float*, int64_t, VecF, int64_t) {}
template <typename Part, typename T>
TW_INLINE void put_working(Part part, T* working, int64_t i, VecF p, int64_t n) {
  store_at(part, working + i, p, n);
}

template <typename Working, typename Gradient = float>
void adamw(const AdamW& op, const StepState& state, float decay, int64_t first, int64_t last) {
  float* master = (float*)op.master.data + first;
  float* moment = (float*)op.m.data + first;
  float* variance = (float*)op.v.data + first;
  Gradient* gradient = (Gradient*)op.gradient.data + first;
  Working* working = (Working*)op.working.data;
  const float lr = state.lr, scale = state.grad_scale, eps = (float)op.eps;
  // 1 - beta from the double: 1 - 0.999f is off by 1.3e-5 of itself.
  const float beta1 = (float)op.beta1, rest1 = (float)(1.0 - op.beta1);
  const float beta2 = (float)op.beta2, rest2 = (float)(1.0 - op.beta2);
  const float correction1 = 1.0f / state.bias_correction1, correction2 = 1.0f / state.bias_correction2;
  const bool zero_gradient = op.zero_gradient;
  if (op.takes_momentum) {
    // The momentum comes ready, and v is that of the last plain step. Where v is zero m stays zero: times a huge
    // number, the root is a limit that holds nowhere else.
    for_vectors(last - first, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
      const VecF m = load_at(part, gradient + i, n) * splat(scale);
      VecF p = load_at(part, master + i, n);
      const VecF root = vsqrt(load_at(part, variance + i, n) * splat(correction2));
      const VecF limit = root * splat(kMomentumLimit);
      const VecF step = vmin(vmax(m * splat(correction1), VecF{} - limit), limit);
      p = p - splat(lr) * fma(splat(decay), p, step / (root + splat(eps)));
      const VecF mask = root * splat(1e30f);
      store_at(part, moment + i, vmin(vmax(m, VecF{} - mask), mask), n);
      store_at(part, master + i, p, n);
      put_working(part, working, first + i, p, n);
      if (zero_gradient) store_at(part, gradient + i, VecF{}, n);
    });
    return;
  }
  for_vectors(last - first, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
    const VecF g = load_at(part, gradient + i, n) * splat(scale);
    VecF p = load_at(part, master + i, n);
    const VecF m = fma(splat(beta1), load_at(part, moment + i, n), splat(rest1) * g);
    const VecF v = fma(splat(beta2), load_at(part, variance + i, n), splat(rest2) * g * g);
    const VecF update = m * splat(correction1) / (vsqrt(v * splat(correction2)) + splat(eps));
    p = p - splat(lr) * fma(splat(decay), p, update);
    store_at(part, moment + i, m, n);
    store_at(part, variance + i, v, n);
    store_at(part, master + i, p, n);
    put_working(part, working, first + i, p, n);
    if (zero_gradient) store_at(part, gradient + i, VecF{}, n);
  });
}

template <typename Working, typename Gradient = float>
void sgd(const Sgd& op, const StepState& state, float decay, int64_t first, int64_t last) {
  float* master = (float*)op.master.data + first;
  float* buffer = op.momentum_buffer.data == nullptr ? nullptr : (float*)op.momentum_buffer.data + first;
  Gradient* gradient = (Gradient*)op.gradient.data + first;
  Working* working = (Working*)op.working.data;
  const float lr = state.lr, scale = state.grad_scale, momentum = op.momentum;
  const bool zero_gradient = op.zero_gradient;
  for_vectors(last - first, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
    VecF p = load_at(part, master + i, n);
    VecF step = fma(splat(decay), p, load_at(part, gradient + i, n) * splat(scale));
    if (buffer != nullptr) {
      step = fma(splat(momentum), load_at(part, buffer + i, n), step);
      store_at(part, buffer + i, step, n);
    }
    p = p - splat(lr) * step;
    store_at(part, master + i, p, n);
    put_working(part, working, first + i, p, n);
    if (zero_gradient) store_at(part, gradient + i, VecF{}, n);
  });
}

}  // namespace

constinit const OptimizerKernels optimizer_kernels = {
    {adamw<float>, adamw<Bf16>, adamw<Fp16>}, {sgd<float>, sgd<Bf16>, sgd<Fp16>}, adamw<Bf16, Bf16>, sgd<Bf16, Bf16>};

}  // namespace thinwire::TW_ISA
