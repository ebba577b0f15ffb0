// Attention on the CPU: distributes blocks of queries and keys over threads, costly ones first.
#include <omp.h>

#include <algorithm>

#include "engine/base/ops/attention_kernel.h"
#include "engine/base/ops/attention_parts.h"
#include "engine/base/ops/cpu_state.h"
#include "engine/base/ops/float_mode.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

// Queries that share one packed copy of keys and values, beside the heads of their group, which share it anyway.
int64_t forward_block(const AttentionShape& s) {
  return kAttentionStrip * std::max<int64_t>(1, 4 / s.heads_per_group);
}
int64_t backward_block(const AttentionShape& s) {
  return kAttentionStrip * std::max<int64_t>(1, 2 / s.heads_per_group);
}
// Keys of one piece of the split backward.
constexpr int64_t kKeyPiece = 4 * kAttentionKeys;

int64_t blocks_of(int64_t n, int64_t block) {
  return (n + block - 1) / block;
}

// False: one thread does all five products of a (sample, group). True: dq and dk, dv are tasks of their own, which
// computes scores and dP twice: 7 products instead of 5, but more tasks. Both give the same bits (attention_kernel.h),
// so the choice may depend on the number of threads.
bool split_backward(const AttentionShape& s, int threads) {
  const int64_t units = s.batch * s.groups;
  return 5 * blocks_of(units, threads) * threads > 7 * units;
}

// Calls body(task, scratch of the thread) for [0, tasks) in this order; a thread that is free takes a few neighbours at
// a time. Neighbours are groups of one sample: a kernel prefetches the next group's rows.
template <typename Body>
void deal_out(int threads, int64_t tasks, int64_t groups, std::byte* scratch, int64_t bytes_per_thread,
              const Body& body) {
  if (threads <= 1 || tasks <= 1) {
    for (int64_t i = 0; i < tasks; ++i) body(i, scratch);
    return;
  }
  const int64_t neighbours = std::clamp<int64_t>(tasks / (8 * threads), 1, groups);
  const unsigned mode = float_mode();
#pragma omp parallel num_threads(threads)
  {
    const FloatModeScope as_caller(mode);
#pragma omp for schedule(dynamic, neighbours) nowait
    for (int64_t i = 0; i < tasks; ++i) body(i, scratch + omp_get_thread_num() * bytes_per_thread);
  }
}

// An odd number of lines, so that the threads' pieces do not meet in the same cache sets.
int64_t padded(int64_t bytes) {
  return (bytes / 128 + 1) * 128 + 64;
}

// Keys of a part; the last one may have fewer.
int64_t keys_of_part(const AttentionBackward& op) {
  return op.keys_at_once > 0 ? std::min(op.keys_at_once, op.shape.kv_len) : op.shape.kv_len;
}

int64_t scratch_bytes(const AttentionForward& op, int) {
  return padded(
      TW_PICK_BF16_KERNELS(attention_forward_kernels).scratch(op, std::min(forward_block(op.shape), op.shape.q_len)));
}

int64_t scratch_bytes(const AttentionBackward& op, int threads) {
  const int64_t part = keys_of_part(op), keys = split_backward(op.shape, threads) ? std::min(kKeyPiece, part) : part;
  return padded(TW_PICK_BF16_KERNELS(attention_backward_kernels).scratch(op, backward_block(op.shape), keys));
}

}  // namespace

int64_t attention_forward_scratch(const AttentionForward& op, int threads) {
  return scratch_bytes(op, threads) * std::max(threads, 1);
}

int64_t attention_backward_scratch(const AttentionBackward& op, int threads) {
  return scratch_bytes(op, std::max(threads, 1)) * std::max(threads, 1);
}

// q, k, v (and dq, dk, dv) share one dtype: fp32, bf16 or fp16. Arithmetic is fp32; with AVX512-BF16, bf16 operands, P
// and dS enter the products as bf16 with fp32 sums, as flash attention does on GPUs. dq, dk and dv may share memory
// with one another (interleaved), not with the inputs.
void attention_forward_cpu(Exec& exec, const AttentionForward& op) {
  const AttentionShape& s = op.shape;
  const AttentionForwardKernels& kernels = TW_PICK_BF16_KERNELS(attention_forward_kernels);
  const int threads = std::max(exec.threads, 1);
  const int64_t bytes = scratch_bytes(op, threads);
  std::byte* scratch = cpu_state(exec).scratch(static_cast<size_t>(bytes * threads)).data();

  const int64_t block = forward_block(s), blocks = blocks_of(s.q_len, block), units = s.batch * s.groups;
  deal_out(threads, blocks * units, s.groups, scratch, bytes, [&](int64_t task, std::byte* mine) {
    // The last queries see most keys: they go first, and what is left for the end is short.
    const int64_t unit = task % units, q_first = (blocks - 1 - task / units) * block;
    for_key_parts(op, [&](const AttentionForward& part) {
      kernels.run(part, make_dropout_plan(part.dropout, part.shape),
                  {unit / s.groups, unit % s.groups, q_first, std::min(s.q_len, q_first + block), 0, 0}, mine);
    });
  });
}

void attention_backward_cpu(Exec& exec, const AttentionBackward& op) {
  const AttentionShape& s = op.shape;
  const AttentionBackwardKernels& kernels = TW_PICK_BF16_KERNELS(attention_backward_kernels);
  const int threads = std::max(exec.threads, 1);
  const int64_t bytes = scratch_bytes(op, threads);
  std::byte* scratch = cpu_state(exec).scratch(static_cast<size_t>(bytes * threads)).data();

  const int64_t block = backward_block(s), units = s.batch * s.groups;
  if (!split_backward(s, threads)) {
    deal_out(threads, units, s.groups, scratch, bytes, [&](int64_t unit, std::byte* mine) {
      for_key_parts(op, [&](const AttentionBackward& part) {
        kernels.run(part, make_dropout_plan(part.dropout, part.shape),
                    {unit / s.groups, unit % s.groups, 0, s.q_len, 0, part.shape.kv_len}, block, true, true, mine);
      });
    });
    return;
  }
  const int64_t pieces = blocks_of(keys_of_part(op), kKeyPiece);  // of a part
  const int64_t all_pieces = pieces * blocks_of(s.kv_len, keys_of_part(op)), blocks = blocks_of(s.q_len, block);
  deal_out(threads, (all_pieces + blocks) * units, s.groups, scratch, bytes, [&](int64_t task, std::byte* mine) {
    const int64_t unit = task % units, number = task / units;
    const bool keys = number < all_pieces;  // these first, in order: most queries see the first keys
    AttentionRange range{unit / s.groups, unit % s.groups, 0, s.q_len, 0, s.kv_len};
    if (!keys) {
      range.q_first = (blocks - 1 - (number - all_pieces)) * block;
      range.q_end = std::min(s.q_len, range.q_first + block);
    }
    int64_t before = 0;  // pieces of the parts so far
    for_key_parts(op, [&](const AttentionBackward& part) {
      range.k_first = 0, range.k_end = part.shape.kv_len;
      if (keys) {
        range.k_first = (number - before) * kKeyPiece, range.k_end = std::min(range.k_end, range.k_first + kKeyPiece);
        before += pieces;
        if (range.k_first < 0 || range.k_first >= range.k_end) return;
      }
      kernels.run(part, make_dropout_plan(part.dropout, part.shape), range, block, !keys, keys, mine);
    });
  });
}

}  // namespace thinwire
