// Every verb against a plain loop in double: random sizes, groups, types, cuts, algorithms and orders of completion.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>

#include "tests/comm/coded_bytes.h"
#include "tests/comm/local_group.h"

namespace thinwire::collectives_test {
namespace {

constexpr DType kReal[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
constexpr DType kWhole[] = {DType::i32, DType::i64, DType::u8};

// What a random case runs under.
struct Terms {
  int size;
  uint64_t shuffle;
  int per_node;  // ranks in a row that share memory, 0: none do
  CommTuning tuning;
};

Terms random_terms(std::mt19937_64& random, Algorithm algorithm) {
  Terms terms;
  terms.size = 1 + static_cast<int>(random() % 8);
  terms.shuffle = random() % 2 == 0 ? 0 : random() % 1000 + 1;
  terms.per_node = static_cast<int>(random() % 3) * 2;
  terms.tuning.all_reduce = terms.tuning.reduce_scatter = terms.tuning.all_gather = algorithm;
  constexpr int64_t kChunks[] = {64, 1000, 4096, 65536, 262144};
  terms.tuning.chunk_bytes = kChunks[random() % 5];
  terms.tuning.small_bytes = random() % 2 == 0 ? 0 : 2048;
  return terms;
}

// A test case moves at most so much through 64-byte chunks: the number of messages stays sane.
int64_t most_elements(const Terms& terms) {
  return std::min<int64_t>(1000000, terms.tuning.chunk_bytes * 400);
}

struct Reference {
  double sum = 0.0, magnitude = 0.0, largest = -std::numeric_limits<double>::infinity();
  int64_t any = 0;
};
Reference reference_of(const std::vector<Buffer>& all, int64_t i) {
  Reference ref;
  for (const Buffer& b : all) {
    const double v = b.get(i);
    ref.sum += v;
    ref.magnitude += std::abs(v);
    ref.largest = std::max(ref.largest, v);
    if (std::abs(v) < 1e9) ref.any |= static_cast<int64_t>(v);
  }
  return ref;
}

class Verbs : public ::testing::TestWithParam<Algorithm> {
 protected:
  static int hops(int size) { return GetParam() == Algorithm::kDirect ? 1 : size; }
};

TEST_P(Verbs, AllReduceMatchesPlainLoop) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    const Terms terms = random_terms(random, GetParam());
    const bool real = random() % 3 != 0;
    const DType dtype = real ? kReal[random() % 4] : kWhole[random() % 3];
    ReduceKind kind = static_cast<ReduceKind>(random() % 3);
    if (!can_reduce(dtype, kind)) kind = ReduceKind::kMax;
    const int64_t count = random_count(random, most_elements(terms));
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " size " << terms.size << " count " << count << " "
                                      << name_of(dtype) << " kind " << static_cast<int>(kind));
    const std::vector<Buffer> all = contributions(dtype, count, seed, terms.size);
    std::vector<Buffer> results = all;
    run_ranks(
        terms.size,
        [&](Progress& progress) {
          HostStream stream;
          const int me = progress.transport().rank();
          Communicator group(progress, all_ranks(terms.size), 3, Site::kControl, nullptr, {}, terms.tuning);
          group.all_reduce(results[static_cast<size_t>(me)].view(), kind, stream).wait(stream);
        },
        terms.shuffle, {.spin_us = 0}, terms.per_node);
    for (int r = 1; r < terms.size; ++r) ASSERT_EQ(results[0].bytes(), results[static_cast<size_t>(r)].bytes());
    for (int64_t i = 0; i < count; ++i) {
      const Reference ref = reference_of(all, i);
      const double got = results[0].get(i);
      switch (kind) {
        case ReduceKind::kSum:
          ASSERT_LE(std::abs(got - ref.sum),
                    real ? sum_tolerance(dtype, terms.size, ref.magnitude, hops(terms.size)) : 0.0)
              << i;
          break;
        case ReduceKind::kMax:
          ASSERT_EQ(got, ref.largest);
          break;
        case ReduceKind::kOr:
          ASSERT_EQ(got, static_cast<double>(ref.any));
          break;
      }
    }
  }
}

TEST_P(Verbs, ReduceScatterMatchesPlainLoop) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed + 100);
    const Terms terms = random_terms(random, GetParam());
    const DType dtype = kReal[random() % 4];
    const int64_t count = random_count(random, most_elements(terms));
    const std::vector<int64_t> bounds = ragged_bounds(random, count, terms.size);
    const bool in_place = random() % 2 == 0, accumulate = !in_place && random() % 2 == 0;
    const bool half = dtype == DType::bf16 || dtype == DType::f16;
    const DType out_type = half && !in_place && random() % 2 == 0 ? DType::f32 : dtype;
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " size " << terms.size << " count " << count << " "
                                      << name_of(dtype) << " into " << name_of(out_type) << " in place " << in_place
                                      << " accumulate " << accumulate);
    const std::vector<Buffer> all = contributions(dtype, count, seed, terms.size);
    std::vector<Buffer> whole = all;
    std::vector<Buffer> outs, before;
    for (int r = 0; r < terms.size; ++r) {
      const auto place = static_cast<size_t>(r);
      outs.emplace_back(out_type, bounds[place + 1] - bounds[place]).fill(seed + 5, r);
    }
    before = outs;
    run_ranks(
        terms.size,
        [&](Progress& progress) {
          HostStream stream;
          const auto me = static_cast<size_t>(progress.transport().rank());
          Communicator group(progress, all_ranks(terms.size), 3, Site::kControl, nullptr, {}, terms.tuning);
          View mine = whole[me].view().element_range(bounds[me], bounds[me + 1] - bounds[me]);
          group.reduce_scatter(whole[me].view(), bounds, in_place ? mine : outs[me].view(), accumulate, stream)
              .wait(stream);
        },
        terms.shuffle, {.spin_us = 0}, terms.per_node);
    for (int r = 0; r < terms.size; ++r) {
      const auto place = static_cast<size_t>(r);
      for (int64_t i = bounds[place]; i < bounds[place + 1]; ++i) {
        Reference ref = reference_of(all, i);
        if (accumulate) {
          ref.sum += before[place].get(i - bounds[place]);
          ref.magnitude += std::abs(before[place].get(i - bounds[place]));
        }
        const double got = in_place ? whole[place].get(i) : outs[place].get(i - bounds[place]);
        // An fp32 result of the direct algorithm was never rounded to 16 bits.
        const double tolerance = out_type == DType::f32 && hops(terms.size) == 1
                                     ? sum_tolerance(DType::f32, terms.size + 1, ref.magnitude, 0)
                                     : sum_tolerance(dtype, terms.size + 1, ref.magnitude, hops(terms.size));
        ASSERT_LE(std::abs(got - ref.sum), tolerance) << "rank " << r << " element " << i;
      }
    }
  }
}

TEST_P(Verbs, AllGatherCopiesExactly) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed + 200);
    const Terms terms = random_terms(random, GetParam());
    const DType dtype = random() % 2 == 0 ? kReal[random() % 4] : DType::u16;
    const int64_t count = random_count(random, most_elements(terms));
    const std::vector<int64_t> bounds = ragged_bounds(random, count, terms.size);
    // Where a rank keeps its part: in its place, in memory of its own, or anywhere in the whole, where others land.
    enum class Home { kPlace, kElsewhere, kAnywhere };
    const Home home = static_cast<Home>(random() % 3);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " size " << terms.size << " count " << count << " home "
                                      << static_cast<int>(home));
    Buffer want(dtype, count);
    want.fill(seed, 0);
    std::vector<Buffer> got;
    for (int r = 0; r < terms.size; ++r) got.emplace_back(dtype, count);
    run_ranks(
        terms.size,
        [&](Progress& progress) {
          HostStream stream;
          const auto me = static_cast<size_t>(progress.transport().rank());
          Communicator group(progress, all_ranks(terms.size), 3, Site::kControl, nullptr, {}, terms.tuning);
          const int64_t length = bounds[me + 1] - bounds[me];
          View mine = got[me].view().element_range(bounds[me], length);
          Buffer elsewhere(dtype, length);
          if (home == Home::kElsewhere) mine = elsewhere.view();
          if (home == Home::kAnywhere) {
            std::mt19937_64 own(seed * 100 + me);
            const auto first = static_cast<int64_t>(own() % static_cast<uint64_t>(count - length + 1));
            mine = got[me].view().element_range(first, length);
          }
          const auto from = want.bytes().begin() + bounds[me] * static_cast<int64_t>(size_of(dtype));
          std::copy_n(from, mine.bytes(), static_cast<char*>(mine.data));
          group.all_gather(mine, got[me].view(), bounds, stream).wait(stream);
        },
        terms.shuffle, {.spin_us = 0}, terms.per_node);
    for (const Buffer& b : got) ASSERT_EQ(b.bytes(), want.bytes());
  }
}

// Pieces are for ranks that pass them on.
TEST(Collectives, BroadcastIsCutOnlyWhereItIsPassedOn) {
  for (const int size : {2, 3}) {
    run_ranks(size, [size](Progress& progress) {
      HostStream stream;
      WireCounters counters;
      Communicator group(progress, all_ranks(size), 3, Site::kControl, &counters, {}, {.chunk_bytes = 1024});
      const int me = progress.transport().rank();
      std::vector<float> data(1000, static_cast<float>(me));
      group.broadcast(View(data.data(), DType::f32, {1000}), 1, stream).wait(stream);
      for (const float v : data) ASSERT_EQ(v, 1.0f);
      EXPECT_EQ(counters.messages, me != 1 ? 0 : size == 2 ? 1 : 2 * 4);  // four pieces to each of two
      EXPECT_EQ(counters.wire_bytes, me == 1 ? (size - 1) * 4000 : 0);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, Verbs, ::testing::Values(Algorithm::kDirect, Algorithm::kRing),
                         [](const auto& info) { return info.param == Algorithm::kRing ? "ring" : "direct"; });

TEST(Collectives, AllToAllBroadcastBarrier) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed + 300);
    const Terms terms = random_terms(random, Algorithm::kAuto);
    const auto n = static_cast<size_t>(terms.size);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " size " << terms.size);
    // length[i][j]: what rank i sends to rank j
    std::vector<std::vector<int64_t>> length(n, std::vector<int64_t>(n));
    for (auto& row : length)
      for (int64_t& l : row) l = random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % 3000);
    const int root = static_cast<int>(random() % n);
    const int64_t count = random_count(random, most_elements(terms));
    std::vector<int> entered(n, 0);
    std::atomic<int> arrived{0};
    std::atomic<bool> early{false}, wrong{false};
    run_ranks(
        terms.size,
        [&](Progress& progress) {
          HostStream stream;
          const auto me = static_cast<size_t>(progress.transport().rank());
          Communicator group(progress, all_ranks(terms.size), 3, Site::kControl, nullptr, {}, terms.tuning);
          std::vector<int64_t> out_bounds = {0}, in_bounds = {0};
          for (size_t r = 0; r < n; ++r) {
            out_bounds.push_back(out_bounds.back() + length[me][r]);
            in_bounds.push_back(in_bounds.back() + length[r][me]);
          }
          Buffer out(DType::i64, out_bounds.back()), in(DType::i64, in_bounds.back());
          for (size_t r = 0; r < n; ++r)
            for (int64_t i = out_bounds[r]; i < out_bounds[r + 1]; ++i)
              out.set(i, static_cast<double>((me * 10 + r) * 10000 + static_cast<size_t>(i - out_bounds[r])));
          Buffer shared(DType::f32, count);
          shared.fill(seed, static_cast<int>(me));
          Ticket first = group.all_to_all(out.view(), out_bounds, in.view(), in_bounds, stream);
          Ticket second = group.broadcast(shared.view(), root, stream);
          second.wait(stream);
          first.wait(stream);
          for (size_t r = 0; r < n; ++r)
            for (int64_t i = in_bounds[r]; i < in_bounds[r + 1]; ++i)
              if (in.get(i) != static_cast<double>((r * 10 + me) * 10000 + static_cast<size_t>(i - in_bounds[r])))
                wrong = true;
          Buffer want(DType::f32, count);
          want.fill(seed, root);
          if (want.bytes() != shared.bytes()) wrong = true;
          ++arrived;
          group.barrier().wait(stream);
          if (arrived != terms.size) early = true;
        },
        terms.shuffle, {.spin_us = 0}, terms.per_node);
    ASSERT_FALSE(wrong);
    ASSERT_FALSE(early);
  }
}

TEST(Collectives, NanSurvivesEveryKind) {
  for (const DType dtype : kReal) {
    for (const ReduceKind kind : {ReduceKind::kSum, ReduceKind::kMax}) {
      for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing}) {
        for (int holder = 0; holder < 3; ++holder) {
          std::vector<Buffer> data = contributions(dtype, 5000, 1, 3);
          data[static_cast<size_t>(holder)].set(4321, std::nan(""));
          run_ranks(3, [&](Progress& progress) {
            HostStream stream;
            Communicator group(progress, all_ranks(3), 1, Site::kControl, nullptr, {},
                               {.all_reduce = algorithm, .small_bytes = 0});
            group.all_reduce(data[static_cast<size_t>(progress.transport().rank())].view(), kind, stream).wait(stream);
          });
          for (const Buffer& b : data) {
            ASSERT_TRUE(std::isnan(b.get(4321)));
            ASSERT_FALSE(std::isnan(b.get(4320)));
          }
        }
      }
    }
  }
}

// All verbs at once, on a direct, a ring and a two-level group of the same ranks, waited for in an order of each rank's
// own; returns every rank's results. shuffle 0: nothing is delayed, and tickets are waited for as they were issued.
std::vector<char> all_verbs_at_once(int size, uint64_t shuffle, int per_node = 0) {
  const auto n = static_cast<size_t>(size);
  std::mt19937_64 shape(static_cast<uint64_t>(size));
  const std::vector<int64_t> bounds = ragged_bounds(shape, 901, size);  // some parts are empty
  std::vector<int> turned = all_ranks(size), nodes;
  std::reverse(turned.begin() + 1, turned.end());
  for (int r = 0; r < size; ++r) nodes.push_back(r / 2);
  std::vector<std::vector<char>> results(n);
  std::atomic<int> arrived{0};
  std::atomic<bool> early{false};
  run_ranks(
      size,
      [&](Progress& progress) {
        HostStream stream;
        const int rank = progress.transport().rank(), next = (rank + 1) % size, last = (rank + size - 1) % size;
        const auto me = static_cast<size_t>(rank);
        const auto tuned = [](Algorithm algorithm, int64_t chunk, int64_t small) {
          CommTuning tuning{.chunk_bytes = chunk, .small_bytes = small};
          tuning.all_reduce = tuning.reduce_scatter = tuning.all_gather = algorithm;
          return tuning;
        };
        Communicator direct(progress, all_ranks(size), 1, Site::kDpGradient, nullptr, {},
                            tuned(Algorithm::kDirect, 512, 1000));
        Communicator ring(progress, turned, 2, Site::kControl, nullptr, {}, tuned(Algorithm::kRing, 256, 0));
        Communicator levels(progress, all_ranks(size), 3, Site::kZeroParameter, nullptr, nodes,
                            tuned(Algorithm::kTwoLevel, 256, 0));
        std::deque<Buffer> kept, wholes;  // references stay good as they grow
        const auto filled = [&](DType dtype, int64_t count) -> Buffer& {
          kept.emplace_back(dtype, count).fill(kept.size(), rank);
          return kept.back();
        };
        std::vector<Ticket> tickets;
        for (Communicator* group : {&direct, &ring, &levels}) {
          const auto place = static_cast<size_t>(group->rank());
          const int64_t first = bounds[place], length = bounds[place + 1] - first;
          tickets.push_back(group->all_reduce(filled(DType::f32, 701).view(), ReduceKind::kSum, stream));
          tickets.push_back(group->all_reduce(filled(DType::f16, 77).view(), ReduceKind::kMax, stream));
          Buffer& sum = filled(DType::f32, length);
          // What a reduce-scatter leaves elsewhere in `whole` is nobody's business: it lies outside of `kept`.
          Buffer& whole = wholes.emplace_back(DType::bf16, 901);
          whole.fill(99, rank);
          tickets.push_back(group->reduce_scatter(whole.view(), bounds, sum.view(), true, stream));
          Buffer& gathered = filled(DType::u16, 901);
          tickets.push_back(
              group->all_gather(gathered.view().element_range(first, length), gathered.view(), bounds, stream));
          tickets.push_back(group->broadcast(filled(DType::f64, 333).view(), size - 1, stream));
          std::vector<int64_t> out_bounds = {0}, in_bounds = {0};  // rank i sends 10 i + j elements to rank j
          for (int r = 0; r < size; ++r) {
            out_bounds.push_back(out_bounds.back() + 10 * group->rank() + r);
            in_bounds.push_back(in_bounds.back() + 10 * r + group->rank());
          }
          Buffer& out = filled(DType::i64, out_bounds.back());
          Buffer& in = filled(DType::i64, in_bounds.back());
          tickets.push_back(group->all_to_all(out.view(), out_bounds, in.view(), in_bounds, stream));
        }
        tickets.push_back(direct.send(filled(DType::f32, 400).view(), next, stream));
        tickets.push_back(direct.receive(filled(DType::f32, 400).view(), last, stream));
        std::vector<size_t> order(tickets.size());
        std::iota(order.begin(), order.end(), size_t{0});
        if (shuffle != 0) std::shuffle(order.begin(), order.end(), std::mt19937_64(shuffle * 16 + me));
        for (const size_t at : order) tickets[at].wait(stream);
        ++arrived;
        ring.barrier().wait(stream);
        if (arrived != size) early = true;
        for (const Buffer& b : kept) results[me].insert(results[me].end(), b.bytes().begin(), b.bytes().end());
      },
      shuffle, {.spin_us = 0}, per_node);
  EXPECT_FALSE(early) << "a rank left the barrier before another had come";
  std::vector<char> all;
  for (const std::vector<char>& mine : results) all.insert(all.end(), mine.begin(), mine.end());
  return all;
}

// 200 orders of completion, one result.
TEST(Collectives, TimingNeverChangesTheBits) {
  std::map<int, std::vector<char>> expected;
  for (int size = 2; size <= 5; ++size) expected[size] = all_verbs_at_once(size, 0);
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const int size = 2 + static_cast<int>(seed % 4);
    ASSERT_EQ(all_verbs_at_once(size, seed), expected[size]) << "seed " << seed << " size " << size;
  }
  for (int round = 0; round < 80; ++round) {
    const int size = 2 + round % 4, per_node = 2 + round / 4 % 4;
    const uint64_t seed = round < 40 ? 0 : static_cast<uint64_t>(round);  // shuffled: between nodes
    ASSERT_EQ(all_verbs_at_once(size, seed, per_node), expected[size]) << "size " << size << ", nodes of " << per_node;
  }
}

// Small reductions on every group size: few messages, and the bits of one pass over the ranks in order.
TEST(SmallReductions, AreTreesWithTheBitsOfRankOrder) {
  for (int n = 2; n <= 64; ++n) {
    const int64_t count = 6;
    const auto bound = 2 * static_cast<int64_t>(std::bit_width(static_cast<unsigned>(n - 1)));
    std::vector<std::vector<double>> all;
    for (int r = 0; r < n; ++r) {
      // Signed zeros, and NaNs that can be told apart.
      const double zero = r % 3 == 0 ? 0.0 : -0.0;
      const double nan = std::bit_cast<double>(0x7ff8000000000000u + static_cast<uint64_t>(r) + 1);
      all.push_back({zero, r % 5 == 2 ? nan : r, 1.0 / (r + 1), std::ldexp(1.0, r % 40), -zero, 1e16 * (r % 2) - r});
    }
    std::mutex mutex;
    run_ranks(n,
              [&](Progress& progress) {
                for (const ReduceKind kind : {ReduceKind::kSum, ReduceKind::kMax}) {
                  WireCounters counters;
                  Communicator group(progress, all_ranks(n), 9 + static_cast<int>(kind), Site::kControl, &counters);
                  HostStream stream;
                  std::vector<double> mine = all[static_cast<size_t>(group.rank())], expected(mine.size());
                  const View view(mine.data(), DType::f64, {count});
                  group.all_reduce(view, kind, stream).wait(stream);
                  std::vector<const void*> sources;
                  for (const std::vector<double>& of_rank : all) sources.push_back(of_rank.data());
                  combine_in_rank_order(kind, DType::f64, sources.data(), n, DType::f64, expected.data(), count, false);
                  std::lock_guard lock(mutex);
                  for (const size_t i : {size_t{2}, size_t{5}}) {  // their sums depend on the order
                    double in_order = all[0][i];
                    for (int r = 1; r < n; ++r) in_order += all[static_cast<size_t>(r)][i];
                    if (kind == ReduceKind::kSum) {
                      EXPECT_EQ(expected[i], in_order) << n << " ranks, element " << i;
                    }
                  }
                  EXPECT_EQ(std::memcmp(mine.data(), expected.data(), sizeof(double) * mine.size()), 0)
                      << n << " ranks, kind " << static_cast<int>(kind);
                  EXPECT_LE(counters.messages, bound) << n << " ranks, kind " << static_cast<int>(kind);
                  EXPECT_EQ(counters.wire_bytes, all_reduce_bytes({}, {}, n, group.rank(), count, DType::f64, kind));
                }
              },
              static_cast<uint64_t>(n), {.thread = false, .spin_us = 0});
  }
}

}  // namespace
}  // namespace thinwire::collectives_test
