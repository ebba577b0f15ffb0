// Attention as calls of a library: the cut covers every head once within its memory, and a stand-in that computes call
// by call with the roundings of the real one holds the bounds of the fused test, while each of its faults breaks them.
#include "engine/base/ops/attention_calls.h"

#include <cstdlib>
#include <set>

#include "engine/base/core/error.h"
#include "engine/base/ops/attention_fused.h"
#include "tests/ops/attention_fused_cases.h"
#include "tests/ops/attention_stand_in.h"

namespace thinwire::test::attention_calls_test {
namespace {

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
  for (int fault = 1; fault < static_cast<int>(Fault::kAllMasked); ++fault) {
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
    if (i % 3 == 0) {
      const int64_t keys = pick(5000);
      take_part(op, keys, keys);
    }
    std::vector<float> lse(4);
    op.lse = View(lse.data(), DType::f32, {batch, groups * m, length});
    const size_t most = size_t{1} << (16 + rng() % 16);
    const bool deterministic = rng() % 4 != 0;
    AttentionCalls calls;
    const bool taken = attention_calls(op, deterministic, most, calls);
    if (!taken) {
      ASSERT_TRUE((m > 1 && batch > 1 && length * groups * m % 4 != 0) || op.shape.kv_len < 2 || length < 2)
          << "lse of every sample begins on 16 bytes";
      continue;
    }
    const AttentionCall& c = calls.call;
    ASSERT_TRUE(c.q_len == length && c.kv_len == op.shape.kv_len && c.part == op.shape.part());
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

// Who sees whom, by the op and by the call it becomes; what a library cannot be told is refused, and nothing else.
TEST(AttentionCalls, PartsSeeWhatTheOpSees) {
  std::mt19937 rng(3);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  int all = 0, diagonal = 0, longer = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    AttentionBackward op = packed_attention(DType::f16, 1, 1 + pick(20), 4, 1, 64, false);
    const int64_t keys = 1 + pick(40), queries = op.shape.q_len;
    take_part(op, keys, 0);
    op.shape.length = 100, op.shape.first_key = pick(30);
    // Forms that matter are rare among random ones.
    const int64_t behind = i % 3 == 0 ? keys - queries : i % 3 == 1 ? keys - 2 + pick(4) : pick(50) - 25;
    op.shape.first_query = op.shape.first_key + behind;
    if (op.shape.first_query < 0) continue;
    bool by_diagonal = true, by_all = true;
    for (int64_t t = 0; t < queries; ++t) {
      for (int64_t k = 0; k < keys; ++k) {
        const bool seen = op.shape.first_key + k <= op.shape.first_query + t;
        by_all = by_all && seen;
        by_diagonal = by_diagonal && seen == (k - (keys - 1) <= t - (queries - 1));
      }
    }
    AttentionCalls calls;
    const bool known = (by_all || (by_diagonal && keys >= queries)) && queries > 1 && keys > 1;
    ASSERT_EQ(attention_calls(op, true, kAttentionWorkspace, calls), known)
        << queries << " queries, " << keys << " keys, behind " << behind;
    refused += !known;
    if (!known) continue;
    ASSERT_EQ(calls.call.causal, !by_all);
    (by_all ? all : keys > queries ? longer : diagonal) += 1;
  }
  EXPECT_TRUE(all > 500 && diagonal > 100 && longer > 500 && refused > 500)
      << all << " " << diagonal << " " << longer << " " << refused;
}

TEST(AttentionCalls, PartsThatAreNotForTheLibrary) {
  AttentionBackward op = packed_attention(DType::bf16, 2, 64, 4, 2, 64, true);
  take_part(op, 64, 64);
  AttentionCalls calls;
  const auto taken = [&](auto change) {
    AttentionBackward other = op;
    change(other);
    return attention_calls(other, true, kAttentionWorkspace, calls);
  };
  EXPECT_TRUE(taken([](AttentionBackward&) {}));
  EXPECT_TRUE(taken([](AttentionBackward& b) { b.add_dq = b.add_dkv = true, b.keys_at_once = 64; }));
  EXPECT_FALSE(taken([](AttentionBackward& b) { b.keys_at_once = 63; })) << "two ops";
  EXPECT_FALSE(taken([](AttentionBackward& b) { b.dropout.p = 0.1f; }));
  EXPECT_FALSE(taken([](AttentionBackward& b) { b.window = 200; }));
  EXPECT_FALSE(taken([](AttentionBackward& b) { b.q.dtype = DType::f32; }));
  EXPECT_FALSE(taken([](AttentionBackward& b) { b.shape.first_query = 62; })) << "a band";
  EXPECT_FALSE(taken([](AttentionBackward& b) { b.k_at.token += 4; }));
  int32_t first_key = 0;
  EXPECT_FALSE(taken([&](AttentionBackward& b) { b.first_keys = View(&first_key, DType::i32, {1}); }));
}

// What a part writes lies side by side.
TEST(AttentionCalls, PartsHaveMemoryForWhatTheyWrite) {
  AttentionBackward op = packed_attention(DType::bf16, 2, 100, 4, 1, 72, true);
  take_part(op, 300, 400);
  AttentionCalls calls;
  ASSERT_TRUE(attention_calls(op, true, kAttentionWorkspace, calls));
  const AttentionPart at = attention_part(calls.call);
  const size_t q = size_t{2} * 100 * 4 * 72 * 2, kv = 3 * q;
  EXPECT_TRUE(at.q == 0 && at.k >= q && at.v >= at.k + kv && at.bytes >= at.v + kv && at.bytes < q + 2 * kv + 1536);
  EXPECT_EQ(at.k % 512 + at.v % 512 + at.bytes % 512, 0u);
  calls.call.backward = false;
  EXPECT_GE(attention_part(calls.call).bytes, attention_part(calls.call).lse + size_t{2} * 100 * 4 * 4);
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
  // The last chunk of a long sequence against all of its keys.
  AttentionBackward part = packed_attention(DType::bf16, 1, 8192, 16, 1, 128, false);
  take_part(part, 65536, 57344);
  ASSERT_TRUE(attention_calls(part, true, kAttentionWorkspace, calls));
  EXPECT_LE(attention_workspace(calls.call), kAttentionWorkspace);
  EXPECT_EQ(calls.starts.size(), 8u);
  ASSERT_TRUE(attention_calls(part, false, kAttentionWorkspace, calls));
  EXPECT_EQ(calls.starts.size(), 1u);
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
