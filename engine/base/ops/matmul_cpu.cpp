// The matrix product of the CPU: oneDNN's; 16-bit inputs are first widened to fp32 where the machine cannot multiply
// them.
#include "engine/base/ops/cpu_state.h"
#include "engine/base/ops/kernels.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

// Sides of the pieces of a widened product: 3 x 4 MiB of scratch, and 1024 multiplications per converted number.
constexpr int64_t kPiece = 1024;
// Rows converted by one thread at a time.
constexpr int64_t kRowsPerBlock = 32;

struct Shape {
  int64_t m, n, k;
};

// Address of an element of a matrix or vector.
std::byte* at(const View& view, int64_t element) {
  return static_cast<std::byte*>(view.data) + static_cast<size_t>(element) * size_of(view.dtype);
}

// dst[rows, cols] (dense) = src[first_row.., first_col..] of a matrix with `stride` columns.
void widen(Exec& exec, const View& src, int64_t stride, int64_t first_row, int64_t first_col, int64_t rows,
           int64_t cols, float* dst) {
  const auto kernel = TW_PICK_KERNELS(matmul_kernels).widen[storage_index(src.dtype)];
  parallel_blocks(exec.threads, rows, kRowsPerBlock, [&](int64_t from, int64_t to) {
    for (int64_t r = from; r < to; ++r) kernel(at(src, (first_row + r) * stride + first_col), dst + r * cols, cols);
  });
}

// c[first_row.., first_col..] = sum (+ bias) (+ c). sum: [rows, cols] with rows `sum_stride` apart (0: one row for
// all).
void finish(Exec& exec, const Matmul& op, const float* sum, const float* bias, int64_t n, int64_t first_row,
            int64_t first_col, int64_t rows, int64_t cols, int64_t sum_stride) {
  const auto kernel = TW_PICK_KERNELS(matmul_kernels).finish[storage_index(op.c.dtype)];
  parallel_blocks(exec.threads, rows, kRowsPerBlock, [&](int64_t from, int64_t to) {
    for (int64_t r = from; r < to; ++r)
      kernel(sum + r * sum_stride, bias, op.accumulate, at(op.c, (first_row + r) * n + first_col), cols);
  });
}

// Converts a and b to fp32 piece by piece. Each piece of c is summed in fp32 over the pieces of K in ascending order,
// then rounded once. The cuts depend on the shape alone.
void widened_product(Exec& exec, const Matmul& op, const Shape& s) {
  CpuOpState& state = cpu_state(exec);
  const int64_t mb = std::min(s.m, kPiece), nb = std::min(s.n, kPiece), kb = std::min(s.k, kPiece);
  const auto padded = [](int64_t n) { return (n + 15) / 16 * 16; };
  const int64_t a_size = padded(mb * kb), b_size = padded(kb * nb), c_size = padded(mb * nb);
  float* a = reinterpret_cast<float*>(
      state.product_scratch(static_cast<size_t>(a_size + b_size + c_size + nb) * sizeof(float)).data());
  float* b = a + a_size;
  float* c = b + b_size;
  float* bias = op.bias ? c + c_size : nullptr;
  for (int64_t n0 = 0; n0 < s.n; n0 += nb) {
    const int64_t n = std::min(nb, s.n - n0);
    if (op.bias) widen(exec, op.bias, s.n, 0, n0, 1, n, bias);
    for (int64_t m0 = 0; m0 < s.m; m0 += mb) {
      const int64_t m = std::min(mb, s.m - m0);
      for (int64_t k0 = 0; k0 < s.k; k0 += kb) {
        const int64_t k = std::min(kb, s.k - k0);
        if (op.trans_a)
          widen(exec, op.a, s.m, k0, m0, k, m, a);
        else
          widen(exec, op.a, s.k, m0, k0, m, k, a);
        const bool b_is_there = m0 > 0 && k == s.k;  // left by the rows of c above
        if (!b_is_there && op.trans_b) widen(exec, op.b, s.k, n0, k0, n, k, b);
        if (!b_is_there && !op.trans_b) widen(exec, op.b, s.n, k0, n0, k, n, b);
        TiledProduct product;
        product.a = a, product.b = b, product.c = c;
        product.m = m, product.n = n, product.k = k;
        product.lda = op.trans_a ? m : k, product.ldb = op.trans_b ? k : n, product.ldc = n;
        product.trans_a = op.trans_a, product.trans_b = op.trans_b;
        product.accumulate = k0 > 0;
        state.products().run(product, exec.threads);
      }
      finish(exec, op, c, bias, s.n, m0, n0, m, n, n);
    }
  }
}

// K = 0: the product is 0.
void empty_sum(Exec& exec, const Matmul& op, const Shape& s) {
  float* zeros =
      reinterpret_cast<float*>(cpu_state(exec).product_scratch(static_cast<size_t>(2 * s.n) * sizeof(float)).data());
  std::fill(zeros, zeros + s.n, 0.0f);
  float* bias = op.bias ? zeros + s.n : nullptr;
  if (op.bias) widen(exec, op.bias, s.n, 0, 0, 1, s.n, bias);
  finish(exec, op, zeros, bias, s.n, 0, 0, s.m, s.n, 0);
}

}  // namespace

// fp32, and bf16 on machines with AVX-512-bf16, run natively (tiled_product.h). fp16, and bf16 on older machines, are
// widened to fp32 in cache-sized pieces and rounded once at the end. K = 0 gives the bias (or 0). The first call with a
// combination of shapes, dtypes, flags and threads makes primitives and grows scratch in the Exec's CpuOpState; later
// calls make nothing. `b_version` is not used: packing ahead gains nothing here. c aliases nothing.
void matmul_cpu(Exec& exec, const Matmul& op) {
  const Shape s{op.c.shape[0], op.c.shape[1], op.trans_a ? op.a.shape[0] : op.a.shape[1]};
  TW_CHECK(!op.gelu_input && !op.dgelu_input && !op.a_sums && op.fp8 == Fp8::kOff,
           "the CPU table has no fused products and no fp8");
  if (s.k == 0) return empty_sum(exec, op, s);
  const bool native =
      op.a.dtype == DType::f32 || (op.a.dtype == DType::bf16 && cpu_state(exec).products().takes_bf16());
  if (!native) return widened_product(exec, op, s);
  TiledProduct product;
  product.a = op.a.data, product.b = op.b.data, product.c = op.c.data;
  product.bias = op.bias ? op.bias.data : nullptr;
  product.m = s.m, product.n = s.n, product.k = s.k;
  product.lda = op.a.shape[1], product.ldb = op.b.shape[1], product.ldc = s.n;
  product.trans_a = op.trans_a, product.trans_b = op.trans_b, product.accumulate = op.accumulate;
  product.input = op.a.dtype, product.output = op.c.dtype;
  cpu_state(exec).products().run(product, exec.threads);
}

}  // namespace thinwire
