// Attention over parts of a sequence by a library that knows none: calls of a stand-in, what they write merged and
// added by our own kernels, against the float64 oracle; and what a wrong call, merge or sum would show.
#include "engine/base/ops/attention_fused.h"
#include "engine/base/ops/attention_parts.h"
#include "tests/ops/attention_part_cases.h"
#include "tests/ops/attention_stand_in.h"

namespace thinwire::test::attention_merge_test {
namespace {

struct HostHold {
  explicit HostHold(const Tensor& t) : tensor(t) {}
  View view() const { return tensor; }
  Tensor read() const { return tensor; }
  Tensor tensor;
};

// What FusedAttention does, with the stand-in in the library's place; what it refuses goes to our own kernels.
class StandIn {
 public:
  StandIn(Exec& exec, Fault fault, size_t most_bytes) : exec_(exec), fault_(fault), most_bytes_(most_bytes) {}
  int64_t taken = 0, refused = 0, calls_made = 0;

  void forward(const AttentionForward& op) {
    for_key_parts(op, [&](const AttentionForward& part) {
      AttentionCalls calls;
      if (!count(attention_calls(part, most_bytes_, calls))) return exec_.ops.attention_forward(exec_, part);
      for (const AttentionCalls::Start& start : calls.starts) {
        const Tensor memory = written(calls);
        one_call(calls, moved(start, part), part, nullptr, fault_, bytes_of(memory));
        const Tensor lse = fault_ == Fault::kLseNotMerged && part.merge ? copy_of(part.lse) : Tensor();
        if (fault_ == Fault::kSharesAlike && part.merge) write_all(part.lse, 1.0), write_lse(calls, memory, 1.0);
        attention_merge_cuda(exec_, part, calls, start, bytes_of(memory));
        if (lse.view()) std::memcpy(part.lse.data, lse.view().data, lse.view().bytes());
      }
    });
  }
  void backward(const AttentionBackward& op) {
    for_key_parts(op, [&](const AttentionBackward& part) {
      AttentionCalls calls;
      if (!count(attention_calls(part, true, most_bytes_, calls))) return exec_.ops.attention_backward(exec_, part);
      AttentionForward operands;
      operands.shape = part.shape, operands.q = part.q, operands.k = part.k, operands.v = part.v;
      operands.out = part.out, operands.lse = part.lse;
      for (const AttentionCalls::Start& start : calls.starts) {
        const Tensor memory = written(calls);
        one_call(calls, moved(start, part), operands, &part, fault_, bytes_of(memory));
        AttentionBackward sum = part;
        if (fault_ == Fault::kDqNotAdded) sum.add_dq = false;
        attention_add_cuda(exec_, sum, calls, start, bytes_of(memory));
        if (fault_ != Fault::kDkAddedTwice) continue;
        const Tensor dq = copy_of(part.dq);
        sum.dq = dq, sum.add_dkv = true;
        attention_add_cuda(exec_, sum, calls, start, bytes_of(memory));
      }
    });
  }

 private:
  bool count(bool is_taken) {
    ++(is_taken ? taken : refused);
    return is_taken;
  }
  // NaN: every byte that is read has to be written. A guard lies behind it (Tensor).
  Tensor written(AttentionCalls& calls) {
    ++calls_made;
    EXPECT_TRUE(calls.call.part);
    return constant_tensor(DType::f32, {static_cast<int64_t>(attention_part(calls.call).bytes / sizeof(float))},
                           std::nan(""));
  }
  static std::byte* bytes_of(const Tensor& t) { return static_cast<std::byte*>(t.view().data); }
  static Tensor copy_of(const View& v) {
    Tensor t(v.dtype, {v.count()});
    std::memcpy(t.view().data, v.data, v.bytes());
    return t;
  }
  static void write_all(const View& v, double x) {
    for (int64_t i = 0; i < v.count(); ++i) write_element(v, i, x);
  }
  static void write_lse(const AttentionCalls& calls, const Tensor& memory, double x) {
    const AttentionCall& c = calls.call;
    write_all(View(bytes_of(memory) + attention_part(c).lse, DType::f32, {c.batch * c.q_heads * c.q_len}), x);
  }
  template <typename Op>
  AttentionCalls::Start moved(AttentionCalls::Start start, const Op& op) const {
    if (fault_ == Fault::kKeysOffByOne && op.shape.first_key > 0) start.k -= op.k_at.token, start.v -= op.v_at.token;
    return start;
  }

  Exec& exec_;
  Fault fault_;
  size_t most_bytes_;
};

int run_case(const PartsCase& p, uint32_t seed, StandIn& library, bool report) {
  std::mt19937 rng(seed);
  AttentionTensors x(p.c, rng);
  const PartsRunner<HostHold> runner = {[](const Tensor& t) { return std::make_unique<HostHold>(t); },
                                        [&](const AttentionForward& op) { library.forward(op); },
                                        [&](const AttentionBackward& op) { library.backward(op); }};
  return parts_within_bounds(p, x, runner.run(p, x), report);
}

// MHA and GQA, keys beside queries and apart, ragged ends, sums in fp32 and in the type, merged in both orders; calls
// cut by heads.
TEST(AttentionMerge, PartsHoldTheBounds) {
  CpuExec exec;
  int64_t taken = 0, refused = 0, cut = 0;
  uint32_t seed = 1;
  for (const size_t most_bytes : {kAttentionWorkspace, size_t{1}}) {
    for (const PartsCase& p : attention_part_cases(90, 24)) {
      StandIn library(*exec, Fault::kNone, most_bytes);
      EXPECT_EQ(run_case(p, seed++, library, true), 3) << p.name();
      taken += library.taken, refused += library.refused, cut += library.calls_made > library.taken;
    }
  }
  EXPECT_GT(taken, 3 * refused);
  EXPECT_GT(refused, 0) << "parts of another form, on our own kernels among those of the library";
  EXPECT_GT(cut, 5);
}

TEST(AttentionMerge, EveryFaultIsFound) {
  for (int fault = static_cast<int>(Fault::kAllMasked); fault < static_cast<int>(Fault::kCount); ++fault) {
    CpuExec exec;
    int found = 0;
    uint32_t seed = 1;
    for (const PartsCase& p : attention_part_cases(90, 24)) {
      StandIn library(*exec, static_cast<Fault>(fault), kAttentionWorkspace);
      if (p.c.head_dim == 64 && found == 0) found += run_case(p, seed, library, false) < 3;
      ++seed;
    }
    EXPECT_GT(found, 0) << "fault " << fault;
  }
}

// Layers give parts of one sample; the op takes several, with the same bits.
TEST(AttentionMerge, SamplesAtOnceAreAsManyOps) {
  CpuExec exec;
  for (const int64_t members : {1, 4, 3}) {
    const int64_t n = 48, half = n / 2, d = 64;
    AttentionCase c{.dtype = DType::bf16, .batch = 2, .q_len = n, .kv_len = n, .groups = 2, .head_dim = d};
    c.heads_per_group = members, c.apart = members == 4;
    std::mt19937 rng(9);
    AttentionTensors x(c, rng);
    const int64_t heads = c.heads(), width = heads * d, row = x.q_at.token;
    // The second half of the queries over the keys of the first, and over their own.
    const auto part = [&](auto op, int64_t first, int64_t samples) {
      op.shape.batch = samples, op.shape.q_len = half, op.shape.length = n, op.shape.first_query = half;
      op.keys_at_once = half, op.q_at.offset += half * row;
      for (HeadLayout* at : {&op.q_at, &op.k_at, &op.v_at}) at->offset += first * n * row;
      return op;
    };
    const auto run = [&](int64_t at_once) {
      PartsResult r{Tensor(DType::f32, {2 * half, width}), Tensor(DType::f32, {2, heads, half}),
                    constant_tensor(DType::f32, {x.q.count()}, 0.5)};
      StandIn library(*exec, Fault::kNone, kAttentionWorkspace);
      for (int64_t b = 0; b < 2; b += at_once) {
        const auto rows = [&](const View& v, int64_t cols) {
          return v.element_range(b * half * cols, at_once * half * cols);
        };
        AttentionForward forward = part(x.forward_op(), b, at_once);
        forward.out = rows(r.out, width), forward.lse = rows(r.lse, heads);
        library.forward(forward);
        AttentionBackward backward = part(x.backward_op(), b, at_once);
        backward.out = backward.dout = rows(x.dout, width), backward.lse = forward.lse;
        backward.dq = backward.dk = backward.dv = r.gradients, backward.add_dkv = true;
        library.backward(backward);
      }
      EXPECT_TRUE(library.refused == 0 && library.taken == 8 / at_once) << library.taken;
      return r;
    };
    const PartsResult both = run(2), one = run(1);
    EXPECT_TRUE(both.out.same_bits(one.out) && both.lse.same_bits(one.lse)) << c.name();
    EXPECT_TRUE(both.gradients.same_bits(one.gradients)) << c.name();
  }
}

// Results that saw nothing: the other's stands, whatever lies in theirs.
TEST(AttentionMerge, WhatSawNothingHasNoShare) {
  CpuExec exec;
  AttentionForward op;
  AttentionBackward shape = packed_attention(DType::bf16, 1, 4, 1, 1, 8, false);
  take_part(shape, 4, 4);
  op.shape = shape.shape, op.q = shape.q, op.q_at = shape.q_at, op.k_at = shape.k_at, op.v_at = shape.v_at;
  Tensor out(DType::f32, {4, 8}), lse(DType::f32, {1, 1, 4});
  op.out = out, op.lse = lse, op.merge = true;
  AttentionCalls calls;
  ASSERT_TRUE(attention_calls(op, kAttentionWorkspace, calls));
  const AttentionPart at = attention_part(calls.call);
  const Tensor memory(DType::f32, {static_cast<int64_t>(at.bytes / sizeof(float))});
  auto* const bytes = static_cast<std::byte*>(memory.view().data);
  const View part(bytes + at.q, DType::bf16, {32}), part_lse(bytes + at.lse, DType::f32, {4});
  // before, part: seen by both, by one, by the other, by none
  const double lses[4][2] = {{1.0, 2.0}, {1.0, -INFINITY}, {-INFINITY, 2.0}, {-INFINITY, -INFINITY}};
  for (int64_t t = 0; t < 4; ++t) {
    lse.set(t, lses[t][0]), write_element(part_lse, t, lses[t][1]);
    for (int64_t e = 0; e < 8; ++e) {
      out.set(t * 8 + e, lses[t][0] > 0.0 ? 3.0 : std::nan(""));
      write_element(part, t * 8 + e, lses[t][1] > 0.0 ? 5.0 : std::nan(""));
    }
  }
  attention_merge_cuda(*exec, op, calls, calls.starts[0], bytes);
  const double share = 1.0 / (1.0 + std::exp(1.0)), both = 3.0 * share + 5.0 * (1.0 - share);
  const double want[] = {both, 3.0, 5.0, 0.0}, want_lse[] = {2.0 - std::log(1.0 - share), 1.0, 2.0, -INFINITY};
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t e = 0; e < 8; ++e) EXPECT_NEAR(out.at(t * 8 + e), want[t], 1e-6) << t;
    EXPECT_TRUE(lse.at(t) == want_lse[t] || std::abs(lse.at(t) - want_lse[t]) < 1e-6) << t << ": " << lse.at(t);
  }
}

}  // namespace
}  // namespace thinwire::test::attention_merge_test
