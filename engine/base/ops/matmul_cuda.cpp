// Row-major products told to cuBLASLt, which thinks in columns: operands change places.
#include "engine/base/ops/cuda_state.h"
#include "engine/base/ops/matmul_plans_cuda.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

// What cuBLASLt is asked for; false, with nothing queued, where it has no kernel.
bool library_product(Exec& exec, const Matmul& op, MatmulEpilogue epilogue, void* vector, void* aux) {
  CudaState& state = state_of(exec);
  // A row-major [R, C] buffer is a column-major C x R one: c^T = op(b)^T op(a)^T, and b as it lies is op(b)^T unless
  // trans_b is set.
  MatmulKey key;
  key.rows = op.c.shape[1], key.cols = op.c.shape[0], key.depth = op.trans_a ? op.a.shape[0] : op.a.shape[1];
  key.trans_a = op.trans_b, key.trans_b = op.trans_a, key.accumulate = op.accumulate;
  key.input = op.a.dtype, key.output = op.c.dtype, key.epilogue = epilogue;
  const MatmulPointers at{op.b.data, op.a.data, op.c.data, vector, aux};
  key.align_a = alignment_of(at.a), key.align_b = alignment_of(at.b), key.align_d = alignment_of(at.d);
  if (vector != nullptr) key.align_vector = alignment_of(vector);
  if (aux != nullptr) key.align_aux = alignment_of(aux);
  const std::span<std::byte> workspace = state.cublas_workspace();
  return state.matmul_plans().run(state.cublas(), key, at, workspace.data(), workspace.size(), stream_of(exec),
                                  !exec.deterministic);
}

// Both operands with k contiguous: what the tensor cores of sm_90 take. An operand that lies otherwise is turned while
// it is rounded. False where a size or an alignment forbids it, or the library has no kernel.
bool fp8_product(Exec& exec, const Matmul& op) {
  CudaState& state = state_of(exec);
  const int64_t m = op.c.shape[0], n = op.c.shape[1], k = op.trans_a ? op.a.shape[0] : op.a.shape[1];
  if (state.capability() < 89 || op.a.dtype == DType::f32 || m % 16 != 0 || n % 16 != 0 || k % 16 != 0 || k == 0)
    return false;
  if (alignment_of(op.a.data) < 16 || alignment_of(op.b.data) < 16 || alignment_of(op.c.data) < 16) return false;
  if (op.bias && op.c.dtype != op.a.dtype) return false;
  const cudaStream_t stream = stream_of(exec);
  const auto padded = [](int64_t bytes) { return static_cast<size_t>((bytes + 511) / 512 * 512); };
  std::byte* a = state.product_scratch().take(padded(m * k) + padded(n * k) + 512, stream);
  std::byte* b = a + padded(m * k);
  auto* words = reinterpret_cast<uint32_t*>(b + padded(n * k));
  const Fp8Kind a_kind = op.fp8 == Fp8::kGradient ? Fp8Kind::kE5m2 : Fp8Kind::kE4m3;
  uint32_t* const b_words = words + kFp8Words;
  MatmulKey key;
  key.rows = n, key.cols = m, key.depth = k;
  key.trans_a = true, key.trans_b = false, key.accumulate = op.accumulate;
  key.input = op.a.dtype, key.output = op.c.dtype;
  key.epilogue = op.bias ? MatmulEpilogue::kBias : MatmulEpilogue::kNone;
  key.fp8_a = Fp8Kind::kE4m3, key.fp8_b = a_kind;
  MatmulPointers at{b, a, op.c.data, op.bias.data, nullptr, b_words + kFp8Factor, words + kFp8Factor};
  key.align_a = alignment_of(at.a), key.align_b = alignment_of(at.b), key.align_d = alignment_of(at.d);
  if (op.bias) key.align_vector = alignment_of(op.bias.data);
  queue_fp8(op.a, op.trans_a, a_kind, a, words, stream);
  queue_fp8(op.b, !op.trans_b, Fp8Kind::kE4m3, b, b_words, stream);
  const std::span<std::byte> workspace = state.cublas_workspace();
  return state.matmul_plans().run(state.cublas(), key, at, workspace.data(), workspace.size(), stream,
                                  !exec.deterministic);
}

void plain_product(Exec& exec, const Matmul& op) {
  if (op.fp8 != Fp8::kOff && fp8_product(exec, op)) return;
  const int64_t k = op.trans_a ? op.a.shape[0] : op.a.shape[1];
  const bool mixed_bias = op.bias && op.c.dtype != op.a.dtype;  // the library wants both of one dtype
  const MatmulEpilogue epilogue = op.bias ? MatmulEpilogue::kBias : MatmulEpilogue::kNone;
  if (k == 0 || mixed_bias || !library_product(exec, op, epilogue, op.bias.data, nullptr)) matmul_simple_cuda(exec, op);
}

// The fused kernels want rows of the GELU input on 16 bytes. fp32 stays out of them: how exactly they compute GELU is
// not documented, and 16-bit results hide it.
bool may_fuse(Exec& exec, const Matmul& op) {
  return state_of(exec).fuses() && op.fp8 == Fp8::kOff && op.a.dtype != DType::f32 && op.c.shape[1] % 8 == 0 &&
         op.a.count() > 0;
}

bool product_with_gelu(Exec& exec, const Matmul& op) {
  return may_fuse(exec, op) && library_product(exec, op, op.bias ? MatmulEpilogue::kGeluBias : MatmulEpilogue::kGelu,
                                               op.bias.data, op.gelu_input.data);
}

// (The library could sum the result's columns as well, the bias gradient of the layer before, but as numbers of the
// result's 16 bits: ours are fp32. They come with that layer's weight gradient, below, without a pass of their own.)
bool product_with_dgelu(Exec& exec, const Matmul& op) {
  return may_fuse(exec, op) && library_product(exec, op, MatmulEpilogue::kGeluGradient, nullptr, op.dgelu_input.data);
}

// The library writes its sums; ours are added to what is there.
bool product_with_sums(Exec& exec, const Matmul& op) {
  if (!may_fuse(exec, op) || op.bias || op.c.dtype != DType::f32) return false;
  const cudaStream_t stream = stream_of(exec);
  std::byte* sums = state_of(exec).product_scratch().take(op.a_sums.bytes(), stream);
  TW_CUDA(cudaMemsetAsync(sums, 0, op.a_sums.bytes(), stream));
  if (!library_product(exec, op, MatmulEpilogue::kRowSums, sums, nullptr)) return false;
  axpy_cuda(exec, {1.0f, View(sums, DType::f32, {op.a_sums.count()}), op.a_sums});
  return true;
}

}  // namespace

// cuBLASLt with fp32 accumulation (fp32 inputs multiply as fp32: TF32 is never asked for), the bias in its epilogue.
// What the library has no kernel for (K = 0, odd alignments, a 16-bit bias over an fp32 result) goes through
// matmul_simple_cuda. c aliases nothing. The same call gives the same bits (unless Exec::deterministic is false): the
// algorithm is fixed per shape (matmul_plans_cuda.h), and sums that it splits are put together in a fixed order.
void matmul_cuda(Exec& exec, const Matmul& op) {
  Matmul plain = op;
  plain.gelu_input = plain.dgelu_input = plain.a_sums = View{};
  if (op.gelu_input) {
    if (product_with_gelu(exec, op)) return;
    plain.c = op.gelu_input;
    plain_product(exec, plain);
    gelu_forward_cuda(exec, {GeluKind::kTanh, op.gelu_input, op.c});
  } else if (op.dgelu_input) {
    if (product_with_dgelu(exec, op)) return;
    plain_product(exec, plain);
    gelu_backward_cuda(exec, {GeluKind::kTanh, op.dgelu_input, op.c, op.c});
  } else if (op.a_sums) {
    if (product_with_sums(exec, op)) return;
    TW_CHECK(op.trans_a, "sums of a matrix that is not transposed");
    plain_product(exec, plain);
    checked<bias_gradient_cuda>(exec, BiasGradient{op.a, op.a_sums});  // nothing to do where k is 0
  } else {
    plain_product(exec, plain);
  }
}

}  // namespace thinwire
