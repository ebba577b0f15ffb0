// Products by cuBLASLt: what is fused, what is rounded to fp8, and what falls back to our own kernel.
#include "engine/base/ops/cuda_state.h"
#include "engine/base/ops/matmul_plans_cuda.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

bool queue_product(Exec& exec, const MatmulKey& key, const MatmulPointers& at) {
  CudaState& state = state_of(exec);
  return state.matmul_plans().run(key, at, state.product_place(stream_of(exec)), exec.deterministic);
}

// Queues the op in its own types; false, with nothing queued, where cuBLASLt has no kernel. vector, aux: nullptr where
// the epilogue has none.
bool library_product(Exec& exec, const Matmul& op, MatmulEpilogue epilogue, void* vector, void* aux) {
  const MatmulKey key = product_key(op, epilogue, vector != nullptr ? alignment_of(vector) : uint16_t{0},
                                    aux != nullptr ? alignment_of(aux) : uint16_t{0});
  return queue_product(exec, key, {op.b.data, op.a.data, op.c.data, vector, aux});
}

// Rounds the operands to fp8, transposed where they do not lie as fp8_key() says; the library's a is our b. False
// where fits_fp8() forbids it, or the library has no kernel.
bool fp8_product(Exec& exec, const Matmul& op) {
  CudaState& state = state_of(exec);
  if (op.fp8 != Fp8::kOff && state.capability() < 89)
    throw_bad_config("fp8_format: hybrid: this GPU (sm_" + std::to_string(state.capability()) +
                     ") has no products in fp8, as H100, B200 and their like have; say fp8_format: none");
  if (!fits_fp8(op, state.product_rules())) return false;
  const MatmulKey key = fp8_key(op);
  const int64_t m = key.cols, n = key.rows, k = key.depth;
  const cudaStream_t stream = stream_of(exec);
  const bool keeps = op.b_version >= 0;  // b is a weight: one copy per version, made both ways round
  const Fp8Scratch places = fp8_scratch(m, n, k, keeps);
  std::byte* scratch = state.product_scratch().take(places.bytes, stream);
  auto* words = reinterpret_cast<uint32_t*>(scratch);
  std::byte *const rounded_a = scratch + places.a, *const rounded_b = scratch + places.b;
  const auto rounded = [&](const View& x, bool turn, Fp8Kind kind, std::byte* to, uint32_t* scale) {
    const Fp8Copy copy{turn ? nullptr : to, turn ? to : nullptr, scale};
    queue_fp8(x, kind, copy, stream);
    return copy;
  };
  const Fp8Copy a = rounded(op.a, op.trans_a, key.fp8_b, rounded_a, words);
  const Fp8Copy b = keeps ? state.fp8_weights().of(op.b, op.b_version,
                                                   [&](const Fp8Copy& to) { queue_fp8(op.b, key.fp8_a, to, stream); })
                          : rounded(op.b, !op.trans_b, key.fp8_a, rounded_b, words + kFp8Words);
  return queue_product(exec, key,
                       {op.trans_b ? b.lying : b.turned, op.trans_a ? a.turned : a.lying, op.c.data, op.bias.data,
                        nullptr, b.words + kFp8Factor, a.words + kFp8Factor});
}

void plain_product(Exec& exec, const Matmul& op) {
  if (fp8_product(exec, op)) return;
  const int64_t k = op.trans_a ? op.a.shape[0] : op.a.shape[1];
  const bool mixed_bias = op.bias && op.c.dtype != op.a.dtype;  // the library wants both of one dtype
  const MatmulEpilogue epilogue = op.bias ? MatmulEpilogue::kBias : MatmulEpilogue::kNone;
  if (k == 0 || mixed_bias || !library_product(exec, op, epilogue, op.bias.data, nullptr)) matmul_simple_cuda(exec, op);
}

// The op with GELU, its gradient or the row sums of a in the library's epilogue; false where none of it can be fused.
// Row sums are the bias gradient beside a weight gradient: the library overwrites, the op adds, so they go by scratch.
// (It could also make the bias gradient of the layer before, from the result's columns, but in 16 bits; ours is fp32.)
bool fused_product(Exec& exec, const Matmul& op) {
  const MatmulEpilogue fused = fused_epilogue(op, state_of(exec).product_rules());
  if (fused == MatmulEpilogue::kNone) return false;
  if (fused != MatmulEpilogue::kRowSums)
    return library_product(exec, op, fused, op.bias.data, op.gelu_input ? op.gelu_input.data : op.dgelu_input.data);
  const cudaStream_t stream = stream_of(exec);
  std::byte* sums = state_of(exec).product_scratch().take(op.a_sums.bytes(), stream);
  TW_CUDA(cudaMemsetAsync(sums, 0, op.a_sums.bytes(), stream));
  if (!library_product(exec, op, fused, sums, nullptr)) return false;
  axpy_cuda(exec, {1.0f, View(sums, DType::f32, {op.a_sums.count()}), op.a_sums});
  return true;
}

}  // namespace

// cuBLASLt accumulates in fp32 (fp32 inputs are never multiplied as TF32) and adds the bias in its epilogue. What it
// has no kernel for (K = 0, odd alignments, a 16-bit bias over an fp32 result) goes to matmul_simple_cuda. c aliases
// nothing. The same call gives the same bits unless Exec::deterministic is false: the algorithm is fixed per shape
// (matmul_plans_cuda.h), and partial sums are put together in a fixed order.
void matmul_cuda(Exec& exec, const Matmul& op) {
  if (op.c.count() == 0) return;  // the library refuses what has no rows or columns
  if (fused_product(exec, op)) return;
  // Not fused: the product first, then a pass each for GELU, its gradient and the row sums.
  Matmul plain = op;
  plain.gelu_input = plain.dgelu_input = plain.a_sums = View{};
  if (op.gelu_input) plain.c = op.gelu_input;
  TW_CHECK(!op.a_sums || op.trans_a, "sums of a matrix that is not transposed");
  plain_product(exec, plain);
  if (op.gelu_input) gelu_forward_cuda(exec, {GeluKind::kTanh, op.gelu_input, op.c});
  if (op.dgelu_input) gelu_backward_cuda(exec, {GeluKind::kTanh, op.dgelu_input, op.c, op.c});
  if (op.a_sums) checked<bias_gradient_cuda>(exec, BiasGradient{op.a, op.a_sums});  // checked: none where k is 0
}

}  // namespace thinwire
