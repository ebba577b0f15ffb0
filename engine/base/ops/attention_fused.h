// Fused attention of a vendor's library (cuDNN), behind an interface of ours: which shapes it takes, and running them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "engine/base/ops/attention_calls.h"
#include "engine/base/ops/ops.h"

namespace thinwire {

class CudaState;

// Both calls return false, with nothing queued, for what the library does not take (attention_calls, and what its own
// support check refuses): the caller then runs our own kernel. Plans are made at the first call of a shape and kept.
// `Exec::deterministic` chooses the backward algorithm that gives the same bits at every run.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  virtual bool forward(Exec& exec, const AttentionForward& op) = 0;
  virtual bool backward(Exec& exec, const AttentionBackward& op) = 0;
};

// THINWIRE_ATTENTION in the environment: the library where it takes a shape, never, or in place of what falls back.
// Another word is an Error (78).
enum class AttentionChoice { kPicked, kOwn, kFused };
AttentionChoice attention_choice();
// Whether parts of sequences go to the library: under kFused alone, until its calls for them have been checked on a
// GPU.
bool attention_takes_parts();

// What should run on the library and does not, `what` of it and `why`: a warning, or under kFused, as checks have it,
// an Error (78). Attention that the library is not meant for is none of this.
void attention_falls_back(const std::string& what, const std::string& why);

// nullptr where the library is not built in (attention_fused_absent.cpp) or does not start, which falls back, or with
// kOwn.
std::unique_ptr<FusedAttention> make_fused_attention(CudaState& state);

// Queues writing the dropout mask of a call (attention_mask_bytes), from the same words that decide on every other
// backend and in every shard (dropout_plan.h). The library multiplies by attention_dropout_scale(calls.call).rest. Keys
// that a query does not see are 0. mask: on 16 bytes.
void attention_mask_cuda(Exec& exec, const Dropout& dropout, const AttentionShape& shape, const AttentionCalls& calls,
                         const AttentionCalls::Start& start, void* mask);

// Queue what is left of an op after a call over a part of its keys (calls.call.part) has written to `written`
// (attention_part; on 16 bytes): out and lse, written or, with op.merge, merged with those over other keys; dq, dk and
// dv, written or added. The op's tensors are of its type or fp32, whatever the call writes.
void attention_merge_cuda(Exec& exec, const AttentionForward& op, const AttentionCalls& calls,
                          const AttentionCalls::Start& start, const std::byte* written);
void attention_add_cuda(Exec& exec, const AttentionBackward& op, const AttentionCalls& calls,
                        const AttentionCalls::Start& start, const std::byte* written);

// The library in use, for --version: "cuDNN 9.19.0", or "no cuDNN".
std::string fused_attention_name();

// What the library's support check says of a shape on a GPU that need not be there, whose properties `device_json` the
// library itself has written (or our table for tests): empty when it takes it. sm: 80, 90, 100. Asks for libcuda.so.1,
// of which the toolkit's stub is enough. For GQA it asks about rows in which all queries come first (qkv_layout). keys
// above 0: about `length` queries and so many keys of a longer sequence, in rows of their own; causal: the last query
// sees the last key, else all see all.
struct AttentionQuestion {
  int64_t batch = 1, length = 1024, groups = 12, heads_per_group = 1, head_dim = 64;
  DType dtype = DType::bf16;
  bool backward = false, deterministic = true;
  float dropout = 0.0f;
  int64_t keys = 0;
  bool causal = true;
};
std::string attention_support_fault(int sm, const std::string& device_json, const AttentionQuestion& question);
// That description of the GPU at hand, to be kept as test data.
std::string device_properties_json(int ordinal);

}  // namespace thinwire
