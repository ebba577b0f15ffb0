// The mask that a library's attention gets is that of our own: every element by the words of its sample, head, query
// and key, whichever heads and samples a call takes, the number of its pass; what lies behind a query is 0.
#include "engine/base/ops/attention_fused.h"
#include "tests/support/op_test_support.h"

namespace thinwire::test::attention_mask_test {
namespace {

TEST(AttentionMask, HoldsTheFactorsOfEveryCallOfAnOp) {
  std::mt19937 rng(7);
  const auto pick = [&](int64_t n) { return 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  CpuExec exec;
  int64_t kept = 0, seen = 0, calls_made = 0;
  for (int round = 0; round < 60; ++round) {
    const int64_t batch = pick(3), groups = pick(3), m = pick(3), length = 8 * pick(9), shards = pick(3);
    AttentionForward op;
    const AttentionBackward packed =
        packed_attention(round % 2 == 0 ? DType::bf16 : DType::f16, batch, length, groups, m, 8, round % 3 == 0);
    op.shape = packed.shape, op.q = packed.q, op.q_at = packed.q_at, op.k_at = packed.k_at, op.v_at = packed.v_at;
    std::vector<int64_t> ids;
    for (int64_t b = 0; b < batch; ++b) ids.push_back(static_cast<int64_t>(rng()) << 16 | pick(1000));
    const int64_t heads = groups * m, all_heads = shards * heads, shard = pick(shards) - 1;
    op.dropout = {.p = 0.1f * static_cast<float>(pick(8)),
                  .key = seed_key(rng()),
                  .purpose = RandomPurpose::kAttentionDropout,
                  .layer = static_cast<uint32_t>(pick(90)),
                  .sample_ids = ids.data(),
                  .batch = batch,
                  .first_head = shard * heads};
    AttentionCalls calls;
    ASSERT_TRUE(attention_calls(op, size_t{1} << (10 + rng() % 10), calls));
    calls.call.backward = rng() % 2 == 0;
    const double number = attention_dropout_scale(calls.call).mask;
    EXPECT_EQ(number > 1.0, calls.call.backward);
    for (const AttentionCalls::Start& start : calls.starts) {
      const int64_t count = static_cast<int64_t>(attention_mask_bytes(calls.call)) / 2;
      Tensor mask = constant_tensor(op.q.dtype, {count + 8}, 7.0);
      attention_mask_cuda(*exec, op.dropout, op.shape, calls, start, mask.view().data);
      ++calls_made;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t own_heads = count / (length * length) / calls.samples, row = i / length, head = row / length;
        const int64_t sample = start.sample + head / own_heads, key = i % length, query = row % length;
        const int64_t in_whole = shard * heads + start.head + head % own_heads;
        const double factor = dropout_factor(op.dropout, batch * all_heads * length * length,
                                             ((sample * all_heads + in_whole) * length + query) * length + key);
        ASSERT_EQ(mask.at(i), key <= query && factor > 0.0 ? number : 0.0)
            << "sample " << sample << " head " << in_whole << " query " << query << " key " << key;
        kept += mask.at(i) > 0.0, seen += key <= query;
      }
      for (int64_t i = count; i < count + 8; ++i) ASSERT_EQ(mask.at(i), 7.0);
    }
  }
  EXPECT_GT(calls_made, 60) << "ops in several calls";
  EXPECT_TRUE(kept > seen / 4 && kept < 3 * seen / 4) << kept << " of " << seen;
}

}  // namespace
}  // namespace thinwire::test::attention_mask_test
