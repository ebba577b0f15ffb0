// Cutting attention into calls of one head stride, and pricing them.
#include "engine/base/ops/attention_calls.h"

#include <algorithm>

namespace thinwire {
namespace {

bool aligned(const View& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

bool multiples_of_8(const HeadLayout& at) {
  return at.offset % 8 == 0 && at.batch % 8 == 0 && at.token % 8 == 0 && at.group % 8 == 0 && at.head % 8 == 0;
}

// The largest divisor of n - all calls have one shape, and so one plan - of which one call takes at most `most` bytes
// and the next begins on 16 bytes of lse, `floats` apart; with none small enough the smallest, n itself at the end.
int64_t share_of(int64_t n, size_t bytes_each, size_t most, int64_t floats) {
  int64_t share = n;
  for (int64_t d = n; d >= 1; --d) {
    if (n % d != 0 || (d < n && d * floats % 4 != 0)) continue;
    share = d;
    if (static_cast<size_t>(d) * bytes_each <= most) break;
  }
  return share;
}

// Which keys the queries see, as the library can be told; false: otherwise.
bool known_form(const AttentionShape& s, bool& causal) {
  causal = s.behind() == s.kv_len - s.q_len && s.behind() >= 0;
  if (!s.part()) return s.q_len == s.kv_len;
  return causal || s.behind() >= s.kv_len - 1;
}

// Both ops have the same members for what matters here.
template <typename Op>
bool cut(const Op& op, bool backward, bool deterministic, size_t most_bytes, AttentionCalls& calls) {
  const AttentionShape& s = op.shape;
  AttentionCall c;
  if (op.q.dtype != DType::bf16 && op.q.dtype != DType::f16) return false;
  if (!known_form(s, c.causal) || op.first_keys || op.window >= 0 || s.q_len < 2 || s.kv_len < 2 ||
      s.head_dim % 8 != 0 || s.batch == 0 || (op.keys_at_once > 0 && op.keys_at_once < s.kv_len))
    return false;
  if (op.dropout.p > 0.0f && (s.part() || s.kv_len % 8 != 0)) return false;
  if (!multiples_of_8(op.q_at) || !multiples_of_8(op.k_at) || !multiples_of_8(op.v_at)) return false;
  for (const View& v : {op.q, op.k, op.v, op.out, op.lse}) {
    if (!aligned(v)) return false;
  }
  const int64_t d = s.head_dim, m = s.heads_per_group, width = s.heads() * d;
  c.q_len = s.q_len, c.kv_len = s.kv_len, c.head_dim = d, c.dtype = op.q.dtype, c.scale = op.scale;
  c.part = s.part();
  c.dropout = op.dropout.p;
  c.backward = backward, c.deterministic = deterministic, c.statistics = static_cast<bool>(op.lse);
  // A sample's groups: as heads of a batch of samples, or as the batch themselves.
  const bool heads = m == 1 || op.q_at.group == m * op.q_at.head;
  int64_t samples = s.batch, groups = s.groups;  // of one call
  const auto shape = [&] {
    if (heads) {
      c.batch = samples, c.q_heads = groups * m, c.kv_heads = groups;
    } else {
      c.batch = groups, c.q_heads = m, c.kv_heads = 1;
    }
  };
  if (!heads) samples = 1;
  shape();
  const size_t bytes = (backward && deterministic ? attention_workspace(c) : 0) + attention_mask_bytes(c);
  if (bytes > 0) {
    const size_t group_bytes = bytes / static_cast<size_t>(samples * groups);
    if (heads) samples = share_of(samples, group_bytes * static_cast<size_t>(groups), most_bytes, s.heads() * s.q_len);
    // (Some heads of several samples have no lse in one piece.)
    if (samples == 1) groups = share_of(groups, group_bytes, most_bytes, m * s.q_len);
    shape();
  }
  if (heads) {
    c.q = {op.q_at.batch, m == 1 ? op.q_at.group : op.q_at.head, op.q_at.token};
    c.k = {op.k_at.batch, op.k_at.group, op.k_at.token};
    c.v = {op.v_at.batch, op.v_at.group, op.v_at.token};
    c.o = {s.q_len * width, d, width};
  } else {
    c.q = {op.q_at.group, op.q_at.head, op.q_at.token};
    // (A head stride of nothing is refused, and with one head never used.)
    c.k = {op.k_at.group, op.k_at.group, op.k_at.token};
    c.v = {op.v_at.group, op.v_at.group, op.v_at.token};
    c.o = {m * d, d, width};
  }
  calls.call = c, calls.samples = samples;
  calls.starts.clear();
  for (int64_t b = 0; b < s.batch; b += samples) {
    for (int64_t g = 0; g < s.groups; g += groups) {
      const int64_t lse = (b * s.heads() + g * m) * s.q_len;
      if (op.lse && lse % 4 != 0) return false;  // 16 bytes of fp32
      calls.starts.push_back({op.q_at.offset + b * op.q_at.batch + g * op.q_at.group,
                              op.k_at.offset + b * op.k_at.batch + g * op.k_at.group,
                              op.v_at.offset + b * op.v_at.batch + g * op.v_at.group, b * s.q_len * width + g * m * d,
                              lse, b, g * m});
    }
  }
  return true;
}

}  // namespace

bool attention_calls(const AttentionForward& op, size_t most_bytes, AttentionCalls& calls) {
  return cut(op, false, true, most_bytes, calls);
}

bool attention_calls(const AttentionBackward& op, bool deterministic, size_t most_bytes, AttentionCalls& calls) {
  for (const View& v : {op.dout, op.dq, op.dk, op.dv}) {
    if (!aligned(v)) return false;
  }
  return cut(op, true, deterministic, most_bytes, calls);
}

QkvLayout qkv_layout(int64_t groups, int64_t heads_per_group, int64_t head_dim, bool apart) {
  const int64_t d = head_dim, m = heads_per_group, group = (m + 2) * d, row = groups * group, queries = groups * m * d;
  if (apart) return {{0, 0, row, m * d, d}, {queries, 0, row, 2 * d, 0}, {queries + d, 0, row, 2 * d, 0}};
  return {{0, 0, row, group, d}, {m * d, 0, row, group, 0}, {(m + 1) * d, 0, row, group, 0}};
}

AttentionBackward packed_attention(DType dtype, int64_t batch, int64_t length, int64_t groups, int64_t heads_per_group,
                                   int64_t head_dim, bool apart) {
  AttentionBackward op;
  op.shape.batch = batch, op.shape.q_len = op.shape.kv_len = length;
  op.shape.groups = groups, op.shape.heads_per_group = heads_per_group, op.shape.head_dim = head_dim;
  op.q.dtype = dtype;
  const QkvLayout at = qkv_layout(groups, heads_per_group, head_dim, apart);
  op.q_at = at.q, op.k_at = at.k, op.v_at = at.v;
  op.q_at.batch = op.k_at.batch = op.v_at.batch = length * at.q.token;
  return op;
}

void take_part(AttentionBackward& op, int64_t keys, int64_t first_query) {
  AttentionShape& s = op.shape;
  s.kv_len = keys, s.first_query = first_query, s.length = std::max(first_query + s.q_len, keys);
  const int64_t d = s.head_dim, row = s.groups * 2 * d;
  op.k_at = {0, keys * row, row, 2 * d, 0}, op.v_at = op.k_at;
  op.v_at.offset = d;
}

size_t attention_workspace(const AttentionCall& c) {
  const auto padded = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  const int64_t rows = c.batch * c.q_heads;
  const auto number = static_cast<int64_t>(size_of(c.dtype));
  const int64_t scores =
      c.deterministic ? number * padded(c.q_len, 64) * padded(c.kv_len, 128) : 4 * c.q_len * (c.head_dim + 1);
  const int64_t full_heads = c.q_heads > c.kv_heads ? 2 * number * c.kv_len * c.head_dim : 0;
  return static_cast<size_t>(rows * (scores + full_heads));
}

AttentionPart attention_part(const AttentionCall& c) {
  AttentionPart p;
  if (!c.part) return p;
  const auto take = [&](int64_t numbers, size_t bytes_each) {
    const size_t at = p.bytes;
    p.bytes += (static_cast<size_t>(numbers) * bytes_each + 511) / 512 * 512;
    return at;
  };
  const size_t each = size_of(c.dtype);
  p.q = take(c.batch * c.q_len * c.q_heads * c.head_dim, each);
  if (!c.backward) {
    p.lse = take(c.batch * c.q_heads * c.q_len, sizeof(float));
    return p;
  }
  p.k = take(c.batch * c.kv_len * c.kv_heads * c.head_dim, each);
  p.v = take(c.batch * c.kv_len * c.kv_heads * c.head_dim, each);
  return p;
}

AttentionCall::Strides packed_strides(int64_t length, int64_t heads, int64_t head_dim) {
  return {length * heads * head_dim, head_dim, heads * head_dim};
}

size_t attention_bit_bytes(const AttentionShape& s) {
  const auto bytes = static_cast<size_t>(s.batch * s.heads() * s.q_len * ((s.kv_len + 31) / 32) * 4);
  return bytes <= size_t{256} << 20 ? bytes : 0;
}

AttentionDropoutScale attention_dropout_scale(const AttentionCall& c) {
  const float scale = 1.0f / (1.0f - c.dropout);
  if (!c.backward) return {1.0f, scale};
  const float mask = c.dtype == DType::f16 ? to_float(to_fp16(scale)) : to_float(to_bf16(scale));
  return {mask, scale / mask};
}

size_t attention_mask_bytes(const AttentionCall& c) {
  return c.dropout > 0.0f ? static_cast<size_t>(c.batch * c.q_heads * c.q_len * c.kv_len) * size_of(c.dtype) : 0;
}

}  // namespace thinwire
