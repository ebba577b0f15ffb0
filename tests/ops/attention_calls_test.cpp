// Attention as calls of a library: the cut covers every head once within its memory, and a stand-in that computes call
// by call with the roundings of the real one holds the bounds of the fused test, while each of its faults breaks them.
#include "engine/base/ops/attention_calls.h"

#include <cstdlib>
#include <set>

#include "engine/base/core/error.h"
#include "engine/base/ops/attention_fused.h"
#include "tests/ops/attention_fused_cases.h"

namespace thinwire::test::attention_calls_test {
namespace {

// What can go wrong in a library or in how it is called.
enum class Fault {
  kNone,
  kSeesTheNextKey,
  kMissesTheFirstKey,
  kNoScale,
  kScaleTwiceInDk,
  kLseInLog2,
  kLseOfTheRoundedSum,
  kNoDelta,
  kHalfOfP,
  kCoarseDp,
  kHeadsOfTheNextGroup,
  kLastRowUnwritten,
  kGradientsOfOneHead,
  kMaskOfTheFirstHead,
  kMaskOfOnes,
  kCount
};

double rounded(double x, DType type) {
  return type == DType::bf16 ? to_float(to_bf16(static_cast<float>(x))) : to_float(to_fp16(static_cast<float>(x)));
}

double element(const View& view, int64_t at) {
  return read_element(view, at);
}

// One call, forward and backward, as cuDNN's kernels do it: fp32 sums (more here), P, dP and dS in the operands' type,
// dk and dv of every q head rounded before they are added; and with a mask, row sums not divided by the rest of the
// factor (attention_kept).
void one_call(const AttentionCalls& calls, const AttentionCalls::Start& s, const AttentionForward& f,
              const AttentionBackward* b, Fault fault) {
  const AttentionCall& c = calls.call;
  const int64_t m = c.q_heads / c.kv_heads, n = c.length, d = c.head_dim;
  const auto place = [](const AttentionCall::Strides& by, int64_t start, int64_t sample, int64_t head, int64_t token) {
    return start + sample * by[0] + head * by[1] + token * by[2];
  };
  const double scale = fault == Fault::kNoScale ? 1.0 : static_cast<double>(c.scale);
  const auto size = static_cast<size_t>(n * d);
  for (int64_t sample = 0; sample < c.batch; ++sample) {
    std::vector<double> dk(static_cast<size_t>(c.kv_heads) * size), dv(dk);
    for (int64_t head = 0; head < c.q_heads; ++head) {
      int64_t kv = head / m;
      if (fault == Fault::kHeadsOfTheNextGroup) kv = (kv + 1) % c.kv_heads;
      std::vector<double> head_dk(size), head_dv(size);
      // Of the op, by its place in the call's mask.
      const int64_t heads = c.batch * c.q_heads / calls.samples, in_mask = sample * c.q_heads + head;
      const int64_t of_op = fault == Fault::kMaskOfTheFirstHead ? 0 : s.head + in_mask % heads;
      AttentionKept kept = attention_kept(c);
      if (fault == Fault::kMaskOfOnes) kept = {1.0f, kept.mask * kept.rest};
      const double rest = kept.rest;
      const auto mask = [&](int64_t query, int64_t key) {
        if (c.dropout == 0.0f) return 1.0;
        return dropout_factor(f.dropout, f.shape.batch * f.shape.heads() * n * n,
                              (((s.sample + in_mask / heads) * f.shape.heads() + of_op) * n + query) * n + key) > 0.0
                   ? static_cast<double>(kept.mask)
                   : 0.0;
      };
      for (int64_t t = 0; t < n; ++t) {
        const int64_t q_at = place(c.q, s.q, sample, head, t), o_at = place(c.o, s.o, sample, head, t);
        const int64_t first = fault == Fault::kMissesTheFirstKey && t > 0 ? 1 : 0;
        const int64_t last = fault == Fault::kSeesTheNextKey ? std::min(n, t + 2) : t + 1;
        std::vector<double> p(static_cast<size_t>(last));
        double most = -HUGE_VAL, sum = 0.0, used = 0.0;
        for (int64_t i = first; i < last; ++i) {
          double dot = 0.0;
          for (int64_t e = 0; e < d; ++e)
            dot += element(f.q, q_at + e) * element(f.k, place(c.k, s.k, sample, kv, i) + e);
          p[static_cast<size_t>(i)] = scale * dot;
          most = std::max(most, scale * dot);
        }
        std::vector<double> out(static_cast<size_t>(d));
        for (int64_t i = first; i < last; ++i) {
          const double e_to = std::exp(p[static_cast<size_t>(i)] - most),
                       weight = rounded(e_to * rest * mask(t, i), c.dtype);
          sum += e_to, used += weight;
          for (int64_t e = 0; e < d; ++e)
            out[static_cast<size_t>(e)] += weight * element(f.v, place(c.v, s.v, sample, kv, i) + e);
        }
        double lse = most + std::log(fault == Fault::kLseOfTheRoundedSum ? used : sum);
        if (fault == Fault::kLseInLog2) lse *= 1.4426950408889634;
        const bool skipped = fault == Fault::kLastRowUnwritten && t == n - 1;
        for (int64_t e = 0; e < d && !skipped; ++e) write_element(f.out, o_at + e, out[static_cast<size_t>(e)] / sum);
        if (f.lse) write_element(f.lse, s.lse + (sample * c.q_heads + head) * n + t, lse);
        if (b == nullptr) continue;
        double delta = 0.0;
        for (int64_t e = 0; e < d; ++e) delta += element(b->dout, o_at + e) * element(b->out, o_at + e);
        if (fault == Fault::kNoDelta) delta = 0.0;
        std::vector<double> dq(static_cast<size_t>(d));
        for (int64_t i = first; i < last; ++i) {
          const int64_t k_at = place(c.k, s.k, sample, kv, i), v_at = place(c.v, s.v, sample, kv, i);
          double probability =
              std::exp(p[static_cast<size_t>(i)] - element(f.lse, s.lse + (sample * c.q_heads + head) * n + t));
          if (fault == Fault::kHalfOfP) probability *= 0.5;
          double dp = 0.0;
          for (int64_t e = 0; e < d; ++e) dp += element(b->dout, o_at + e) * element(b->v, v_at + e);
          dp = rounded(dp * mask(t, i), c.dtype);
          if (fault == Fault::kCoarseDp) dp = std::ldexp(std::nearbyint(std::ldexp(dp, 1)), -1);
          const double ds = rounded(rest * probability * (dp - delta), c.dtype);
          for (int64_t e = 0; e < d; ++e) {
            dq[static_cast<size_t>(e)] += scale * ds * element(b->k, k_at + e);
            head_dk[static_cast<size_t>(i * d + e)] +=
                scale * (fault == Fault::kScaleTwiceInDk ? scale : 1.0) * ds * element(b->q, q_at + e);
            head_dv[static_cast<size_t>(i * d + e)] +=
                rounded(rest * probability * mask(t, i), c.dtype) * element(b->dout, o_at + e);
          }
        }
        for (int64_t e = 0; e < d; ++e) write_element(b->dq, q_at + e, dq[static_cast<size_t>(e)]);
      }
      if (fault == Fault::kGradientsOfOneHead && head % m != 0) continue;
      for (size_t i = 0; i < size; ++i) {
        dk[static_cast<size_t>(kv) * size + i] += m > 1 ? rounded(head_dk[i], c.dtype) : head_dk[i];
        dv[static_cast<size_t>(kv) * size + i] += m > 1 ? rounded(head_dv[i], c.dtype) : head_dv[i];
      }
    }
    if (b == nullptr) continue;
    for (int64_t kv = 0; kv < c.kv_heads; ++kv) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t e = 0; e < d; ++e) {
          const size_t from = static_cast<size_t>(kv) * size + static_cast<size_t>(i * d + e);
          write_element(b->dk, place(c.k, s.k, sample, kv, i) + e, dk[from]);
          write_element(b->dv, place(c.v, s.v, sample, kv, i) + e, dv[from]);
        }
      }
    }
  }
}

bool stand_in(AttentionTensors& x, Fault fault, size_t most_bytes) {
  const AttentionForward f = x.forward_op();
  const AttentionBackward b = x.backward_op();
  AttentionCalls forward, backward;
  if (!attention_calls(f, most_bytes, forward) || !attention_calls(b, true, most_bytes, backward)) return false;
  for (const AttentionCalls::Start& s : forward.starts) one_call(forward, s, f, nullptr, fault);
  for (const AttentionCalls::Start& s : backward.starts) one_call(backward, s, f, &b, fault);
  return true;
}

TEST(AttentionCalls, AStandInWithTheLibrarysRoundingsHoldsTheBounds) {
  uint32_t seed = 1;
  for (const AttentionCase& c : fused_attention_cases({2, 24, 65})) {
    for (size_t most : {kAttentionWorkspace, size_t{1}}) {
      fused_within_bounds(
          c, seed, [&](AttentionTensors& x) { return stand_in(x, Fault::kNone, most); }, true);
    }
    ++seed;
  }
}

TEST(AttentionCalls, EveryFaultOfTheLibraryIsFound) {
  for (int fault = 1; fault < static_cast<int>(Fault::kCount); ++fault) {
    int found = 0;
    uint32_t seed = 1;
    for (const AttentionCase& c : fused_attention_cases({66, 24})) {
      if (c.head_dim != 64 || found > 0 ||
          (c.dropout > 0.0f) != (fault >= static_cast<int>(Fault::kMaskOfTheFirstHead)))
        continue;
      found += fused_within_bounds(
                   c, seed++,
                   [&](AttentionTensors& x) { return stand_in(x, static_cast<Fault>(fault), kAttentionWorkspace); },
                   false) < 3;
    }
    EXPECT_GT(found, 0) << "fault " << fault;
  }
}

// Every q head of every sample in one call, its k, v and lse beside it, on 16 bytes; calls of one shape; no call over
// its memory that could be cut further.
TEST(AttentionCalls, CoverEveryHeadOnce) {
  std::mt19937 rng(2);
  const auto pick = [&](int64_t n) { return 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  int cut = 0;
  for (int i = 0; i < 2000; ++i) {
    const int64_t batch = pick(6), groups = pick(9), m = pick(4), d = 8 * pick(16), length = 1 + pick(5000);
    AttentionBackward op = packed_attention(DType::bf16, batch, length, groups, m, d, i % 2 == 0);
    std::vector<float> lse(4);
    op.lse = View(lse.data(), DType::f32, {batch, groups * m, length});
    const size_t most = size_t{1} << (16 + rng() % 16);
    const bool deterministic = rng() % 4 != 0;
    AttentionCalls calls;
    const bool taken = attention_calls(op, deterministic, most, calls);
    if (!taken) {
      ASSERT_TRUE(m > 1 && batch > 1 && length * groups * m % 4 != 0) << "lse of every sample begins on 16 bytes";
      continue;
    }
    const AttentionCall& c = calls.call;
    std::set<std::array<int64_t, 3>> seen;  // q, k, lse
    for (const AttentionCalls::Start& s : calls.starts) {
      ASSERT_EQ(s.q % 8 + s.k % 8 + s.v % 8 + s.o % 8 + s.lse % 4, 0);
      for (int64_t b = 0; b < c.batch; ++b) {
        for (int64_t h = 0; h < c.q_heads; ++h) {
          const int64_t kv = h / (c.q_heads / c.kv_heads);
          const int64_t q = s.q + b * c.q[0] + h * c.q[1], k = s.k + b * c.k[0] + kv * c.k[1];
          ASSERT_EQ(s.v + b * c.v[0] + kv * c.v[1], k + d);
          const int64_t lse_at = s.lse + (b * c.q_heads + h) * length, o = s.o + b * c.o[0] + h * c.o[1];
          ASSERT_EQ(o % (length * groups * m * d), lse_at / length % (groups * m) * d);
          ASSERT_TRUE(seen.insert({q, k, lse_at}).second);
        }
      }
    }
    std::set<std::array<int64_t, 3>> want;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t g = 0; g < groups; ++g) {
        for (int64_t j = 0; j < m; ++j)
          want.insert({b * op.q_at.batch + g * op.q_at.group + j * op.q_at.head,
                       op.k_at.offset + b * op.k_at.batch + g * op.k_at.group, ((b * groups + g) * m + j) * length});
      }
    }
    ASSERT_EQ(seen, want);
    if (deterministic && attention_workspace(c) > most) {
      // One group of one sample is the least, where the next can begin on 16 bytes of lse.
      ASSERT_TRUE(c.q_heads * c.batch == m || length * m % 4 != 0);
    }
    cut += deterministic && calls.starts.size() > 1;
  }
  EXPECT_GT(cut, 500);
}

// A mask beside what the backward pass keeps: no more than the limit in either pass.
TEST(AttentionCalls, MasksStayWithinTheirMemory) {
  AttentionBackward back = packed_attention(DType::bf16, 8, 1024, 24, 1, 128, false);
  AttentionForward op;
  op.shape = back.shape, op.q = back.q, op.k = back.k, op.v = back.v;
  op.q_at = back.q_at, op.k_at = back.k_at, op.v_at = back.v_at;
  op.dropout.p = back.dropout.p = 0.1f;
  AttentionCalls calls;
  ASSERT_TRUE(attention_calls(op, kAttentionWorkspace, calls));
  EXPECT_EQ(calls.starts.size(), 1u) << "a layer of Optimus-CC's 8.3B on one GPU";
  EXPECT_EQ(attention_mask_bytes(calls.call), size_t{8 * 24 * 2} << 20);
  for (size_t most : {size_t{1} << 28, size_t{1} << 24, size_t{1} << 20}) {
    ASSERT_TRUE(attention_calls(op, most, calls));
    EXPECT_LE(attention_mask_bytes(calls.call), std::max(most, size_t{2} << 20));
    ASSERT_TRUE(attention_calls(back, true, most, calls));
    EXPECT_LE(attention_mask_bytes(calls.call) + attention_workspace(calls.call), std::max(most, size_t{4} << 20));
  }
  op.shape.q_len = op.shape.kv_len = 1020;  // rows of a mask on 8 bytes
  EXPECT_FALSE(attention_calls(op, kAttentionWorkspace, calls));
}

// The step of a 1B Llama: one call for the batch, where heads shared keys in a call per sample.
TEST(AttentionCalls, HeadsThatShareKeysAreOneCallWhereQueriesAreApart) {
  AttentionCalls calls;
  ASSERT_TRUE(
      attention_calls(packed_attention(DType::bf16, 8, 2048, 8, 4, 64, false), false, kAttentionWorkspace, calls));
  EXPECT_EQ(calls.starts.size(), 8u);
  ASSERT_TRUE(
      attention_calls(packed_attention(DType::bf16, 8, 2048, 8, 4, 64, true), false, kAttentionWorkspace, calls));
  EXPECT_EQ(calls.starts.size(), 1u);
  EXPECT_EQ(calls.call.q_heads, 32);
  EXPECT_EQ(calls.call.kv_heads, 8);
}

// 2 B Hq T^2 bytes were 64 GiB here.
TEST(AttentionCalls, LongSequencesStayWithinTheirMemory) {
  AttentionCalls calls;
  ASSERT_TRUE(
      attention_calls(packed_attention(DType::bf16, 1, 32768, 32, 1, 128, false), true, kAttentionWorkspace, calls));
  EXPECT_LE(attention_workspace(calls.call), size_t{2} << 30);  // of one head
  EXPECT_EQ(calls.starts.size(), 32u);
  ASSERT_TRUE(
      attention_calls(packed_attention(DType::bf16, 1, 8192, 32, 1, 128, false), true, kAttentionWorkspace, calls));
  EXPECT_LE(attention_workspace(calls.call), kAttentionWorkspace);
  EXPECT_EQ(calls.starts.size(), 2u);
  ASSERT_TRUE(
      attention_calls(packed_attention(DType::bf16, 8, 2048, 8, 4, 64, true), true, kAttentionWorkspace, calls));
  EXPECT_EQ(calls.starts.size(), 1u) << "Llama 1B";
}

TEST(AttentionCalls, TheEnvironmentChooses) {
  const auto with = [](const char* word) {
    ::setenv("THINWIRE_ATTENTION", word, 1);
    return attention_choice();
  };
  EXPECT_EQ(with("own"), AttentionChoice::kOwn);
  EXPECT_EQ(with("picked"), AttentionChoice::kPicked);
  attention_falls_back("attention", "for a test");  // a warning
  EXPECT_EQ(with("fused"), AttentionChoice::kFused);
  EXPECT_THROW(attention_falls_back("attention", "for a test"), Error);
  EXPECT_THROW(with("fast"), Error);
  ::unsetenv("THINWIRE_ATTENTION");
  EXPECT_EQ(attention_choice(), AttentionChoice::kPicked);
}

}  // namespace
}  // namespace thinwire::test::attention_calls_test
