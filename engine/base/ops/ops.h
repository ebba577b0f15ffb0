// The math: one table of typed functions per backend. Every op states shapes, dtypes and what it does to its outputs.
//
// Legend: N tokens (batch * length, batch-major), h hidden, f feed-forward, V vocabulary rows, d head size; T is a
// dtype, the compute dtype of the run (fp32, bf16 or fp16). Statistics, losses and gradients of parameters are fp32.
// Arithmetic inside an op is fp32 (sums over rows in fixed blocks), results are rounded once to the output's dtype. The
// bits of a result do not depend on the number of threads: reductions are cut by data, never by thread. CPU ops take
// subnormal numbers as zero. Wrong shapes or dtypes are CHECK failures. All pointers are device memory of the table's
// backend.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/base/core/philox.h"
#include "engine/base/core/sequence_cut.h"
#include "engine/base/core/view.h"
#include "engine/base/device/device.h"
#include "engine/base/device/stream.h"

namespace thinwire {

// What a backend keeps between calls (oneDNN primitives, packed weights, scratch memory). One per Exec; not shared by
// threads.
class OpState {
 public:
  virtual ~OpState() = default;
  // Waits for the stream; a CHECK failure if an op on it met a token or target out of range. Does nothing on CPU, where
  // the op itself fails.
  virtual void check_faults(Stream&) {}
  // How often a scratch buffer was replaced by a larger one. Recordings from before (engine/base/device/recording.h)
  // point at the old one and must not be queued again.
  virtual uint64_t memory_moves() const { return 0; }
};

struct OpTable;
class OpWatcher;  // is told of every op (op_watch.h)

// Where an op runs: the table, the stream, the number of CPU threads, and the backend's state.
struct Exec {
  const OpTable& ops;
  Stream& stream;
  int threads = 1;
  std::unique_ptr<OpState> state;
  // false lets a backend take a faster algorithm whose bits differ from run to run (only GPUs have any).
  bool deterministic = true;
  OpWatcher* watcher = nullptr;
};

// Whether the operands of a product are first rounded to fp8, each by one scale from its largest magnitude at that
// moment. kForward: both to e4m3; kGradient: `a`, a gradient, to e5m2, b to e4m3. Only on CUDA (a CHECK elsewhere), and
// only 16-bit operands where GPU and shapes allow; others stay as they are.
enum class Fp8 { kOff, kForward, kGradient };

// c = op(a) * op(b) (+ bias over columns) (+ c). 2-D, contiguous. a: [M,K] or [K,M] when trans_a; b: [K,N] or [N,K]
// when trans_b. a, b: same dtype T; c: T or fp32; bias: [N] of T or empty. Accumulation in fp32.
struct Matmul {
  View a, b, c;
  bool trans_a = false, trans_b = false;
  View bias;
  bool accumulate = false;
  // >= 0: b is a weight whose content changes only when this number does; the backend may keep a packed copy.
  int64_t b_version = -1;
  // Forms that save passes over memory, at most one of them, where OpTable::fused_products says so (else a CHECK).
  View gelu_input;   // [M,N] of c's dtype: becomes product + bias, and c = gelu_tanh of it; no accumulate
  View dgelu_input;  // [M,N] of c's dtype: c = product * gelu_tanh'(dgelu_input); no bias, no accumulate
  View a_sums;       // [M] fp32: += sums over k of op(a), the bias gradient beside a weight gradient
  Fp8 fp8 = Fp8::kOff;
};

enum class NormKind { kLayerNorm, kRmsNorm };

// Counter-based dropout. Element e of sample s draws word e % 4 of philox(key, {e/4 low, s low, s high 16 | e/4 high
// 16, layer<<8|purpose}) and is kept when uniform01(word) >= p; kept values are scaled by 1/(1-p). p == 0 switches it
// off and nothing else is read.
struct Dropout {
  float p = 0.0f;
  PhiloxKey key;
  RandomPurpose purpose = RandomPurpose::kHiddenDropout;
  uint32_t layer = 0;
  const int64_t* sample_ids = nullptr;  // device memory, one per batch row
  int64_t batch = 1;                    // samples, of equally many rows; element e counts within its sample
  // Where the tensor is a part of a larger one, elements are numbered in the whole: any cut gives the same bits.
  int64_t rows = 0, first_row = 0;  // rows of the whole (0: this is all), and which of them is the first here
  int64_t first_head = 0;           // attention: number of the first head here
  SequenceCut cut;                  // rows of a sample: those of the cut, numbered as in the whole sequence
};

// With `branch`: sum = x + dropout(branch) ([N,h] T, may alias x), y = norm(sum) * weight + bias. Without: `sum` is
// empty, y = norm(x) * weight + bias. weight (empty: ones), bias (or empty): [h] T. mean (LayerNorm only), rstd: [N]
// fp32, may be empty in evaluation.
struct NormForward {
  NormKind kind = NormKind::kLayerNorm;
  float eps = 1e-5f;
  View x, branch, sum;
  Dropout dropout;
  View weight, bias, y, mean, rstd;
};

// dx = residual + d(norm)/dx(dy) ([N,h] T; residual may be empty and may alias dx); dweight, dbias: [h] fp32,
// accumulated. x is the input of the norm (`sum` of the forward).
struct NormBackward {
  NormKind kind = NormKind::kLayerNorm;
  View dy, x, weight, mean, rstd, residual, dx, dweight, dbias;
};

// y = x + dropout(branch): all [N,h] T; y may alias x.
struct ResidualAdd {
  View x, branch, y;
  Dropout dropout;
};

// y = dropout(x): [N,h] T; y may alias x. Forward of a bare dropout, and backward of any: the gradient of the branch is
// the same mask and scale on dy.
struct DropoutApply {
  View x, y;
  Dropout dropout;
};

// The head (group g, member j) of token t of sample b begins at element offset + b*batch + t*token + g*group + j*head.
struct HeadLayout {
  int64_t offset = 0, batch = 0, token = 0, group = 0, head = 0;
};

struct AttentionShape {
  int64_t batch = 0, q_len = 0, kv_len = 0, groups = 0, heads_per_group = 0, head_dim = 0;
  // length > 0: a part, q_len queries from token first_query on and kv_len keys from token first_key on of sequences of
  // `length` tokens. length 0: no part; the last query is at the last key.
  int64_t length = 0, first_query = 0, first_key = 0;
  int64_t heads() const { return groups * heads_per_group; }
  bool part() const { return length > 0; }
  // Query t sees no key after t + behind().
  int64_t behind() const { return part() ? first_query - first_key : kv_len - q_len; }
};

// Rotates the first rot_dim elements of every head in place (half-split pairs (i, i + rot/2)); `inverse` for the
// backward. cos, sin: [>= position + 1, rot_dim/2] fp32. Token t of every sample has position first_position + t, or
// positions[b, t] ([batch * length] i32).
struct Rotary {
  View data;
  HeadLayout layout;
  int64_t batch = 0, length = 0, groups = 0, heads_per_group = 0, rot_dim = 0;
  int64_t first_position = 0;
  View cos, sin;
  View positions;
  bool inverse = false;
};

inline constexpr int64_t kNoWindow = -1;

// Causal attention: query t attends to keys first_keys[b, t] .. t + behind(). out[b,t,head] = softmax(scale * q k^T) v.
// first_keys: [batch * q_len] i32, where the query's document begins: a token of the whole sequence, ascending within a
// sample; or empty (0). window: how many keys before its own a query sees at most; kNoWindow: all. Tiles in which no
// query sees a key are skipped. q, k, v: T, in the layouts q_at, k_at, v_at (k and v have one head per group). out:
// [batch*q_len, heads*d] T. lse: [batch, heads, q_len] fp32 (natural log of the sum of exponents), may be empty in
// evaluation. Memory beyond the outputs is O(tile), never O(q_len * kv_len). Dropout acts on the probabilities; element
// ((first_head + head)*length + first_query + q)*length + first_key + k, length being that of the whole sequence.
//
// A part (shape.part()) takes some of the keys: out (T or fp32) and lse are the result over them alone, 0 and -inf for
// a query that sees none of them; with `merge` out and lse hold the result over other keys, and become that over both.
// keys_at_once: so many keys at a time (0: all), with the bits of one op for each piece, merged into those before it.
struct AttentionForward {
  AttentionShape shape;
  float scale = 1.0f;
  View q, k, v;
  HeadLayout q_at, k_at, v_at;
  View out, lse;
  Dropout dropout;
  View first_keys;
  int64_t window = kNoWindow;
  bool merge = false;
  int64_t keys_at_once = 0;
};

// dq, dk, dv are written in the layouts of q, k, v; dk, dv are sums over the heads of a group. A part takes out and lse
// over all keys; its dq, dk and dv (T or fp32) are the gradients by way of its own queries and keys alone, and with
// add_dq or add_dkv they are added to what is there.
struct AttentionBackward {
  AttentionShape shape;
  float scale = 1.0f;
  View q, k, v;
  HeadLayout q_at, k_at, v_at;
  View out, lse, dout;
  View dq, dk, dv;
  Dropout dropout;
  View first_keys;
  int64_t window = kNoWindow;
  bool add_dq = false, add_dkv = false;
  int64_t keys_at_once = 0;  // as in the forward: each piece adds to the dq of those before it
};

enum class GeluKind { kTanh, kExact };

// y = gelu(x); [N,f] T.
struct GeluForward {
  GeluKind kind = GeluKind::kTanh;
  View x, y;
};
// dx = dy * gelu'(x); dx may alias dy.
struct GeluBackward {
  GeluKind kind = GeluKind::kTanh;
  View x, dy, dx;
};
// x: [N, 2f] = gate | up; y = silu(gate) * up: [N,f].
struct SwigluForward {
  View x, y;
};
struct SwigluBackward {
  View x, dy, dx;  // dx: [N, 2f]; may alias x
};

// x[n] = table[tokens[n]] + positions[p], p = at[n] ([N] i32) or, without `at`, first_position + n % length;
// `positions` may be empty. tokens: [N] i32 in [0, vocabulary). x: [N,h] T. The table may hold only rows [first_token,
// first_token + rows) of `vocabulary` tokens (0: it holds all): tokens of other rows read as zero.
struct EmbeddingForward {
  View tokens, table, positions, x;
  int64_t length = 0, first_position = 0;
  int64_t first_token = 0, vocabulary = 0;
  View at;
};
// dtable: [V,h] fp32, dpositions: [*,h] fp32, both accumulated in token order. Tokens outside a partial table add
// nothing to it.
struct EmbeddingBackward {
  View tokens, dx, dtable, dpositions;
  int64_t length = 0;
  int64_t first_token = 0, vocabulary = 0;
  View at;
};

// Softmax cross entropy over rows. logits: [n,V] T, columns >= valid_cols are padding: they get probability and
// gradient zero. loss: [n] fp32 = lse - logit[target]. When dlogits_scale is given, logits are overwritten by (softmax
// - onehot) * row_weight[n] * dlogits_scale[0]. targets: [n] i32; row_weight: [n] fp32 (a row of weight 0 adds nothing,
// and its loss is 0). dlogits_scale: [1] fp32 device memory or empty for evaluation.
struct CrossEntropy {
  View logits, targets, row_weight, loss, dlogits_scale;
  int64_t valid_cols = 0;
};

// The same loss where every rank has columns [first_col, first_col + cols) of the logits, in two halves around an
// exchange; columns >= vocabulary - first_col are padding. First what this rank's columns say of a row: statistics
// [n,3] fp32 = maximum, sum of e^(x - maximum), the target's logit or 0 where it lies elsewhere. All columns padding:
// lowest float, 0, 0.
struct VocabStatistics {
  View logits, targets, row_weight, statistics;
  int64_t vocabulary = 0, first_col = 0;
};
// Then, from `all` [ranks,n,3] in rank order, the loss of whole rows, on every rank the same bits, and the gradient of
// the own columns in place (dlogits_scale given), with the conventions of CrossEntropy.
struct VocabLoss {
  View logits, targets, row_weight, all, loss, dlogits_scale;
  int64_t vocabulary = 0, first_col = 0;
};

// out[0] += sum_i a[i] * b[i] in double. a, b: [n] fp32; out: [1] fp64.
struct WeightedSum {
  View a, b, out;
};
// out[0] += factor * sum of squares in double over fixed blocks of 4096. x: [n] fp32 or bf16; out: [1] fp64. NaN and
// Inf show in the result, with factor 0, too.
struct SumSquares {
  View x, out;
  double factor = 1.0;
};
// dbias[c] += sum_n dy[n,c]. dy: [N,c] T; dbias: [c] fp32.
struct BiasGradient {
  View dy, dbias;
};
// dst = cast(src), any two of fp32, bf16, fp16.
struct Cast {
  View src, dst;
};
// y = beta * y + alpha * x, both fp32, or both T.
struct Axpy {
  float alpha = 1.0f;
  View x, y;
  float beta = 1.0f;
};
// Normal numbers of mean 0 and standard deviation `std`, rounded once to x's dtype. x[i] is element e = first + i of
// the global tensor `tensor_id`: of the four numbers that the two pairs of words of philox(seed, {e/4 low, e/4 high,
// tensor_id, kInit}) give, number e % 4.
struct FillNormal {
  View x;
  float std = 1.0f;
  uint64_t seed = 0;
  uint32_t tensor_id = 0;
  int64_t first = 0;
};
struct FillConstant {
  View x;
  float value = 0.0f;
};
// Copies counts[0] x counts[1] runs of `width` elements; run (i, j) begins at first + i * strides[0] + j * strides[1].
// Both views have one dtype of T, and do not overlap; neither do the runs of `to`.
struct CopyRuns {
  View from, to;
  int64_t counts[2] = {1, 1}, width = 0;
  int64_t from_first = 0, from_strides[2] = {0, 0};
  int64_t to_first = 0, to_strides[2] = {0, 0};
};

// The scalars of a step that live in device memory, so that a captured step can be replayed with new ones.
struct StepState {
  float lr = 0.0f;
  float bias_correction1 = 1.0f;  // 1 - beta1^t
  float bias_correction2 = 1.0f;  // 1 - beta2^t
  float grad_scale = 1.0f;        // clip coefficient / loss scale; multiplies every gradient
  float loss_scale = 1.0f;
  float weight_decay = 0.0f;
};

// A run of elements of a flat buffer with one setting of weight decay (0 or 1, times StepState::weight_decay).
struct DecaySpan {
  int64_t first = 0, count = 0;
  float decay = 0.0f;
};

// p -= lr * (m^ / (sqrt(v^) + eps) + wd * p), decoupled decay, eps outside the root, fp32 math; m, v, master (p): [n]
// fp32. working: [n] bf16 / fp16 copy of master, or empty. gradient: [n] fp32, or bf16 beside a bf16 working copy;
// zeroed once it is read when zero_gradient is set.
struct AdamW {
  View master, m, v, gradient, working, state;    // state: one StepState as u8[sizeof]
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // double: 1 - 0.999f is off by 1.3e-5 of itself
  std::span<const DecaySpan> spans;               // host memory; covers [0, n) in order
  bool zero_gradient = false;
  // After the warm-up of 1-bit Adam: `gradient` (fp32) holds the new momentum times 1 / grad_scale, which becomes m; v
  // is frozen, and the step takes |m^| up to kMomentumLimit * sqrt(v^) (m itself is not clipped). Where v is 0, m stays
  // 0: padding, which checkpoints leave out, stays zero whatever a codec makes of its zeros.
  bool takes_momentum = false;
};
// Adam's own bound on |m^| / sqrt(v^) is (1 - beta1) / sqrt((1 - beta2) (1 - beta1^2 / beta2)), 7.3 with its usual
// betas. A lossy momentum over a frozen variance has no bound: an element whose gradient was always zero (padding,
// words that have not occurred, biases of keys) would move by lr * the codec's scale / eps in one step.
inline constexpr float kMomentumLimit = 10.0f;

// buf = momentum * buf + (g + wd * p); p -= lr * buf (momentum 0: buf empty).
struct Sgd {
  View master, momentum_buffer, gradient, working, state;
  float momentum = 0.0f;
  std::span<const DecaySpan> spans;
  bool zero_gradient = false;
};

// X(entry, what it takes) for every op.
#define TW_FOR_EACH_OP(X)                  \
  X(matmul, Matmul)                        \
  X(norm_forward, NormForward)             \
  X(norm_backward, NormBackward)           \
  X(residual_add, ResidualAdd)             \
  X(dropout_apply, DropoutApply)           \
  X(rotary, Rotary)                        \
  X(attention_forward, AttentionForward)   \
  X(attention_backward, AttentionBackward) \
  X(gelu_forward, GeluForward)             \
  X(gelu_backward, GeluBackward)           \
  X(swiglu_forward, SwigluForward)         \
  X(swiglu_backward, SwigluBackward)       \
  X(embedding_forward, EmbeddingForward)   \
  X(embedding_backward, EmbeddingBackward) \
  X(cross_entropy, CrossEntropy)           \
  X(vocab_statistics, VocabStatistics)     \
  X(vocab_loss, VocabLoss)                 \
  X(weighted_sum, WeightedSum)             \
  X(sum_squares, SumSquares)               \
  X(bias_gradient, BiasGradient)           \
  X(cast, Cast)                            \
  X(axpy, Axpy)                            \
  X(fill_normal, FillNormal)               \
  X(fill_constant, FillConstant)           \
  X(copy_runs, CopyRuns)                   \
  X(adamw, AdamW)                          \
  X(sgd, Sgd)

// Every backend fills every entry.
struct OpTable {
  const char* backend = "";
  std::string (*isa)() = nullptr;  // instruction set in use, for --version
  std::unique_ptr<OpState> (*make_state)(Device&) = nullptr;
  bool fused_products = false;  // whether matmul takes gelu_input, dgelu_input and a_sums
#define TW_ENTRY(name, Op) void (*name)(Exec&, const Op&) = nullptr;
  TW_FOR_EACH_OP(TW_ENTRY)
#undef TW_ENTRY
};

// The CPU table; chooses AVX2, AVX-512 or AVX-512-bf16 kernels once, by what the machine has
// (THINWIRE_ISA=avx2|avx512|avx512_bf16 lowers the choice, for tests). Throws Error(kBadConfig) on a machine without
// AVX2 and FMA.
const OpTable& cpu_ops();

// The CUDA table. Builds without CUDA throw Error(kBadConfig); so does making a state where there is no GPU.
const OpTable& cuda_ops();

// Ops that check their arguments and do nothing, on a rehearsal device.
const OpTable& rehearsal_ops();

// An Exec for the table's backend on `stream`.
Exec make_exec(const OpTable& ops, Device& device, Stream& stream, int threads);

}  // namespace thinwire
