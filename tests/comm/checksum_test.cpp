// Checksums of messages: what they cost and change, and that no bit turns over unseen, whatever carries it.
#include <chrono>
#include <map>
#include <mutex>
#include <random>

#include "compression/codec_table.h"
#include "engine/base/core/error.h"
#include "parallel/collective/coded.h"
#include "parallel/collective/tuning.h"
#include "parallel/collective/two_level.h"
#include "tests/comm/between.h"
#include "tests/comm/coded_codecs.h"

namespace thinwire::checksum_test {
namespace {

// Two lengths of messages in one run: pieces that are copied with their checksum, and such that it follows.
constexpr int64_t kLong = 24 << 10, kShort = 8 << 10;
static_assert(kShort < static_cast<int64_t>(kCheckedCopy) && kLong > static_cast<int64_t>(kCheckedCopy));

// Counts what leaves, and turns over one bit of one message: number `at` (-1: none).
class Wire final : public Between {
 public:
  Wire(Transport& inner, int at, uint64_t bit) : Between(inner), at_(at), bit_(bit) {}
  bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    if (bytes == 0) return Between::post_send(data, bytes, peer, tag, token);
    ++messages;
    ++to[peer];
    if (messages - 1 != at_) return Between::post_send(data, bytes, peer, tag, token);
    const char* from = static_cast<const char*>(data);
    damaged_.assign(from, from + bytes);
    damaged_[bit_ / 8 % bytes] ^= static_cast<char>(1 << bit_ % 8);
    return Between::post_send(damaged_.data(), bytes, peer, tag, token);
  }
  int messages = 0;
  std::map<int, int> to;  // messages by peer

 private:
  int at_;
  uint64_t bit_;
  std::vector<char> damaged_;
};

using Verb = std::function<Task(CodedRank&, Buffer& whole, Buffer& part)>;
struct Case {
  std::string name;
  int nodes, local;
  int64_t count;
  Verb verb;
  bool moves = false;  // no sum: every bit of its messages shows in a result
  Algorithm way = Algorithm::kDirect;
  int n() const { return nodes * local; }
  friend void PrintTo(const Case& c, std::ostream* to) { *to << c.name; }
};

std::vector<int64_t> cuts(const CodedRank& rank, int64_t count) {
  const int n = const_cast<CodedRank&>(rank).group.size();
  std::vector<int64_t> bounds;
  for (int r = 0; r <= n; ++r) bounds.push_back(r == n ? count : count * r / n / 32 * 32);
  return bounds;
}

std::vector<Case> cases() {
  static const auto blocks = coder_of(std::make_shared<Block8>());
  static const auto framed = coder_of(std::make_shared<NonZeros>(8));
  static const std::shared_ptr<const RoundCodec> sketch = make_codec(codec_spec("sketch")).rounds;
  constexpr int64_t kCount = 20000, kSmall = 500;
  const auto bounds_of = [](CodedRank& r, Buffer& whole) { return bounds_in(r.group, cuts(r, whole.count())); };
  const auto all_reduce = [](ReduceKind kind) {
    return [kind](CodedRank& r, Buffer& whole, Buffer&) { return r.group.all_reduce_task(whole.view(), kind); };
  };
  const auto scatter = [=](CodedRank& r, Buffer& whole, Buffer& part) {
    return r.group.reduce_scatter_task(whole.view(), cuts(r, whole.count()), part.view(), false);
  };
  const auto gather = [=](CodedRank& r, Buffer& whole, Buffer& part) {
    return r.group.all_gather_task(part.view(), whole.view(), cuts(r, whole.count()));
  };
  const auto message = [](CodedRank& r, Buffer& whole, Buffer&) {
    return r.me() == 0   ? coded_send(r.group.lane_to(1), plain_call(), whole.view(), 1)
           : r.me() == 1 ? coded_receive(r.group.lane_from(0), plain_call(), whole.view(), 0)
                         : nothing(r.group.lane());
  };
  return {
      {"small_sum_3", 1, 3, kSmall, all_reduce(ReduceKind::kSum)},
      {"small_sum_9", 3, 3, kSmall, all_reduce(ReduceKind::kSum)},
      {"small_max_9", 3, 3, kSmall, all_reduce(ReduceKind::kMax)},
      {"all_reduce", 2, 1, kCount, all_reduce(ReduceKind::kSum)},
      {"all_reduce_ring", 2, 2, kCount, all_reduce(ReduceKind::kSum), false, Algorithm::kRing},
      {"all_reduce_levels", 2, 2, kCount, all_reduce(ReduceKind::kSum), false, Algorithm::kTwoLevel},
      {"reduce_scatter", 3, 1, kCount, scatter},
      {"reduce_scatter_levels", 2, 2, kCount, scatter, false, Algorithm::kTwoLevel},
      {"all_gather", 2, 2, kCount, gather, true},
      {"all_gather_ring", 3, 1, kCount, gather, true, Algorithm::kRing},
      {"all_gather_levels", 2, 2, kCount, gather, true, Algorithm::kTwoLevel},
      {"all_to_all", 3, 1, kCount,
       [=](CodedRank& r, Buffer& whole, Buffer&) {
         static thread_local Buffer to(DType::f32, 0);
         to = whole;
         const std::vector<int64_t> same = {0, 4000, 8000, 12000};
         return r.group.all_to_all_task(whole.view().element_range(0, 12000), same, to.view().element_range(0, 12000),
                                        same);
       }},
      {"broadcast", 5, 1, kCount,
       [](CodedRank& r, Buffer& whole, Buffer&) { return r.group.broadcast_task(whole.view(), 2); }, true},
      {"message", 2, 1, kCount, message, true},
      {"small_message", 2, 1, kSmall, message, true},
      {"coded_reduce_scatter", 3, 1, kCount,
       [=](CodedRank& r, Buffer& whole, Buffer& part) {
         return coded_reduce_scatter(r.group.lane(), r.call(blocks.get()), whole.view(), bounds_of(r, whole),
                                     part.view(), false);
       }},
      {"coded_all_reduce", 2, 1, kCount,
       [=](CodedRank& r, Buffer& whole, Buffer&) {
         return coded_all_reduce(r.group.lane(), r.call(blocks.get()), r.call(nullptr), whole.view());
       }},
      {"framed_all_reduce", 2, 1, kCount,
       [=](CodedRank& r, Buffer& whole, Buffer&) {
         return coded_all_reduce(r.group.lane(), r.call(framed.get()), r.call(framed.get()), whole.view());
       }},
      {"coded_ring_all_reduce", 3, 1, kCount,
       [=](CodedRank& r, Buffer& whole, Buffer&) {
         return coded_all_reduce(r.group.lane(), r.call(blocks.get()), r.call(blocks.get()), whole.view(),
                                 Algorithm::kRing);
       }},
      {"coded_two_level_all_gather", 2, 2, kCount,
       [=](CodedRank& r, Buffer& whole, Buffer& part) {
         return coded_all_gather(r.group.lane(), r.call(blocks.get()), part.view(), whole.view(), bounds_of(r, whole),
                                 Algorithm::kTwoLevel);
       }},
      {"framed_message", 2, 1, kCount,
       [=](CodedRank& r, Buffer& whole, Buffer&) {
         return r.me() == 0 ? coded_send(r.group.lane_to(1), r.call(framed.get()), whole.view(), 1)
                            : coded_receive(r.group.lane_from(0), r.call(framed.get()), whole.view(), 0);
       }},
      {"rounds_all_reduce", 3, 1, kCount,
       [=](CodedRank& r, Buffer& whole, Buffer&) {
         static thread_local std::unique_ptr<CompressionState> state;
         state = sketch->make_state(whole.count(), {});
         RoundCall call;
         call.codec = sketch.get();
         call.state = state.get();
         call.stats = &r.stats;
         call.counters = &r.counters;
         call.site = Site::kDpGradient;
         return rounds_all_reduce(r.group.lane(), call, whole.view());
       }},
  };
}

struct Outcome {
  std::vector<std::vector<char>> results;
  std::vector<WireCounters> counters;
  std::vector<int> messages;  // that had bytes
  std::vector<std::map<int, int>> by_peer;
  std::map<int, std::string> told;  // by rank that was told of a damaged message
};

CommTuning tuning_of(const Case& c, Checksums checksums) {
  CommTuning tuning = small_chunks(kLong, c.way);
  tuning.small_bytes = kShort;
  tuning.checksums = checksums;
  return tuning;
}

// Every block is back in the pool. A send that its peer took while it was given up holds its block until it is polled.
bool all_back(Progress& progress, int64_t before) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (progress.pool().blocks_out() != before && std::chrono::steady_clock::now() < limit) progress.poll();
  return progress.pool().blocks_out() == before;
}

// Message number `at` of rank `flipper` is damaged.
Outcome run_case(const Case& c, Checksums checksums, int flipper = -1, int at = -1, uint64_t bit = 0) {
  Outcome o;
  const auto n = static_cast<size_t>(c.n());
  o.results.resize(n), o.counters.resize(n), o.messages.resize(n), o.by_peer.resize(n);
  std::mutex mutex;
  const auto body = [&](Transport& transport) {
    const auto me = static_cast<size_t>(transport.rank());
    Wire wire(transport, transport.rank() == flipper ? at : -1, bit);
    Progress progress(wire, {.spin_us = 0});
    CodedRank rank(progress, c.n(), tuning_of(c, checksums), node_list(c.nodes, c.local));
    const std::vector<int64_t> bounds = cuts(rank, c.count);
    Buffer whole(DType::f32, c.count), part(DType::f32, bounds[me + 1] - bounds[me]);
    whole.fill(1, rank.me()), part.fill(2, rank.me());
    for (int64_t i = 0; i < c.count; ++i)
      if (c.name == "rounds_all_reduce" && i % 50 != 0) whole.set(i, 0.0);
    const int64_t before = rank.group.pool().blocks_out();
    try {
      rank.run(c.verb(rank, whole, part));
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      const std::string text = error.what();
      if (text.find("damaged on") == std::string::npos || text.find(" left: ") != std::string::npos)
        throw;  // somebody else was told
      EXPECT_EQ(error.code(), ExitCode::kHungPeer);
      o.told[rank.me()] = text;
      EXPECT_TRUE(all_back(progress, before)) << "something is left open";
      throw;
    }
    const std::lock_guard lock(mutex);
    o.results[me] = whole.bytes();
    o.results[me].insert(o.results[me].end(), part.bytes().begin(), part.bytes().end());
    o.counters[me] = rank.counters;
    o.messages[me] = wire.messages;
    o.by_peer[me] = wire.to;
  };
  try {
    run_local_ranks(c.n(), body);
  } catch (const Error& error) {
    if (o.told.empty() && checksums != Checksums::kNone) throw;
  }
  return o;
}

class EveryVerb : public ::testing::TestWithParam<Case> {};

// Results and logical bytes stay as they are; every message that is checked is four bytes longer, and no other.
TEST_P(EveryVerb, ChangesNothingButFourBytesPerMessage) {
  const Case& c = GetParam();
  const Outcome plain = run_case(c, Checksums::kNone);
  const std::vector<int> nodes = node_list(c.nodes, c.local);
  for (const Checksums checksums : {Checksums::kBetweenNodes, Checksums::kAll}) {
    const Outcome checked = run_case(c, checksums);
    EXPECT_EQ(checked.results, plain.results);
    EXPECT_TRUE(checked.told.empty());
    for (size_t r = 0; r < plain.counters.size(); ++r) {
      int64_t messages = 0;
      for (const auto& [peer, count] : plain.by_peer[r])
        if (checksums == Checksums::kAll || nodes[static_cast<size_t>(peer)] != nodes[r]) messages += count;
      EXPECT_EQ(checked.counters[r].wire_bytes, plain.counters[r].wire_bytes + 4 * messages) << "rank " << r;
      EXPECT_EQ(checked.counters[r].logical_bytes, plain.counters[r].logical_bytes) << "rank " << r;
    }
  }
}

// A bit of any message of any rank.
TEST_P(EveryVerb, NoBitTurnsOverUnseen) {
  const Case& c = GetParam();
  const Outcome whole = run_case(c, Checksums::kAll), plain = run_case(c, Checksums::kNone);
  std::mt19937_64 random(c.name.size() * 1009 + static_cast<uint64_t>(c.n()));
  for (int trial = 0; trial < 12; ++trial) {
    int flipper = static_cast<int>(random() % static_cast<uint64_t>(c.n()));
    while (whole.messages[static_cast<size_t>(flipper)] == 0) flipper = (flipper + 1) % c.n();
    const int at = static_cast<int>(random() % static_cast<uint64_t>(whole.messages[static_cast<size_t>(flipper)]));
    const uint64_t bit = random() % (1 << 20);
    SCOPED_TRACE(::testing::Message() << "message " << at << " of rank " << flipper << ", bit " << bit);
    const Outcome damaged = run_case(c, Checksums::kAll, flipper, at, bit);
    ASSERT_FALSE(damaged.told.empty());
    for (const auto& [rank, text] : damaged.told) {
      EXPECT_NE(rank, flipper) << "its sender had it as it was";
      EXPECT_NE(text.find("rank " + std::to_string(flipper) + " sent"), std::string::npos) << text;
      EXPECT_NE(text.find("site dp.gradient"), std::string::npos) << text;
    }
    if (!c.moves) continue;
    // The same without: nobody is told, and the damage is in a result.
    const int of = plain.messages[static_cast<size_t>(flipper)];
    const Outcome silent = run_case(c, Checksums::kNone, flipper, at % of, bit);
    EXPECT_TRUE(silent.told.empty());
    EXPECT_NE(silent.results, plain.results);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryVerb, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace thinwire::checksum_test
