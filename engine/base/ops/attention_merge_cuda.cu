// What a library's call over a part of the keys has written, into the op's tensors (attention_fused.h).
#include "engine/base/ops/attention_fused.h"
#include "engine/base/ops/cuda_flat.h"

namespace thinwire {
namespace {

constexpr int kNumbers = 8;  // neighbours of a head, whose sizes are multiples of it

// Rows of a head in the part, [batch, length, heads, d], and where they go.
struct PartRows {
  int64_t length, heads, d;
  int64_t to_sample, to_head, to_token;
  struct Place {
    int64_t to, row;  // the element, and the row of it in [batch, heads, length]
  };
  TW_DEVICE Place place(int64_t i) const {
    const int64_t row = quotient(i, d), token = quotient(row, heads), head = row - token * heads;
    const int64_t sample = quotient(token, length), t = token - sample * length;
    return {sample * to_sample + head * to_head + t * to_token + (i - row * d), (sample * heads + head) * length + t};
  }
};

// The shares of two results over different keys in that over both, and its log of the sum of exponents. One that saw
// none has a share of 0, whatever it holds.
struct Shares {
  float before, part, lse;
};
TW_DEVICE Shares shares_of(float before, float part) {
  const float most = fmaxf(before, part);
  if (most == -INFINITY) return {0.0f, 0.0f, most};
  const float b = expf(before - most), p = expf(part - most), sum = b + p;
  return {b / sum, p / sum, most + logf(sum)};
}

// From: what the call writes. To: what the op's tensor holds, and with `add` keeps: results by their shares, gradients
// (without lse) whole.
template <typename From, typename To>
struct PartBody {
  static constexpr int kWidth = kNumbers;
  const From* part;
  const float* part_lse;
  To* to;
  const float* lse;
  PartRows rows;
  bool add;
  template <int W>
  struct Data {
    float part[W];
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    load_floats<W>(part + i, d.part);
  }
  template <int W>
  TW_DEVICE void finish(int64_t i, Data<W>& d) const {
    const PartRows::Place place = rows.place(i);
    if (add) {
      float before[W];
      load_floats<W>(to + place.to, before);
      Shares shares = {1.0f, 1.0f, 0.0f};
      if (part_lse != nullptr) shares = shares_of(lse[place.row], part_lse[place.row]);
      TW_UNROLL
      for (int k = 0; k < W; ++k) {
        const float own = shares.before == 0.0f ? 0.0f : shares.before * before[k];
        d.part[k] = shares.part == 0.0f ? own : fmaf(shares.part, d.part[k], own);
      }
    }
    store_floats<W>(to + place.to, d.part);
  }
};

// Behind the results, whose merging reads what this replaces.
struct LseBody {
  static constexpr int kWidth = kVector<float>;
  const float* part;
  float* lse;
  bool merge;
  template <int W>
  struct Data {
    float part[W], before[W];
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    load_floats<W>(part + i, d.part);
    if (merge) load_floats<W>(lse + i, d.before);
  }
  template <int W>
  TW_DEVICE void finish(int64_t i, Data<W>& d) const {
    TW_UNROLL
    for (int k = 0; k < W; ++k) d.part[k] = merge ? shares_of(d.before[k], d.part[k]).lse : d.part[k];
    store_floats<W>(lse + i, d.part);
  }
};

PartRows part_rows(const AttentionCall& c, int64_t length, int64_t heads, const AttentionCall::Strides& to) {
  return {length, heads, c.head_dim, to[0], to[1], to[2]};
}

void queue_part(CudaQueue& queue, const char* name, const AttentionCall& c, const std::byte* written,
                const float* part_lse, const View& to, int64_t first, const float* lse, const PartRows& rows,
                bool add) {
  with_storage(c.dtype, [&](auto from_type) {
    with_storage(to.dtype, [&](auto to_type) {
      using From = decltype(from_type);
      using To = decltype(to_type);
      const PartBody<From, To> body = {
          reinterpret_cast<const From*>(written), part_lse, to.as<To>() + first, lse, rows, add};
      launch_flat<1>(queue, name, body, c.batch * rows.length * rows.heads * rows.d, aligned16(body.part, body.to));
    });
  });
}

}  // namespace

void attention_merge_cuda(Exec& exec, const AttentionForward& op, const AttentionCalls& calls,
                          const AttentionCalls::Start& start, const std::byte* written) {
  const AttentionCall& c = calls.call;
  const AttentionPart at = attention_part(c);
  TW_CHECK(c.part && (op.lse || !op.merge), "results of a part are merged by their lse");
  const auto* part_lse = reinterpret_cast<const float*>(written + at.lse);
  float* const lse = op.lse ? op.lse.as<float>() + start.lse : nullptr;
  CudaQueue queue(exec);
  queue_part(queue, "attention_merge", c, written + at.q, part_lse, op.out, start.o, lse,
             part_rows(c, c.q_len, c.q_heads, c.o), op.merge);
  if (lse == nullptr) return;
  const LseBody body = {part_lse, lse, op.merge};
  launch_flat(queue, "attention_merge_lse", body, c.batch * c.q_heads * c.q_len, aligned16(part_lse, lse));
}

void attention_add_cuda(Exec& exec, const AttentionBackward& op, const AttentionCalls& calls,
                        const AttentionCalls::Start& start, const std::byte* written) {
  const AttentionCall& c = calls.call;
  const AttentionPart at = attention_part(c);
  TW_CHECK(c.part && c.backward, "gradients of a part are added");
  CudaQueue queue(exec);
  const auto add = [&](size_t from, const View& sum, int64_t first, const PartRows& rows, bool adds) {
    queue_part(queue, "attention_add", c, written + from, nullptr, sum, first, nullptr, rows, adds);
  };
  add(at.q, op.dq, start.q, part_rows(c, c.q_len, c.q_heads, c.q), op.add_dq);
  add(at.k, op.dk, start.k, part_rows(c, c.kv_len, c.kv_heads, c.k), op.add_dkv);
  add(at.v, op.dv, start.v, part_rows(c, c.kv_len, c.kv_heads, c.v), op.add_dkv);
}

}  // namespace thinwire
