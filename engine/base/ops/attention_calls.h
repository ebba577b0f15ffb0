// Attention by a library (cuDNN) that takes one stride for all heads: which calls an op becomes, and how much memory
// they take. Computed without the library, so that both are tested where there is no GPU.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/ops/ops.h"

namespace thinwire {

// One call of the library. Equal calls share the library's plan.
struct AttentionCall {
  using Strides = std::array<int64_t, 3>;  // of batch, head and token in elements; d itself is contiguous
  int64_t batch = 0, q_len = 0, kv_len = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  // The last query sees all keys and each one before it one key less; false: every query sees all keys.
  bool causal = true;
  Strides q{}, k{}, v{}, o{};  // lse: [batch, q_heads, q_len], contiguous
  DType dtype = DType::bf16;
  bool part = false;  // AttentionShape::part(); results go to memory of their own (attention_part)
  float scale = 1.0f;
  float dropout = 0.0f;  // the probability; above 0 a call reads a mask (attention_mask_bytes)
  bool backward = false, statistics = true, deterministic = true;
  auto operator<=>(const AttentionCall&) const = default;
};

// An op as calls of one shape. Start: the elements of the op's tensors at which a call's begin.
struct AttentionCalls {
  struct Start {
    int64_t q = 0, k = 0, v = 0, o = 0, lse = 0;
    int64_t sample = 0, head = 0;  // the call's first, as numbered in the op
  };
  AttentionCall call;
  int64_t samples = 1;  // of each call
  std::vector<Start> starts;
};

// Where all q heads have one stride (qkv_layout with one q head per group, or `apart`), one call takes many samples.
// Where k and v lie between the q heads of two groups, it takes one sample: the library's batch is then its groups,
// each of q heads that share one k and v.
//
// A part is for the library where every query sees all of its keys, or where the last query does and each one before it
// sees one key less (kv_len >= q_len). An op with keys_at_once is asked about part by part (for_key_parts).
//
// False: not for the library (fp32, masks, decoding with a cache, dropout in parts, other parts, one token, sizes or
// addresses that are no multiples of 16 bytes, also of each call's lse and, with dropout, of mask rows). Dropout masks
// and the workspace of the deterministic backward pass have q_len x kv_len numbers per head: calls are cut by samples,
// then by groups, until one needs at most `most_bytes` for both or cannot be cut further.
bool attention_calls(const AttentionForward& op, size_t most_bytes, AttentionCalls& calls);
bool attention_calls(const AttentionBackward& op, bool deterministic, size_t most_bytes, AttentionCalls& calls);

// Where q, k and v lie in a row of the qkv product: group by group, [q heads | k | v] of each, or `apart`, all q heads
// and then [k | v] of each group. HeadLayout::batch is not set.
struct QkvLayout {
  HeadLayout q, k, v;
};
QkvLayout qkv_layout(int64_t groups, int64_t heads_per_group, int64_t head_dim, bool apart);

// An op over such rows, without tensors: for asking which calls it would become.
AttentionBackward packed_attention(DType dtype, int64_t batch, int64_t length, int64_t groups, int64_t heads_per_group,
                                   int64_t head_dim, bool apart);

// Makes such an op one over a part of a sequence, as in context parallelism: its queries begin at token first_query;
// its keys are the first `keys` tokens, in rows of their own, [k | v] of each group.
void take_part(AttentionBackward& op, int64_t keys, int64_t first_query);

// most_bytes of one call: enough for all the batch of a 1B step, and little of a GPU's memory.
inline constexpr size_t kAttentionWorkspace = size_t{5} << 29;

// Workspace of one backward call, in bytes: deterministic, scores of the operands' type, padded to 64 x 128; else an
// fp32 copy of dq and the row sums. Where q heads share k and v, also dk and dv of each q head. (cudnn-frontend 1.32,
// Hopper.)
size_t attention_workspace(const AttentionCall& call);

// Memory for the results of a call over a part: its size, and where each result begins, in bytes. q is out or dq,
// [batch, q_len, q_heads, d], k and v are dk and dv, [batch, kv_len, kv_heads, d], all of the operands' type; lse as
// the op's. All 0 for a call that is no part.
//
// cuDNN overwrites its outputs. So results of a part are written here, which rounds out, dq, dk and dv once more, and
// then merged or added (attention_merge_cuda, attention_add_cuda). They are not fp32: cuDNN 9.19 has plans for that,
// but on an H100 they write 16-bit numbers all the same, or fail when they run.
struct AttentionPart {
  size_t q = 0, k = 0, v = 0, lse = 0, bytes = 0;
};
AttentionPart attention_part(const AttentionCall& call);
// Strides of [batch, length, heads, d].
AttentionCall::Strides packed_strides(int64_t length, int64_t heads, int64_t head_dim);

// Bytes of the dropout mask of one call: [batch, q_heads, q_len, kv_len] of its type,
// attention_dropout_scale(call).mask where a probability is kept, 0 elsewhere.
size_t attention_mask_bytes(const AttentionCall& call);

// 1 / (1 - p) as a product: what the mask holds, and what the library multiplies by.
//
// cuDNN should compute dS = rest P (mask dP - rowsum(dO O) / rest), but with a mask does not divide (9.19 on an H100).
// So in the backward pass the mask holds 1 / (1 - p) rounded to its type, and rest is so near to 1 that row sums are
// off by no more than one rounding to that type. dV and dP have the exact product; a library that does divide has dS
// exact, too.
struct AttentionDropoutScale {
  float mask = 1.0f, rest = 1.0f;
};
AttentionDropoutScale attention_dropout_scale(const AttentionCall& call);

// Bytes of the dropout bits that our own kernels keep for an op: one per query and key, rows padded to 32 bits. 0 where
// that is more than 256 MiB: the kernels then draw each number where it is used.
size_t attention_bit_bytes(const AttentionShape& shape);

}  // namespace thinwire
