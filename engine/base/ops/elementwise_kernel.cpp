// Element-by-element loops at the speed of memory, with dropout factors made on the fly.
#include "engine/base/ops/dropout_mask.h"
#include "engine/base/ops/kernels.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

template <typename T>
void residual_add(const void* x, const void* branch, void* y, const DropoutPlan& plan, int64_t first, int64_t last) {
  add_dropped((const T*)x, (const T*)branch, (T*)y, plan, first, last);
}

template <typename T>
void dropout_apply(const void* x_start, void* y_start, const DropoutPlan& plan, int64_t first, int64_t last) {
  const T* x = (const T*)x_start;
  T* y = (T*)y_start;
  for_dropout_runs(plan, first, last, [&](int64_t start, int64_t count, const float* keep) TW_INLINE_LAMBDA {
    for_vectors(count, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
      store_at(part, y + start + i, load_at(part, x + start + i, n) * load_at(part, keep + i, n), n);
    });
  });
}

template <typename From, typename To>
void cast(const void* src_start, void* dst_start, int64_t first, int64_t last) {
  const From* src = (const From*)src_start + first;
  To* dst = (To*)dst_start + first;
  for_vectors(last - first, [&](auto part, int64_t i, int64_t n)
                                TW_INLINE_LAMBDA { store_at(part, dst + i, load_at(part, src + i, n), n); });
}

template <typename T>
void axpy(float alpha, const void* x_start, float beta, void* y_start, int64_t first, int64_t last) {
  const T* x = (const T*)x_start + first;
  T* y = (T*)y_start + first;
  for_vectors(last - first, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
    store_at(part, y + i, fma(splat(alpha), load_at(part, x + i, n), load_at(part, y + i, n) * splat(beta)), n);
  });
}

template <typename T>
void fill_constant(void* x_start, float value, int64_t first, int64_t last) {
  T* x = (T*)x_start + first;
  for_vectors(last - first,
              [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA { store_at(part, x + i, splat(value), n); });
}

// Eight rows at a time, so that the partial sums are read and written once for eight elements.
template <typename T>
void column_sums(const void* dy_start, int64_t cols, int64_t first, int64_t last, float* partial) {
  const T* dy = (const T*)dy_start;
  for (int64_t i = 0; i < cols; ++i) partial[i] = 0.0f;
  int64_t row = first;
  for (; row + 8 <= last; row += 8) {
    const T* p = dy + row * cols;
    for_vectors(cols, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
      const T* q = p + i;
      const VecF s01 = load_at(part, q, n) + load_at(part, q + cols, n);
      const VecF s23 = load_at(part, q + 2 * cols, n) + load_at(part, q + 3 * cols, n);
      const VecF s45 = load_at(part, q + 4 * cols, n) + load_at(part, q + 5 * cols, n);
      const VecF s67 = load_at(part, q + 6 * cols, n) + load_at(part, q + 7 * cols, n);
      store_at(part, partial + i, load_at(part, partial + i, n) + ((s01 + s23) + (s45 + s67)), n);
    });
  }
  for (; row < last; ++row) {
    const T* p = dy + row * cols;
    for_vectors(cols, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
      store_at(part, partial + i, load_at(part, partial + i, n) + load_at(part, p + i, n), n);
    });
  }
}

void add_partials(float* out, const float* partials, int64_t stride, int64_t parts, int64_t first, int64_t last) {
  for_vectors(last - first, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
    VecF sum{};
    for (int64_t p = 0; p < parts; ++p) sum += load_at(part, partials + p * stride + first + i, n);
    store_at(part, out + first + i, load_at(part, out + first + i, n) + sum, n);
  });
}

}  // namespace

constinit const ElementwiseKernels elementwise_kernels = {
    {residual_add<float>, residual_add<Bf16>, residual_add<Fp16>},
    {dropout_apply<float>, dropout_apply<Bf16>, dropout_apply<Fp16>},
    {{cast<float, float>, cast<float, Bf16>, cast<float, Fp16>},
     {cast<Bf16, float>, cast<Bf16, Bf16>, cast<Bf16, Fp16>},
     {cast<Fp16, float>, cast<Fp16, Bf16>, cast<Fp16, Fp16>}},
    {axpy<float>, axpy<Bf16>, axpy<Fp16>},
    {fill_constant<float>, fill_constant<Bf16>, fill_constant<Fp16>},
    {column_sums<float>, column_sums<Bf16>, column_sums<Fp16>},
    add_partials,
};

}  // namespace thinwire::TW_ISA
