// Attention told to a library that knows one stride for all heads: which calls an op becomes, and how much memory they
// take. Known without the library, so that the cut and the memory plan are tested where there is no GPU.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/ops/ops.h"

namespace thinwire {

// One call of the library. Equality of all members means that the same plan serves.
struct AttentionCall {
  using Strides = std::array<int64_t, 3>;  // of batch, head and token in elements; d itself is contiguous
  int64_t batch = 0, q_len = 0, kv_len = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  // The last query sees all keys, and each one before it a key less; else every query sees all keys.
  bool causal = true;
  Strides q{}, k{}, v{}, o{};  // lse: [batch, q_heads, q_len], contiguous
  DType dtype = DType::bf16;
  bool part = false;  // AttentionShape::part; what it writes lies beside the op's tensors (attention_part)
  float scale = 1.0f;
  float dropout = 0.0f;  // the probability; above 0 a call reads a mask (attention_mask_bytes)
  bool backward = false, statistics = true, deterministic = true;
  auto operator<=>(const AttentionCall&) const = default;
};

// An op as calls of one shape, whose tensors begin at these elements.
struct AttentionCalls {
  struct Start {
    int64_t q = 0, k = 0, v = 0, o = 0, lse = 0;
    int64_t sample = 0, head = 0;  // which of the op's is the call's first
  };
  AttentionCall call;
  int64_t samples = 1;  // of each call
  std::vector<Start> starts;
};

// Heads of equal distance are one call for the batch: those of qkv_layout with one q head per group, or apart. Where
// the q heads of a group lie between keys, the groups of one sample take the place of its batch - q heads of a group
// over the one k and v they share - in a call per sample.
//
// A part is for the library where all queries see all of its keys, or where the last query does and each one before it
// sees a key less (as many keys as queries, or more). Its keys_at_once are several ops (for_key_parts).
//
// False: not for the library (fp32, masks, decoding with a cache, dropout in parts, other parts, one token, sizes or
// addresses that are no multiples of 16 bytes; of lse, and with dropout of rows of masks, too, at every call). Masks of
// dropout and what the deterministic backward pass keeps are T^2 per head: calls are cut by samples, then by groups,
// until one takes at most `most_bytes` of them, or none can be cut further.
bool attention_calls(const AttentionForward& op, size_t most_bytes, AttentionCalls& calls);
bool attention_calls(const AttentionBackward& op, bool deterministic, size_t most_bytes, AttentionCalls& calls);

// Where q, k and v lie in a row of the qkv product: group by group, [q heads | k | v] of each, or `apart`, all q heads
// and then [k | v] of each group. Strides of samples are not set.
struct QkvLayout {
  HeadLayout q, k, v;
};
QkvLayout qkv_layout(int64_t groups, int64_t heads_per_group, int64_t head_dim, bool apart);

// An op without tensors over such rows, to ask what it would become.
AttentionBackward packed_attention(DType dtype, int64_t batch, int64_t length, int64_t groups, int64_t heads_per_group,
                                   int64_t head_dim, bool apart);

// Such an op against so many keys in front of it and in rows of their own, [k | v] of each group, as layers have it
// that take parts of a sequence: query t sees none behind t + `behind`.
void take_part(AttentionBackward& op, int64_t keys, int64_t behind);

// Of one call: the whole batch of a 1B step at once, and little of a GPU's memory.
inline constexpr size_t kAttentionWorkspace = size_t{5} << 29;

// What one backward call takes beside its tensors, in bytes: scores of the operands' type, padded to 64 x 128, or, not
// deterministic, an fp32 copy of dq and the row sums. (cudnn-frontend 1.32, Hopper; dk and dv of each q head besides
// where heads share them.)
size_t attention_workspace(const AttentionCall& call);

// Memory of what a call over a part writes, in bytes from its begin: q is out or dq, [batch, q_len, q_heads, d], k and
// v are dk and dv, [batch, kv_len, kv_heads, d], of the operands' type each; lse as the op's. All 0 for a call that is
// no part.
//
// cuDNN overwrites. So a part is written here, with one rounding more of its out, dq, dk and dv, and then merged or
// added (attention_merge_cuda, attention_add_cuda). Not in fp32: cuDNN 9.19 has plans for that, but on an H100 they
// write 16-bit numbers all the same, or fail when they run.
struct AttentionPart {
  size_t q = 0, k = 0, v = 0, lse = 0, bytes = 0;
};
AttentionPart attention_part(const AttentionCall& call);
// Strides of [batch, length, heads, d].
AttentionCall::Strides packed_strides(int64_t length, int64_t heads, int64_t head_dim);

// The mask of one call: [batch, q_heads, q_len, kv_len] of its type, attention_kept(call).mask where dropout keeps a
// probability, 0 elsewhere.
size_t attention_mask_bytes(const AttentionCall& call);

// 1 / (1 - p) in two factors: what the mask holds, and what the library multiplies by.
//
// cuDNN is to compute dS = rest P (mask dP - rowsum(dO O) / rest), and with a mask leaves the division out (9.19 on an
// H100). So in the backward pass the mask holds the whole, as near as its type has it, and the rest is so near to 1
// that row sums are off by no more than one rounding to that type. dV and dP have the exact product; a library that
// does divide has all of it.
struct AttentionKept {
  float mask = 1.0f, rest = 1.0f;
};
AttentionKept attention_kept(const AttentionCall& call);

// What our own kernels keep of an op's dropout: a bit of every query and key, rows of whole words. 0 where that is
// beyond 256 MiB: they draw each number where it is used, then.
size_t attention_bit_bytes(const AttentionShape& shape);

}  // namespace thinwire
