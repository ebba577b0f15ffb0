// Row-major products told in columns: operands change places.
#include "engine/base/ops/product_key.h"

#include <array>

#include "engine/base/core/text.h"

namespace thinwire {
namespace {

int64_t depth_of(const Matmul& op) {
  return op.trans_a ? op.a.shape[0] : op.a.shape[1];
}

}  // namespace

std::string text_of(const MatmulKey& key) {
  constexpr std::array<const char*, 6> kEpilogues = {"plain", "bias", "gelu", "gelu_bias", "gelu_gradient", "row_sums"};
  const auto operand = [&](Fp8Kind fp8) {
    return fp8 == Fp8Kind::kNone ? std::string(name_of(key.input)) : fp8 == Fp8Kind::kE4m3 ? "e4m3" : "e5m2";
  };
  return printed("%lldx%lldx%lld %c%c %s %s to %s%s %s, aligned %d %d %d %d %d", static_cast<long long>(key.rows),
                 static_cast<long long>(key.cols), static_cast<long long>(key.depth), key.trans_a ? 'T' : 'N',
                 key.trans_b ? 'T' : 'N', operand(key.fp8_a).c_str(), operand(key.fp8_b).c_str(),
                 std::string(name_of(key.output)).c_str(), key.accumulate ? " added" : "",
                 kEpilogues.at(static_cast<size_t>(key.epilogue)), key.align_a, key.align_b, key.align_d,
                 key.align_vector, key.align_aux);
}

uint16_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer) | 256;
  return static_cast<uint16_t>(address & (~address + 1));
}

MatmulKey product_key(const Matmul& op, MatmulEpilogue epilogue, uint16_t align_vector, uint16_t align_aux) {
  // A row-major [R, C] buffer is a column-major C x R one: c^T = op(b)^T op(a)^T, and b as it lies is op(b)^T unless
  // trans_b is set.
  MatmulKey key;
  key.rows = op.c.shape[1], key.cols = op.c.shape[0], key.depth = depth_of(op);
  key.trans_a = op.trans_b, key.trans_b = op.trans_a, key.accumulate = op.accumulate;
  key.input = op.a.dtype, key.output = op.c.dtype, key.epilogue = epilogue;
  key.align_a = alignment_of(op.b.data), key.align_b = alignment_of(op.a.data), key.align_d = alignment_of(op.c.data);
  key.align_vector = align_vector, key.align_aux = align_aux;
  return key;
}

bool fits_fp8(const Matmul& op, const ProductRules& rules) {
  const int64_t m = op.c.shape[0], n = op.c.shape[1], k = depth_of(op);
  if (op.fp8 == Fp8::kOff || rules.capability < 89 || op.a.dtype == DType::f32) return false;
  if (m % 16 != 0 || n % 16 != 0 || k % 16 != 0 || k == 0) return false;
  if (alignment_of(op.a.data) < 16 || alignment_of(op.b.data) < 16 || alignment_of(op.c.data) < 16) return false;
  return !op.bias || op.c.dtype == op.a.dtype;
}

// Both operands with k contiguous: what the tensor cores of sm_90 take.
MatmulKey fp8_key(const Matmul& op) {
  const MatmulEpilogue epilogue = op.bias ? MatmulEpilogue::kBias : MatmulEpilogue::kNone;
  MatmulKey key = product_key(op, epilogue, op.bias ? alignment_of(op.bias.data) : 0, 0);
  key.trans_a = true, key.trans_b = false;
  key.fp8_a = Fp8Kind::kE4m3, key.fp8_b = op.fp8 == Fp8::kGradient ? Fp8Kind::kE5m2 : Fp8Kind::kE4m3;
  key.align_a = key.align_b = kScratchAlignment;
  return key;
}

Fp8Scratch fp8_scratch(int64_t m, int64_t n, int64_t k, bool keeps_b) {
  const auto padded = [](int64_t bytes) { return static_cast<size_t>((bytes + 511) / 512 * 512); };
  constexpr size_t kWords = 512;
  const size_t b = kWords + padded(m * k);
  return {kWords, b, b + (keeps_b ? 0 : padded(n * k))};
}

// The fused kernels want rows of the GELU input on 16 bytes. fp32 stays out of them: how exactly they compute GELU is
// not documented, and 16-bit results hide it.
MatmulEpilogue fused_epilogue(const Matmul& op, const ProductRules& rules) {
  if (!rules.fuses || op.fp8 != Fp8::kOff || op.a.dtype == DType::f32 || op.c.shape[1] % 8 != 0 || op.a.count() == 0)
    return MatmulEpilogue::kNone;
  if (op.gelu_input) return op.bias ? MatmulEpilogue::kGeluBias : MatmulEpilogue::kGelu;
  if (op.dgelu_input) return MatmulEpilogue::kGeluGradient;
  // The library writes its sums, of the result's type; ours are added to what is there.
  return op.a_sums && !op.bias && op.c.dtype == DType::f32 ? MatmulEpilogue::kRowSums : MatmulEpilogue::kNone;
}

MatmulKey first_key(const Matmul& op, const ProductRules& rules) {
  const auto of = [](const View& view) { return view ? alignment_of(view.data) : uint16_t{0}; };
  const MatmulEpilogue fused = fused_epilogue(op, rules);
  if (fused == MatmulEpilogue::kRowSums) return product_key(op, fused, kScratchAlignment, 0);
  if (fused != MatmulEpilogue::kNone)
    return product_key(op, fused, of(op.bias), of(op.gelu_input ? op.gelu_input : op.dgelu_input));
  Matmul plain = op;
  if (op.gelu_input) plain.c = op.gelu_input;
  if (fits_fp8(plain, rules)) return fp8_key(plain);
  return product_key(plain, op.bias ? MatmulEpilogue::kBias : MatmulEpilogue::kNone, of(op.bias), 0);
}

}  // namespace thinwire
