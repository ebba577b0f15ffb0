// Coded collectives, direct: against the plain ones, against a loop in double, and their bytes against the formulas.
#include "parallel/collective/coded.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "parallel/collective/collectives.h"
#include "parallel/collective/pieces.h"
#include "parallel/collective/rehearsal.h"
#include "tests/comm/allocation_count.h"
#include "tests/comm/coded_bytes.h"
#include "tests/comm/coded_codecs.h"
#include "tests/support/worst.h"

namespace thinwire::coded_test {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
constexpr int kSizes[] = {1, 2, 3, 4, 8};

// What Block8 makes of elements [first, last): blocks start at `first`.
std::vector<float> through_block8(const Buffer& b, int64_t first, int64_t last) {
  std::vector<float> x;
  for (int64_t i = first; i < last; ++i) x.push_back(static_cast<float>(b.get(i)));
  for (size_t at = 0; at < x.size(); at += Block8::kBlock) {
    const auto n = std::min<size_t>(Block8::kBlock, x.size() - at);
    const float step = Block8::step_of(x.data() + at, static_cast<int64_t>(n));
    for (size_t i = at; i < at + n; ++i) x[i] = Block8::decoded(x[i], step);
  }
  return x;
}

// The sum that the owner of a slice must get, and the sum of magnitudes that bounds its rounding.
struct Want {
  std::vector<double> sum, magnitude;
};
Want scatter_oracle(const std::vector<Buffer>& all, int owner, int64_t first, int64_t last) {
  Want want{std::vector<double>(static_cast<size_t>(last - first)),
            std::vector<double>(static_cast<size_t>(last - first))};
  for (size_t r = 0; r < all.size(); ++r) {
    const std::vector<float> decoded = through_block8(all[r], first, last);
    for (size_t i = 0; i < decoded.size(); ++i) {
      const double v = static_cast<int>(r) == owner ? all[r].get(first + static_cast<int64_t>(i)) : decoded[i];
      want.sum[i] += v;
      want.magnitude[i] += std::abs(v);
    }
  }
  return want;
}

int64_t pick_count(std::mt19937_64& random) {
  constexpr int64_t kAwkward[] = {0, 1, 31, 32, 33, 63, 65, 97, 1009, 4096, 4097};
  return random() % 2 == 0 ? kAwkward[random() % 11] : random_count(random, 30000);
}

// --- law 3 ------------------------------------------------------------------------------------------------------

TEST(CodedCollectives, IdentityIsThePlainCollectiveBitForBit) {
  const auto identity = coder_of(make_codec({}).codec);
  const auto framed = coder_of(std::make_shared<NonZeros>(8));
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    const int n = kSizes[seed % 5];
    const DType dtype = kTypes[random() % 3];
    const int64_t count = pick_count(random);
    const std::vector<int64_t> bounds = aligned_bounds(random, count, n, 8);
    const bool wide = random() % 2 == 0, accumulate = random() % 2 == 0;
    const CommTuning tuning = small_chunks(256 << (random() % 8));
    const Coder* coder = random() % 4 == 0 ? nullptr : (random() % 2 == 0 ? framed.get() : identity.get());
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " ranks " << n << " count " << count << " "
                                      << name_of(dtype) << " " << (coder ? coder->name() : "nothing"));
    std::mutex mutex;
    run_ranks(
        n,
        [&](Progress& progress) {
          CodedRank rank(progress, n, tuning);
          const auto me = static_cast<size_t>(rank.me());
          const int64_t first = bounds[me], mine = bounds[me + 1] - first;
          Buffer whole(dtype, count), plain_whole(dtype, count);
          Buffer out(wide ? DType::f32 : dtype, mine), plain_out(wide ? DType::f32 : dtype, mine);
          whole.fill(seed, rank.me()), plain_whole.fill(seed, rank.me());
          out.fill(seed + 9, rank.me()), plain_out.fill(seed + 9, rank.me());
          rank.run(coded_reduce_scatter(rank.group.lane(), rank.call(coder), whole.view(),
                                        bounds_in(rank.group, bounds), out.view(), accumulate));
          rank.group.reduce_scatter(plain_whole.view(), bounds, plain_out.view(), accumulate, rank.stream)
              .wait(rank.stream);
          const bool scattered = out.bytes() == plain_out.bytes(), kept = whole.bytes() == plain_whole.bytes();

          Buffer data(dtype, count), plain_data(dtype, count);
          data.fill(seed + 1, rank.me()), plain_data.fill(seed + 1, rank.me());
          rank.run(coded_all_reduce(rank.group.lane(), rank.call(coder), rank.call(coder), data.view()));
          rank.group.all_reduce(plain_data.view(), ReduceKind::kSum, rank.stream).wait(rank.stream);
          const bool reduced = data.bytes() == plain_data.bytes();

          Buffer gathered(dtype, count), part(dtype, mine);
          part.fill(seed + 2, rank.me());
          rank.run(coded_all_gather(rank.group.lane(), rank.call(coder), part.view(), gathered.view(),
                                    bounds_in(rank.group, bounds)));
          Buffer plain_gathered(dtype, count);
          rank.group.all_gather(part.view(), plain_gathered.view(), bounds, rank.stream).wait(rank.stream);
          const std::lock_guard lock(mutex);
          EXPECT_TRUE(scattered) << "reduce-scatter";
          EXPECT_TRUE(kept) << "the contributions were changed";
          EXPECT_TRUE(reduced) << "all-reduce";
          EXPECT_TRUE(gathered.bytes() == plain_gathered.bytes()) << "all-gather";
        },
        seed % 2 == 0 ? 0 : seed);
    if (HasFailure()) return;
  }
}

// --- sums -------------------------------------------------------------------------------------------------------

TEST(CodedCollectives, ReduceScatterOfRaggedSlices) {
  const auto coder = coder_of(std::make_shared<Block8>());
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed + 1000);
    const int n = kSizes[seed % 5];
    const DType dtype = kTypes[random() % 3];
    const int64_t count = pick_count(random);
    const std::vector<int64_t> bounds = ragged_bounds(random, count, n);
    const bool in_place = random() % 3 == 0, accumulate = !in_place && random() % 2 == 0;
    const DType out_type = in_place || random() % 2 == 0 ? dtype : DType::f32;
    const CommTuning tuning = small_chunks(256 << (random() % 8));
    const std::vector<Buffer> all = contributions(dtype, count, seed, n);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " ranks " << n << " count " << count << " "
                                      << name_of(dtype) << " into " << name_of(out_type) << " in place " << in_place);
    std::mutex mutex;
    run_ranks(
        n,
        [&](Progress& progress) {
          CodedRank rank(progress, n, tuning);
          const auto me = static_cast<size_t>(rank.me());
          const int64_t first = bounds[me], last = bounds[me + 1];
          Buffer whole(dtype, count), elsewhere(out_type, last - first), before(out_type, last - first);
          whole.fill(seed, rank.me()), elsewhere.fill(seed + 9, rank.me()), before.fill(seed + 9, rank.me());
          const View own = whole.view().element_range(first, last - first);
          rank.run(coded_reduce_scatter(rank.group.lane(), rank.call(coder.get()), whole.view(),
                                        bounds_in(rank.group, bounds), in_place ? own : elsewhere.view(), accumulate));
          const Want want = scatter_oracle(all, rank.me(), first, last);
          const std::lock_guard lock(mutex);
          EXPECT_EQ(rank.counters.wire_bytes, coded_reduce_scatter_bytes(*coder, tuning, rank.me(), bounds, dtype));
          EXPECT_EQ(rank.counters.logical_bytes, (count - (last - first)) * static_cast<int64_t>(size_of(dtype)));
          for (int64_t i = 0; i < last - first; ++i) {
            const auto k = static_cast<size_t>(i);
            const double start = accumulate ? before.get(i) : 0.0;
            const double got = in_place ? whole.get(first + i) : elsewhere.get(i);
            ASSERT_LE(std::abs(got - start - want.sum[k]),
                      sum_tolerance(out_type, n + 1, want.magnitude[k] + std::abs(start), 1))
                << i;
          }
        },
        seed % 2 == 0 ? 0 : seed);
    if (HasFailure()) return;
  }
}

// Law 4, and the sums are those of the scatter, coded once more.
TEST(CodedCollectives, AllReduceLeavesTheSameBitsEverywhere) {
  const auto coder = coder_of(std::make_shared<Block8>()),
             turned = coder_of(std::make_shared<Block8>(), ResidualKind::kNone, true);
  const auto framed = coder_of(std::make_shared<NonZeros>(8));
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed + 2000);
    const int n = kSizes[seed % 5];
    const DType dtype = kTypes[random() % 3];
    const int64_t count = pick_count(random);
    const CommTuning tuning = small_chunks(256 << (random() % 8));
    const Coder* pairs[][2] = {{coder.get(), coder.get()},  {coder.get(), nullptr},      {nullptr, coder.get()},
                               {framed.get(), coder.get()}, {coder.get(), framed.get()}, {turned.get(), turned.get()}};
    const auto& pair = pairs[random() % 6];
    const std::vector<Buffer> all = contributions(dtype, count, seed, n);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " ranks " << n << " count " << count << " "
                                      << name_of(dtype));
    std::vector<Buffer> results = all;
    std::mutex mutex;
    run_ranks(
        n,
        [&](Progress& progress) {
          CodedRank rank(progress, n, tuning);
          Buffer& data = results[static_cast<size_t>(rank.me())];
          rank.run(coded_all_reduce(rank.group.lane(), rank.call(pair[0]), rank.call(pair[1]), data.view()));
          const std::lock_guard lock(mutex);
          if (pair[0] == nullptr) return;
          const int64_t bytes = coded_all_reduce_bytes(*pair[0], pair[1], tuning, n, rank.me(), count, dtype);
          if (pair[0] == framed.get() || pair[1] == framed.get()) {
            EXPECT_LE(rank.counters.wire_bytes, bytes);
          } else {
            EXPECT_EQ(rank.counters.wire_bytes, bytes);
          }
        },
        seed % 2 == 0 ? 0 : seed);
    for (const Buffer& r : results) ASSERT_EQ(r.bytes(), results[0].bytes()) << "replicas differ";
    // Each compression is off by at most half a step: 1/254 of the largest of its block; a Hadamard block of 32
    // elements below one has none above sqrt(32), and its inverse adds up 32 errors over sqrt(32).
    const double step = pair[0] == turned.get() ? 32.0 / 254.0 : 1.0 / 254.0;
    for (int64_t i = 0; i < count; ++i) {
      double sum = 0.0;
      for (const Buffer& b : all) sum += b.get(i);
      const double slack = sum_tolerance(dtype, n + 2, n + 1.0, 2);
      ASSERT_LE(std::abs(results[0].get(i) - sum), n == 1 ? 0.0 : 1.02 * step * (n + n + 1) + slack) << i;
    }
  }
}

TEST(CodedCollectives, TwoHundredOrdersGiveTheSameBits) {
  const auto coder = coder_of(std::make_shared<Block8>(), ResidualKind::kErrorFeedback);
  const auto framed = coder_of(std::make_shared<NonZeros>(0));
  const int n = 4;
  const int64_t count = 5003;
  const CommTuning tuning = small_chunks(1024);
  std::vector<char> want;
  for (uint64_t order = 0; order <= 200; ++order) {
    std::vector<std::vector<char>> got(n);
    run_ranks(
        n,
        [&](Progress& progress) {
          CodedRank rank(progress, n, tuning);
          const auto state = coder->make_state(count, {}), second = coder->make_state(count, {});
          Buffer data(DType::f32, count);
          for (int step = 0; step < 2; ++step) {
            data.fill(7 + static_cast<uint64_t>(step), rank.me());
            rank.run(coded_all_reduce(rank.group.lane(), rank.call(coder.get(), state.get(), step),
                                      rank.call(coder.get(), second.get(), step), data.view()));
            state->commit(), second->commit();
          }
          rank.run(coded_all_reduce(rank.group.lane(), rank.call(framed.get()), rank.call(framed.get()), data.view()));
          got[static_cast<size_t>(rank.me())] = data.bytes();
        },
        order);
    if (order == 0) want = got[0];
    for (const auto& g : got) ASSERT_EQ(g, want) << "order " << order;
  }
}

// --- gathers, messages ------------------------------------------------------------------------------------------

TEST(CodedCollectives, AllGatherGivesTheOwnerWhatHeSent) {
  const auto coder = coder_of(std::make_shared<Block8>());
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed + 3000);
    const int n = kSizes[1 + seed % 4];
    const DType dtype = kTypes[random() % 3], from = random() % 2 == 0 ? dtype : DType::f32;
    const int64_t count = pick_count(random);
    const std::vector<int64_t> bounds = ragged_bounds(random, count, n);
    const bool in_place = from == dtype && random() % 2 == 0;
    const CommTuning tuning = small_chunks(256 << (random() % 8));
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " ranks " << n << " count " << count);
    std::vector<Buffer> results;
    for (int r = 0; r < n; ++r) results.emplace_back(dtype, count);
    std::mutex mutex;
    run_ranks(n, [&](Progress& progress) {
      CodedRank rank(progress, n, tuning);
      const auto me = static_cast<size_t>(rank.me());
      Buffer part(from, bounds[me + 1] - bounds[me]);
      part.fill(seed, rank.me());
      const View own = results[me].view().element_range(bounds[me], bounds[me + 1] - bounds[me]);
      if (in_place && own.bytes() > 0) std::memcpy(own.data, part.view().data, own.bytes());
      rank.run(coded_all_gather(rank.group.lane(), rank.call(coder.get()), in_place ? own : part.view(),
                                results[me].view(), bounds_in(rank.group, bounds)));
      const std::lock_guard lock(mutex);
      EXPECT_EQ(rank.counters.wire_bytes, coded_all_gather_bytes(*coder, tuning, rank.me(), bounds, from));
    });
    for (const Buffer& r : results) ASSERT_EQ(r.bytes(), results[0].bytes()) << "replicas differ";
    for (int r = 0; r < n; ++r) {
      const auto k = static_cast<size_t>(r);
      Buffer part(from, bounds[k + 1] - bounds[k]);
      part.fill(seed, r);
      const std::vector<float> want = through_block8(part, 0, part.count());
      Buffer rounded(dtype, part.count());
      for (int64_t i = 0; i < part.count(); ++i) {
        rounded.set(i, want[static_cast<size_t>(i)]);
        ASSERT_EQ(results[0].get(bounds[k] + i), rounded.get(i));
      }
    }
  }
}

TEST(CodedCollectives, ValueDifferenceMovesAllReplicasTogether) {
  const auto coder = coder_of(std::make_shared<Block8>(), ResidualKind::kValueDifference);
  const int n = 3;
  const int64_t count = 3000;
  const std::vector<int64_t> bounds = {0, 1024, 1024, 3000};
  std::vector<Buffer> replicas;
  for (int r = 0; r < n; ++r) replicas.emplace_back(DType::f32, count).fill(5, 0);
  std::mutex mutex;
  run_ranks(n, [&](Progress& progress) {
    CodedRank rank(progress, n, small_chunks(1024));
    const auto me = static_cast<size_t>(rank.me());
    Buffer master(DType::f32, bounds[me + 1] - bounds[me]);
    master.fill(6, rank.me());
    double worst = 2.0;
    for (int step = 0; step < 3; ++step) {
      rank.run(coded_all_gather(rank.group.lane(), rank.call(coder.get(), nullptr, step), master.view(),
                                replicas[me].view(), bounds_in(rank.group, bounds)));
      // Each time what is left is at most 1/254 of what was left before, and a rounding error.
      double left = 0.0;
      for (int64_t i = 0; i < master.count(); ++i)
        left = test::worse(left, std::abs(master.get(i) - replicas[me].get(bounds[me] + i)));
      const std::lock_guard lock(mutex);
      EXPECT_LE(left, worst / 254.0 * 1.01 + 0x1p-23);
      worst = left;
    }
  });
  for (const Buffer& r : replicas) EXPECT_EQ(r.bytes(), replicas[0].bytes());
}

TEST(CodedCollectives, MessagesBetweenTwoAndFromAllToAll) {
  const auto lossy = coder_of(std::make_shared<Block8>()), framed = coder_of(std::make_shared<NonZeros>(8)),
             whole = coder_of(std::make_shared<NonZeros>(0));
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed + 4000);
    const int n = kSizes[1 + seed % 4];
    const int64_t count = pick_count(random);
    const CommTuning tuning = small_chunks(256 << (random() % 8));
    const Coder* coders[] = {lossy.get(), framed.get(), whole.get(), nullptr};
    const Coder* coder = coders[random() % 4];
    std::vector<std::vector<int64_t>> length(static_cast<size_t>(n), std::vector<int64_t>(static_cast<size_t>(n)));
    for (auto& row : length)
      for (int64_t& l : row) l = random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % 3000);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " ranks " << n << " count " << count);
    std::mutex mutex;
    run_ranks(
        n,
        [&](Progress& progress) {
          CodedRank rank(progress, n, tuning);
          const int me = rank.me(), next = (me + 1) % n, previous = (me + n - 1) % n;
          const auto expected = [&](const Buffer& b, int64_t first, int64_t last) {
            std::vector<float> v = through_block8(b, first, last);
            if (coder != lossy.get())
              for (int64_t i = first; i < last; ++i) v[static_cast<size_t>(i - first)] = static_cast<float>(b.get(i));
            return v;
          };
          // Two messages each way, so that their tags follow each other.
          Buffer out(DType::f32, count), in(DType::f32, count), sent(DType::f32, count);
          bool same = true;
          for (int message = 0; message < 2; ++message) {
            out.fill(seed + static_cast<uint64_t>(message), me);
            sent.fill(seed + static_cast<uint64_t>(message), previous);
            Ticket receive = rank.group.start(
                coded_receive(rank.group.lane_from(previous), rank.call(coder), in.view(), previous), "receive", 1);
            Ticket send =
                rank.group.start(coded_send(rank.group.lane_to(next), rank.call(coder), out.view(), next), "send", 1);
            send.wait(rank.stream);
            receive.wait(rank.stream);
            const std::vector<float> want = expected(sent, 0, count);
            for (int64_t i = 0; i < count; ++i) same = same && in.get(i) == want[static_cast<size_t>(i)];
          }
          if (coder != nullptr && !coder->traits().framed) {
            const std::lock_guard lock(mutex);
            EXPECT_EQ(rank.counters.wire_bytes, 2 * coded_message_bytes(*coder, tuning, count, DType::f32));
          }
          // All to all.
          std::vector<int64_t> from = {0}, to = {0};
          for (int r = 0; r < n; ++r) {
            from.push_back(from.back() + length[static_cast<size_t>(me)][static_cast<size_t>(r)]);
            to.push_back(to.back() + length[static_cast<size_t>(r)][static_cast<size_t>(me)]);
          }
          Buffer parts(DType::f32, from.back()), got(DType::f32, to.back());
          parts.fill(seed + 5, me);
          rank.run(coded_all_to_all(rank.group.lane(), rank.call(coder), parts.view(), bounds_in(rank.group, from),
                                    got.view(), bounds_in(rank.group, to)));
          for (int r = 0; r < n; ++r) {
            const auto k = static_cast<size_t>(r);
            int64_t total = 0, first = 0;
            for (int p = 0; p < n; ++p) total += length[k][static_cast<size_t>(p)];
            for (int p = 0; p < me; ++p) first += length[k][static_cast<size_t>(p)];
            Buffer theirs(DType::f32, total);
            theirs.fill(seed + 5, r);
            const int64_t size = length[k][static_cast<size_t>(me)];
            std::vector<float> want = expected(theirs, first, first + size);
            for (int64_t i = 0; i < size; ++i) {
              const double v = r == me ? theirs.get(first + i) : want[static_cast<size_t>(i)];
              same = same && got.get(to[k] + i) == v;
            }
          }
          const std::lock_guard lock(mutex);
          EXPECT_TRUE(same);
        },
        seed);
    if (HasFailure()) return;
  }
}

TEST(CodedCollectives, AllocateNothingInTheSteadyState) {
  const int n = 4;
  const int64_t count = 6000;
  std::vector<int64_t> counts;  // of rank 0
  counts.reserve(6);
  run_ranks(n, [&](Progress& progress) {
    CodedRank rank(progress, n, small_chunks(1024), node_list(2, 2));
    Buffer data(DType::f32, count), out(DType::f32, count / n);
    data.fill(1, rank.me());
    const std::vector<int64_t> bounds = {0, 1500, 3000, 4500, 6000};
    const CodedCall call = rank.call(nullptr);  // what coders allocate is theirs
    const auto round = [&] {
      rank.run(coded_all_reduce(rank.group.lane(), call, call, data.view()));
      rank.run(
          coded_reduce_scatter(rank.group.lane(), call, data.view(), bounds_in(rank.group, bounds), out.view(), true));
      rank.run(coded_all_gather(rank.group.lane(), call, out.view(), data.view(), bounds_in(rank.group, bounds)));
      rank.run(coded_all_reduce(rank.group.lane(), call, call, data.view(), Algorithm::kRing));
      rank.run(coded_all_reduce(rank.group.lane(), call, call, data.view(), Algorithm::kTwoLevel, call));
    };
    for (int i = 0; i < 50; ++i) round();
    for (int i = 0; i <= 100; ++i) {
      if (i % 20 == 0) {
        rank.group.barrier().wait(rank.stream);
        if (rank.me() == 0) counts.push_back(allocations_of_the_process());
        rank.group.barrier().wait(rank.stream);
      }
      round();
    }
  });
  // One: how many pieces meet in a mailbox depends on timing.
  EXPECT_LE(middle_growth(counts), 1) << "allocations in 100 operations of four ranks";
}

// The most that rehearsed verbs have of the pool, in blocks as it hands them out.
class ToldBlocks final : public RehearsalWatch {
 public:
  void block(int64_t bytes, int64_t written, bool taken) override {
    EXPECT_LE(written, bytes);
    if (taken) written_ += written;
    int64_t& held = held_[std::bit_ceil(static_cast<uint64_t>(bytes))];
    held += taken ? 1 : -1;
    int64_t& most = most_[std::bit_ceil(static_cast<uint64_t>(bytes))];
    most = std::max(most, held);
  }
  Ticket issued(const OperationNote&) override { return Ticket::finished(); }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& [bytes, most] : most_) sum += static_cast<int64_t>(bytes) * most;
    return sum;
  }
  int64_t written() const { return written_; }

 private:
  std::map<uint64_t, int64_t> held_, most_;
  int64_t written_ = 0;
};

TEST(CodedCollectives, TheRehearsalTellsWhatThePoolHolds) {
  const auto blocks = coder_of(std::make_shared<Block8>());
  const auto framed = coder_of(std::make_shared<NonZeros>(8));
  const int n = 4;
  const int64_t count = int64_t{1} << 20;
  using Verb = std::function<Task(const GroupLane&, CodedRank&, View)>;
  const std::vector<int64_t> bounds = {0, count / 4, count / 2, 3 * count / 4, count};
  const std::pair<const char*, Verb> verbs[] = {
      {"all-reduce",
       [&](const GroupLane& lane, CodedRank& rank, View data) {
         return coded_all_reduce(lane, rank.call(blocks.get()), rank.call(blocks.get()), data);
       }},
      {"framed all-reduce",
       [&](const GroupLane& lane, CodedRank& rank, View data) {
         return coded_all_reduce(lane, rank.call(framed.get()), rank.call(framed.get()), data);
       }},
      {"two-level all-reduce",
       [&](const GroupLane& lane, CodedRank& rank, View data) {
         const CodedCall call = rank.call(blocks.get());
         return coded_all_reduce(lane, call, call, data, Algorithm::kTwoLevel, call);
       }},
      {"ring all-reduce",
       [&](const GroupLane& lane, CodedRank& rank, View data) {
         return coded_all_reduce(lane, rank.call(blocks.get()), rank.call(blocks.get()), data, Algorithm::kRing);
       }},
      {"reduce-scatter of a piece a slice",
       [&](const GroupLane& lane, CodedRank& rank, View data) {
         const View small = data.element_range(0, 1 << 16);
         return coded_reduce_scatter(lane, rank.call(blocks.get()), small,
                                     part_bounds(lane.pool(), small.count(), lane.size()), small, false);
       }},
      {"reduce-scatter of what nobody codes, a piece a slice",
       [&](const GroupLane& lane, CodedRank& rank, View data) {
         const View small = data.element_range(0, 1 << 16);
         return coded_reduce_scatter(lane, rank.call(nullptr), small,
                                     part_bounds(lane.pool(), small.count(), lane.size()),
                                     small.element_range(rank.me() << 14, 1 << 14), false);
       }},
      {"two-level all-gather",
       [&](const GroupLane& lane, CodedRank& rank, View data) {
         return coded_all_gather(lane, rank.call(blocks.get()), slice_at(data, bounds, rank.me()), data,
                                 Bounds(lane.pool(), bounds), Algorithm::kTwoLevel);
       }},
      {"all-reduce of what nobody codes", [&](const GroupLane& lane, CodedRank& rank, View data) {
         return coded_all_reduce(lane, rank.call(nullptr), rank.call(nullptr), data);
       }}};
  for (const auto& [name, verb] : verbs) {
    std::atomic<int64_t> told{0}, before{0}, after{0};
    run_ranks(n, [&](Progress& progress) {
      CodedRank rank(progress, n, small_chunks(1 << 18), node_list(2, 2));
      Buffer data(DType::f32, count);
      data.fill(1, rank.me());
      ToldBlocks watch;
      watch_rehearsal(progress, &watch);
      static_cast<void>(rehearsed_bytes(
          rank.group.lane(), [&](const GroupLane& lane) { return verb(lane, rank, data.view()); }, true));
      watch_rehearsal(progress, nullptr);
      told += watch.bytes();
      rank.group.barrier().wait(rank.stream);
      if (rank.me() == 0) before = live_bytes_of_the_process();
      rank.group.barrier().wait(rank.stream);
      rank.run(verb(rank.group.lane(), rank, data.view()));
      rank.group.barrier().wait(rank.stream);
      if (rank.me() == 0) after = live_bytes_of_the_process();
      rank.group.barrier().wait(rank.stream);
    });
    // Frames, lists and mailboxes are small.
    EXPECT_GE(after - before, told - (n << 14)) << name;
    EXPECT_LE(after - before, told + told / 50 + (n << 16)) << name;
  }
}

// A window has room for pieces that a short slice does not have: nothing ever comes to lie there.
TEST(CodedCollectives, TheRehearsalTellsWhatOfItIsWritten) {
  const int64_t count = 1 << 14;
  run_ranks(2, [&](Progress& progress) {
    CodedRank rank(progress, 2, small_chunks(1 << 18));
    Buffer data(DType::f32, count);
    ToldBlocks watch;
    watch_rehearsal(progress, &watch);
    static_cast<void>(rehearsed_bytes(
        rank.group.lane(),
        [&](const GroupLane& lane) {
          return coded_all_reduce(lane, rank.call(nullptr), rank.call(nullptr), data.view());
        },
        true));
    watch_rehearsal(progress, nullptr);
    EXPECT_EQ(watch.written(), 4 * count / 2);  // the other rank's half of the elements, once
    EXPECT_GE(watch.bytes(), 2 * watch.written());
  });
}

}  // namespace
}  // namespace thinwire::coded_test
