// Sketch: sums over simulated ranks against float64, both forms, whole and sliced; and the published defects by name.
#include "compression/codecs/sketch.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "compression/codecs/sparse_select.h"
#include "tests/codecs/codec_laws.h"

namespace thinwire::test::sketch_test {
namespace {

using Vectors = std::vector<std::vector<float>>;

CodecSpec sketch_spec(double density, bool compact, double ratio = 2.0) {
  return {"sketch", {{"density", density}, {"compact", compact}, {"ratio", ratio}}};
}
Msg rank_msg(int rank, int ranks, int64_t step = 17) {
  Msg msg = law_msg(1 + rank % 2);
  msg.rank = rank;
  msg.ranks = ranks;
  msg.step = step;
  return msg;
}

// The rounds as a caller performs them, reductions in rank order; and what came of them.
struct Outcome {
  std::vector<float> sum;  // of an all-reduce, equal on all ranks
  Vectors errors;          // own_error of each rank
  std::vector<int64_t> counts;
  std::vector<Round> rounds;
  bool tables = false, dense = false;  // what the last round carries: tables, or all values
  int64_t unpeeled = 0;                // elements behind the tables
  bool finite = true;
  std::vector<uint8_t> index;  // as agreed
};
struct Group {
  const RoundCodec& codec;
  int64_t n;
  std::vector<std::unique_ptr<CompressionState>> states;
  Group(const RoundCodec& c, int64_t n_, int ranks) : codec(c), n(n_) {
    for (int r = 0; r < ranks; ++r) states.push_back(c.make_state(n, {}));
  }

  Outcome run(const Vectors& xs, int64_t step = 17, bool scatter = false) {
    const int ranks = static_cast<int>(xs.size());
    Outcome out;
    Vectors x = xs;
    const auto view = [&](int rank) { return View(x[static_cast<size_t>(rank)].data(), DType::f32, {n}); };
    for (int r = 0; r < codec.rounds(); ++r) {
      const Round round = codec.round(r, rank_msg(0, ranks, step), n, *states[0]);
      out.rounds.push_back(round);
      out.counts.push_back(round.count);
      EXPECT_LE(round.count, codec.bound(r, n, ranks, {})) << "round " << r;
      const size_t bytes = static_cast<size_t>(round.count) * size_of(round.dtype);
      Bytes sum(bytes);
      for (int rank = 0; rank < ranks; ++rank) {
        CompressionState& state = *states[static_cast<size_t>(rank)];
        const Round same = codec.round(r, rank_msg(rank, ranks, step), n, state);
        EXPECT_TRUE(same.count == round.count && same.dtype == round.dtype && same.reduction == round.reduction &&
                    same.sliceable == round.sliceable);
        Fenced payload(bytes);
        const bool finite = codec.pack(r, rank_msg(rank, ranks, step), view(rank), payload.view(round.dtype), state);
        if (r == 0) out.finite &= finite;
        reduce(round, payload.span(), sum, rank == 0);
      }
      if (r == 0)
        out.index.assign(reinterpret_cast<uint8_t*>(sum.data()), reinterpret_cast<uint8_t*>(sum.data()) + bytes);
      for (int rank = 0; rank < ranks; ++rank) {
        CompressionState& state = *states[static_cast<size_t>(rank)];
        int64_t first = 0, last = round.count;
        if (scatter && round.sliceable) {
          first = codec.payload_index(r, n * rank / ranks, state);
          last = codec.payload_index(r, n * (rank + 1) / ranks, state);
        }
        Fenced payload(sum.data() + static_cast<size_t>(first) * size_of(round.dtype),
                       static_cast<size_t>(last - first) * size_of(round.dtype));
        codec.absorb(r, rank_msg(rank, ranks, step), payload.view(round.dtype), first, state);
      }
    }
    out.sum.resize(static_cast<size_t>(n));
    for (int rank = 0; rank < ranks; ++rank) {
      const Msg msg = rank_msg(rank, ranks, step);
      CompressionState& state = *states[static_cast<size_t>(rank)];
      const int64_t first = scatter ? n * rank / ranks : 0, last = scatter ? n * (rank + 1) / ranks : n;
      Fenced got(static_cast<size_t>(last - first) * 4);
      codec.result(msg, first, got.view(DType::f32), false, state);
      EXPECT_EQ(state.bytes(), codec.make_state(n, {})->bytes()) << "more than was planned";
      if (!scatter && rank > 0 && got.size() > 0) {
        EXPECT_EQ(std::memcmp(got.data(), out.sum.data(), got.size()), 0) << "replicas differ";
      }
      if (got.size() > 0) std::memcpy(out.sum.data() + first, got.data(), got.size());
      std::vector<float> added(static_cast<size_t>(last - first), 0.25f);
      codec.result(msg, first, View(added.data(), DType::f32, {last - first}), true, state);
      for (int64_t i = first; i < last; ++i) {
        const float expected = 0.25f + out.sum[static_cast<size_t>(i)];
        if (std::isnan(expected)) continue;
        EXPECT_EQ(added[static_cast<size_t>(i - first)], expected) << "accumulate, element " << i;
        if (::testing::Test::HasFailure()) break;
      }
      codec.own_error(msg, view(rank), state);
    }
    out.errors = x;
    out.tables = out.rounds.back().dtype == DType::i32;
    out.dense = !out.tables && n > 0 && out.counts.back() == n;
    out.unpeeled = out.tables ? out.counts.back() - dynamic_cast<const Sketch&>(codec).cells(n) : 0;
    return out;
  }

  static void reduce(const Round& round, std::span<const std::byte> from, Bytes& sum, bool first) {
    const auto each = [&]<typename T>(T, auto f) {
      for (size_t i = 0; i + sizeof(T) <= sum.size(); i += sizeof(T)) {
        T a, b;
        std::memcpy(&a, &sum[i], sizeof a);
        std::memcpy(&b, &from[i], sizeof b);
        a = first ? b : f(a, b);
        std::memcpy(&sum[i], &a, sizeof a);
      }
    };
    if (round.reduction == Reduction::kOr)
      each(uint8_t{}, [](uint8_t a, uint8_t b) { return static_cast<uint8_t>(a | b); });
    else if (round.dtype == DType::i32)
      each(uint32_t{}, [](uint32_t a, uint32_t b) { return a + b; });
    else if (round.reduction == Reduction::kMax)
      each(0.0f, [](float a, float b) { return std::max(a, b); });
    else
      each(0.0f, [](float a, float b) { return a + b; });
  }
};

bool bit(const std::vector<uint8_t>& bits, int64_t i) {
  return bits[static_cast<size_t>(i / 8)] >> (i % 8) & 1;
}
int64_t population(const std::vector<uint8_t>& bits) {
  int64_t set = 0;
  for (uint8_t b : bits) set += std::popcount(b);
  return set;
}
Vectors inputs(DataKind kind, int64_t n, int ranks, uint64_t seed) {
  Vectors xs;
  for (int r = 0; r < ranks; ++r) xs.push_back(make_data(kind, n, seed * 1000 + static_cast<uint64_t>(r)));
  return xs;
}
// A support that all ranks share in part: element i is live on all ranks, or on one.
Vectors half_shared(int64_t n, int ranks, uint64_t seed) {
  Vectors xs = inputs(DataKind::kGaussian, n, ranks, seed);
  std::mt19937_64 rng(seed);
  for (int64_t i = 0; i < n; ++i) {
    const bool all = rng() % 10 == 0;
    const int owner = static_cast<int>(rng() % (10 * static_cast<unsigned>(ranks)));
    for (int r = 0; r < ranks; ++r)
      if (!all && owner != r) xs[static_cast<size_t>(r)][static_cast<size_t>(i)] = 0.0f;
  }
  return xs;
}

// The union by brute force: each rank's k largest non-zero numbers.
std::vector<uint8_t> brute_union(double density, const Vectors& xs) {
  const int64_t n = static_cast<int64_t>(xs[0].size());
  std::vector<uint8_t> bits(static_cast<size_t>((n + 7) / 8));
  for (size_t r = 0; r < xs.size(); ++r) {
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return std::fabs(xs[r][static_cast<size_t>(a)]) > std::fabs(xs[r][static_cast<size_t>(b)]);
    });
    for (int64_t i = 0; i < kept_of(n, density); ++i) {
      const int64_t e = order[static_cast<size_t>(i)];
      if (xs[r][static_cast<size_t>(e)] != 0.0f)
        bits[static_cast<size_t>(e / 8)] |= static_cast<uint8_t>(1u << (e % 8));
    }
  }
  return bits;
}

// Everything a message must satisfy, against float64.
void check_message(double density, const Vectors& xs, const Outcome& out, bool table) {
  const int64_t n = static_cast<int64_t>(xs[0].size());
  const int ranks = static_cast<int>(xs.size());
  ASSERT_EQ(out.index, brute_union(density, xs));
  ASSERT_TRUE(out.finite);
  const bool dense = !table && (n + 7) / 8 + 4 * population(out.index) > 4 * n;
  if (!table) {
    ASSERT_EQ(out.counts.back(), dense ? n : population(out.index));
  }
  float largest = 0.0f;
  for (const auto& x : xs)
    for (float v : x) largest = std::max(largest, std::fabs(v));
  // Half a step of the grid a rank: |x| / step < 2^30 / (2 ranks) at worst.
  const double grid = table ? largest * 0x1p-30 * 4 * ranks * 0.5 * ranks : 0.0;
  for (int64_t i = 0; i < n; ++i) {
    double exact = 0.0, size = 0.0, errors = 0.0;
    float in_order = xs[0][static_cast<size_t>(i)];
    for (int r = 0; r < ranks; ++r) {
      const float v = xs[static_cast<size_t>(r)][static_cast<size_t>(i)];
      if (r > 0) in_order += v;
      exact += v;
      size += std::fabs(v);
      errors += out.errors[static_cast<size_t>(r)][static_cast<size_t>(i)];
    }
    const float got = out.sum[static_cast<size_t>(i)];
    if (!dense && !bit(out.index, i)) {
      ASSERT_EQ(got, 0.0f) << "element " << i << " is not in the union";
      ASSERT_EQ(errors, exact);
      continue;
    }
    ASSERT_TRUE(table || got == in_order) << "element " << i << ": " << got << " not " << in_order;
    ASSERT_NEAR(got, exact, grid + ranks * 0x1p-24 * size) << "element " << i;
    // Law 5: in the table form the only rounding is that of the decoded sum.
    ASSERT_NEAR(got + errors, exact,
                table ? 0x1p-24 * std::fabs(exact) + 1e-300 + 0x1p-24 * grid : ranks * 0x1p-24 * size)
        << "element " << i;
  }
}

// ---- sums ----------------------------------------------------------------------------------------------------------
TEST(Sketch, sums_and_residuals_are_right_on_any_number_of_ranks) {
  for (bool compact : {true, false})
    for (int ranks : {1, 2, 3, 4, 8, 16, 17})
      for (int64_t n : {1, 5, 17, 100, 1021, 4099, 40003}) {
        if (n > 5000 && ranks != 4 && ranks != 17) continue;  // several blocks: once is enough
        const Sketch codec(0.2, 2.0, compact);
        for (bool scatter : {false, true}) {
          Group group(codec, n, ranks);
          for (int64_t step = 0; step < 2; ++step) {
            const Vectors xs = (n + step) % 2 ? inputs(DataKind::kHeavyTail, n, ranks, static_cast<uint64_t>(step + 1))
                                              : half_shared(n, ranks, static_cast<uint64_t>(step + 7));
            const Outcome out = group.run(xs, step, scatter);
            EXPECT_FALSE(compact && out.tables);
            check_message(0.2, xs, out, out.tables);
            if (HasFailure()) {
              ADD_FAILURE() << codec.name() << ", " << ranks << " ranks, " << n << " elements, scatter " << scatter;
              return;
            }
          }
        }
      }
}

TEST(Sketch, empty_and_all_zero_messages) {
  for (bool compact : {true, false}) {
    const Sketch codec(0.1, 2.0, compact);
    Group none(codec, 0, 3);
    EXPECT_TRUE(none.run(Vectors(3)).finite);
    Group zeros(codec, 1000, 3);
    const Outcome out = zeros.run(inputs(DataKind::kZeros, 1000, 3, 1));
    EXPECT_EQ(population(out.index), 0);
    for (float v : out.sum) EXPECT_EQ(v, 0.0f);
    EXPECT_TRUE(!compact || out.counts[1] == 0);
  }
}

// The law of the union: what any rank keeps travels, whatever the others keep, and nothing else does. So a rank's k
// largest are never left in its residual, on any number of ranks.
TEST(Sketch, every_rank_keeps_its_share) {
  const int64_t n = 4000, k = 200;
  const Sketch codec(0.05, 2.0, true);
  for (int ranks : {1, 2, 4, 8}) {
    // Supports that share nothing, and ranks that are alike: the union is N k, and k.
    Vectors apart(static_cast<size_t>(ranks), std::vector<float>(static_cast<size_t>(n))), alike = apart;
    for (int r = 0; r < ranks; ++r)
      for (int64_t i = 0; i < n; ++i) {
        const float v = 1.0f + static_cast<float>(i % 7);
        apart[static_cast<size_t>(r)][static_cast<size_t>(i)] = i / k == r ? 100.0f * v : 0.01f * v;
        alike[static_cast<size_t>(r)][static_cast<size_t>(i)] = i < k ? 100.0f * v : 0.01f * v;
      }
    for (const auto& [xs, united] : {std::pair(apart, ranks * k), std::pair(alike, k)}) {
      Group group(codec, n, ranks);
      const Outcome out = group.run(xs);
      EXPECT_EQ(population(out.index), united) << ranks << " ranks";
      EXPECT_EQ(out.counts[1], united);
      EXPECT_EQ(codec.bound(1, n, ranks, {}), ranks * k);
      for (const auto& left : out.errors)
        for (float e : left) ASSERT_LT(e, 1.0f);
    }
  }
}

// Where index and union would be more bytes than the message, all of it travels, and that is counted.
TEST(Sketch, a_full_union_goes_dense) {
  const int64_t n = 3200;
  for (bool compact : {true, false})
    for (int ranks : {2, 3, 4}) {
      const Sketch codec(0.4, 2.0, compact);
      Vectors xs(static_cast<size_t>(ranks), std::vector<float>(static_cast<size_t>(n), 0.5f));
      for (int r = 0; r < ranks; ++r)
        for (int64_t i = 0; i < n; ++i)
          if (i * 5 / (2 * n) == r) xs[static_cast<size_t>(r)][static_cast<size_t>(i)] = 4.0f;
      Group group(codec, n, ranks);
      const Outcome out = group.run(xs);
      const bool dense = ranks > 2;  // two ranks keep 0.8, three all of it
      EXPECT_EQ(out.dense, dense);
      EXPECT_EQ(out.counts.back(), dense ? n : 2 * n * 2 / 5);
      EXPECT_EQ(codec.bound(codec.rounds() - 1, n, ranks, {}), out.counts.back());
      if (dense) {
        for (const auto& left : out.errors) EXPECT_EQ(left, std::vector<float>(static_cast<size_t>(n)));
      }
    }
}

TEST(Sketch, conservation_over_steps) {
  for (bool compact : {true, false}) {
    const Sketch codec(0.1, 2.0, compact);
    const int ranks = 4;
    const int64_t n = 3000;
    Group group(codec, n, ranks);
    Vectors e(ranks, std::vector<float>(static_cast<size_t>(n)));
    std::vector<double> in(static_cast<size_t>(n)), out(in), size(in);
    for (int64_t step = 0; step < 30; ++step) {
      Vectors xs = inputs(DataKind::kHeavyTail, n, ranks, static_cast<uint64_t>(step + 1));
      for (size_t r = 0; r < xs.size(); ++r)
        for (size_t i = 0; i < xs[r].size(); ++i) {
          in[i] += xs[r][i];
          xs[r][i] += e[r][i];
          size[i] += std::fabs(xs[r][i]);
        }
      const Outcome o = group.run(xs, step);
      e = o.errors;
      for (size_t i = 0; i < out.size(); ++i) out[i] += o.sum[i];
    }
    for (size_t i = 0; i < in.size(); ++i) {
      double left = out[i];
      for (const auto& r : e) left += r[i];
      ASSERT_NEAR(left, in[i], (ranks + 1) * 0x1p-24 * size[i]) << codec.name() << ", element " << i;
    }
  }
}

// ---- the published defects, zero-and-tagc 3.3 ----------------------------------------------------------------------
// (1) Bits summed as bytes carry into their neighbours.
TEST(Sketch, defect_one_bit_index_summed) {
  for (int ranks : {2, 3, 4, 8, 16}) {
    const Sketch codec(0.2, 2.0, true);
    const Vectors xs = half_shared(5000, ranks, 3);
    Group group(codec, 5000, ranks);
    const Outcome out = group.run(xs);
    EXPECT_EQ(out.rounds[0].reduction, Reduction::kOr);
    EXPECT_EQ(out.rounds[0].dtype, DType::u8);
    // What the defect would do to these very bitmaps: bits are lost and appear.
    std::vector<uint8_t> summed(out.index.size());
    for (int r = 0; r < ranks; ++r) {
      const auto state = codec.make_state(5000, {});
      std::vector<float> x = xs[static_cast<size_t>(r)];
      std::vector<uint8_t> own(out.index.size());
      codec.pack(0, rank_msg(r, ranks), View(x.data(), DType::f32, {5000}),
                 View(own.data(), DType::u8, {static_cast<int64_t>(own.size())}), *state);
      for (size_t i = 0; i < own.size(); ++i) summed[i] = static_cast<uint8_t>(summed[i] + own[i]);
    }
    EXPECT_NE(summed, out.index);
    EXPECT_EQ(out.index, brute_union(0.2, xs));
    check_message(0.2, xs, out, false);
  }
}

// (2) 80 % local sparsity: the union is 0.36, 0.59, 0.83, 0.97 of the message on 2, 4, 8, 16 ranks. Tables of ratio 2
// stop peeling at 4, where the published form decodes a gradient that is 32 to 72 % wrong, and ours sends the union.
TEST(Sketch, defect_union_growth) {
  const int64_t n = 30000;
  for (bool compact : {true, false})
    for (int ranks : {2, 4, 8, 16}) {
      const Sketch codec(0.2, 2.0, compact);
      const Vectors xs = inputs(DataKind::kGaussian, n, ranks, 5);
      Group group(codec, n, ranks);
      const Outcome out = group.run(xs);
      const double expected = 1.0 - std::pow(0.8, ranks);  // of independent supports
      EXPECT_NEAR(static_cast<double>(population(out.index)) / n, expected, 0.02);
      const bool table = !compact && ranks == 2;
      EXPECT_EQ(out.rounds.back().dtype, table ? DType::i32 : DType::f32);
      check_message(0.2, xs, out, table);
    }
}

// (2, second half) counters of 4 bits overflow at 16 ranks that mark the same element.
TEST(Sketch, defect_nibble_counters_overflow_at_16_ranks) {
  const int64_t n = 1000;
  for (bool compact : {true, false})
    for (int ranks : {15, 16, 17, 33}) {
      const Sketch codec(0.2, 2.0, compact);
      Vectors xs(static_cast<size_t>(ranks), make_data(DataKind::kHeavyTail, n, 3));
      Group group(codec, n, ranks);
      const Outcome out = group.run(xs);
      check_message(0.2, xs, out, out.rounds.back().dtype == DType::i32);
      EXPECT_GT(population(out.index), 0);
    }
}

// (3) Ratio 2 with a 1-bit index moves 18 bits an element, 24 with nibbles; plain bf16 moves 16.
TEST(Sketch, defect_more_bytes_than_bf16_reduce_scatter) {
  const int64_t n = 48000;
  for (int ranks : {2, 3, 4, 8, 16}) {
    for (bool shared : {false, true}) {
      const Sketch codec(0.2, 2.0, true);
      const Vectors xs = shared ? half_shared(n, ranks, 2) : inputs(DataKind::kGaussian, n, ranks, 2);
      Group group(codec, n, ranks);
      const Outcome out = group.run(xs);
      // The index is all-reduced (twice the bytes), the values are reduce-scattered once.
      const double bits =
          (2.0 * 8.0 * static_cast<double>(out.counts[0]) + 32.0 * static_cast<double>(out.counts[1])) / n;
      EXPECT_LE(bits, 2.0 + 32 * std::min(1.0, 0.2 * ranks) + 0.01);
      EXPECT_TRUE(ranks > 2 || bits < 16.0);
      EXPECT_EQ(out.counts[0], n / 8);
      EXPECT_EQ(out.counts[1], out.dense ? n : population(out.index));
    }
  }
  // By formula, the form with tables does not pay: it is here to be compared with.
  const Sketch table(0.2, 2.0, false);
  Group group(table, n, 2);
  const Vectors xs = inputs(DataKind::kGaussian, n, 2, 2);
  const Outcome out = group.run(xs);
  check_message(0.2, xs, out, true);  // the bytes below buy the right sums
  EXPECT_EQ(table.cells(n), n / 2);
  const double bits = (2.0 * 8.0 * static_cast<double>(out.counts[0]) + 32.0 * static_cast<double>(out.counts[2])) / n;
  EXPECT_GT(bits, 16.0);
  EXPECT_LT(bits, 18.1);
}

// (4) Cancellation of larger colliding values, a bit of the mantissa overwritten.
TEST(Sketch, defect_not_bit_exact) {
  const int64_t n = 20000;
  const int ranks = 4;
  // Whole numbers up to 2^20 on a grid whose step is at most 2^-7: everything is exact, collisions or not.
  Vectors xs(ranks, std::vector<float>(static_cast<size_t>(n)));
  std::mt19937_64 rng(8);
  for (auto& x : xs)
    for (float& v : x)
      v = rng() % 10 == 0 ? static_cast<float>(static_cast<int>(rng() % (1 << (1 + rng() % 20)))) : 0.0f;
  for (bool compact : {true, false}) {
    const Sketch codec(0.1, 2.0, compact);
    Group group(codec, n, ranks);
    const Outcome out = group.run(xs);
    EXPECT_EQ(out.tables, !compact);
    for (int64_t i = 0; i < n; ++i) {
      double exact = 0.0;
      for (const auto& x : xs) exact += x[static_cast<size_t>(i)];
      ASSERT_EQ(out.sum[static_cast<size_t>(i)], bit(out.index, i) ? exact : 0.0) << "element " << i;
      for (const auto& e : out.errors) ASSERT_TRUE(!bit(out.index, i) || e[static_cast<size_t>(i)] == 0.0f);
    }
  }
  // One rank, any numbers: the packed form gives back every bit, the last one too.
  const Sketch codec(1.0, 1.0, true);
  const Vectors one = inputs(DataKind::kHeavyTail, 1001, 1, 4);
  Group group(codec, 1001, 1);
  EXPECT_EQ(group.run(one).sum, one[0]);
}

// (5) Elements behind the last whole block of the index got no index.
TEST(Sketch, defect_index_remainder_blocks) {
  for (bool compact : {true, false})
    for (int64_t n : {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 1023, 1024, 1025, 1031, 4 * 1024 + 3, 16 * 1024 + 1,
                      3 * 16384 + 9}) {
      const Sketch codec(0.3, 2.0, compact);
      Vectors xs = inputs(DataKind::kGaussian, n, 2, 6);
      for (auto& x : xs) x.back() = 1000.0f;
      Group group(codec, n, 2);
      const Outcome out = group.run(xs, 0);
      EXPECT_EQ(out.sum.back(), 2000.0f) << n << " elements";
      check_message(0.3, xs, out, out.rounds.back().dtype == DType::i32);
      if (HasFailure()) return;
    }
}

// (6) Residuals keyed by the order of calls. A state belongs to its message: others in between change nothing.
TEST(Sketch, defect_residuals_keyed_by_call_order) {
  const Sketch codec(0.2, 2.0, true);
  const int64_t n = 2000, m = 700;
  const Vectors a = inputs(DataKind::kHeavyTail, n, 2, 1), b = inputs(DataKind::kGaussian, m, 2, 2);
  Group a1(codec, n, 2), b1(codec, m, 2), a2(codec, n, 2), b2(codec, m, 2);
  const Outcome first_a = a1.run(a), then_b = b1.run(b);
  const Outcome first_b = b2.run(b), then_a = a2.run(a);
  EXPECT_EQ(first_a.sum, then_a.sum);
  EXPECT_EQ(first_b.sum, then_b.sum);
  EXPECT_EQ(first_a.errors, then_a.errors);
  EXPECT_EQ(first_b.errors, then_b.errors);
}

// Published thresholds are taken from a fixed list, one below the target: the sparsity falls short of it.
TEST(Sketch, defect_sparsity_below_the_target) {
  for (double density : {0.01, 0.2, 0.5})
    for (float scale : {1e-12f, 1.0f, 1e6f}) {
      const Sketch codec(density, 1.5, true);
      Vectors xs = inputs(DataKind::kGaussian, 10000, 3, 6);
      for (auto& x : xs)
        for (float& v : x) v *= scale;
      Group group(codec, 10000, 3);
      EXPECT_LE(population(group.run(xs).index), std::min<int64_t>(10000, 3 * std::llround(density * 10000)));
    }
}

// ---- what cannot be peeled -----------------------------------------------------------------------------------------
TEST(Sketch, unpeelable_elements_are_counted_and_exact) {
  int64_t unpeeled = 0, fallbacks = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Sketch codec(0.16, 2.0, false);  // 0.8 elements a cell, and few cells: peeling often stops
    const int64_t n = 200 + static_cast<int64_t>(seed) * 40;
    const Vectors xs = inputs(DataKind::kGaussian, n, 3, seed);
    Group group(codec, n, 3);
    const Outcome out = group.run(xs, static_cast<int64_t>(seed));
    check_message(0.16, xs, out, out.tables);
    if (HasFailure()) return;
    EXPECT_TRUE(out.tables ? out.unpeeled < population(out.index) : out.counts[2] == population(out.index));
    unpeeled += out.unpeeled;
    fallbacks += !out.tables;
  }
  EXPECT_GT(unpeeled, 0) << "the test never saw what it is about";
  EXPECT_GT(fallbacks, 0) << "the test never saw what it is about";
  EXPECT_LT(fallbacks, 40);
}

// ---- hostile and non-finite ----------------------------------------------------------------------------------------
TEST(Sketch, non_finite_input_is_flagged_and_stays_non_finite) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (bool compact : {true, false})
    for (float bad : {inf, -inf, nan, -nan})
      for (int64_t at : {0, 777, 1999}) {
        const Sketch codec(0.2, 2.0, compact);
        Vectors xs = inputs(DataKind::kGaussian, 2000, 3, 6);
        xs[1][static_cast<size_t>(at)] = bad;
        Group group(codec, 2000, 3);
        const Outcome out = group.run(xs);
        EXPECT_FALSE(out.finite);
        EXPECT_FALSE(std::isfinite(out.sum[static_cast<size_t>(at)])) << codec.name();
      }
}

TEST(Sketch, values_at_the_ends_of_the_number_line) {
  for (bool compact : {true, false})
    for (float scale : {1e-45f, 1e-38f, 1e-20f, 1e20f, 1e37f}) {
      const Sketch codec(0.3, 2.0, compact);
      Vectors xs = inputs(DataKind::kGaussian, 3000, 3, 6);
      for (auto& x : xs)
        for (float& v : x) v *= scale;
      Group group(codec, 3000, 3);
      const Outcome out = group.run(xs);
      for (int64_t i = 0; i < 3000; ++i) {
        double exact = 0.0, left = out.sum[static_cast<size_t>(i)];
        for (size_t r = 0; r < 3; ++r) {
          exact += xs[r][static_cast<size_t>(i)];
          left += out.errors[r][static_cast<size_t>(i)];
        }
        // Fp32 rounding of the sum, which below 2^-126 is of absolute size.
        ASSERT_NEAR(left, exact, 8 * 0x1p-24 * scale * 5 + 4 * 0x1p-149) << codec.name() << ", " << scale;
      }
    }
}

TEST(Sketch, an_index_with_too_many_elements_is_refused) {
  const Sketch codec(0.1, 2.0, true);
  for (size_t at : {size_t{0}, size_t{12}}) {
    const auto state = codec.make_state(100, {});
    std::vector<uint8_t> bits(13);
    bits[at] = 0xff;  // 8 of at most 2 x 10 are fine, but not behind the end
    if (at == 0) bits[1] = bits[2] = 0xff;
    try {
      codec.absorb(0, rank_msg(0, 2), View(bits.data(), DType::u8, {13}), 0, *state);
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kBadData);
    }
  }
}

TEST(Sketch, bad_parameters_name_the_key) {
  const auto refuse = [](CodecSpec spec, const std::string& key) {
    try {
      make_codec(spec);
      ADD_FAILURE() << key << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kBadConfig);
      EXPECT_NE(std::string(e.what()).find(key), std::string::npos) << e.what();
    }
  };
  refuse(sketch_spec(0.0, true), "density");
  refuse(sketch_spec(0.2, false, 0.5), "ratio");
  refuse(sketch_spec(0.2, false, std::nan("")), "ratio");
  refuse(sketch_spec(0.5, false, 2.0), "density");
  refuse({"sketch", {{"format", "bf16"}}}, "format");
  EXPECT_EQ(make_codec(sketch_spec(0.2, false)).rounds->rounds(), 3);
  EXPECT_EQ(make_codec(sketch_spec(0.9, true)).rounds->rounds(), 2);
}

// Bounds by formula, far beyond memory.
TEST(Sketch, bounds_are_the_published_formula) {
  for (int64_t n : {int64_t{1}, int64_t{1000003}, (int64_t{1} << 31) + 5, int64_t{1} << 36}) {
    const Sketch compact(0.2, 2.0, true);
    const int64_t k = std::max<int64_t>(1, std::llround(0.2 * static_cast<double>(n)));
    EXPECT_EQ(compact.bound(0, n, 3, {}), (n + 7) / 8);
    EXPECT_EQ(compact.bound(1, n, 1, {}), k);
    EXPECT_EQ(compact.bound(1, n, 4, {}), std::min(n, 4 * k));
    EXPECT_EQ(compact.bound(1, n, 5, {}), n);
    const Sketch table(0.2, 2.0, false);
    EXPECT_EQ(table.cells(n), (n + 95) / 96 * 48);
    EXPECT_EQ(table.bound(1, n, 2, {}), 1);
    EXPECT_GE(table.bound(2, n, 2, {}), table.cells(n) + 64);
  }
}

}  // namespace
}  // namespace thinwire::test::sketch_test
