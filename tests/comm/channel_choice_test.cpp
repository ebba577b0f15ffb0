// Which messages a channel codes, and what they cost: the thresholds of a rule at their edges, and what a rehearsal
// counts of every codec under every algorithm against the bytes that were sent.
#include <cmath>
#include <mutex>

#include "parallel/channel/channel.h"
#include "tests/comm/coded_codecs.h"
#include "tests/comm/real_codecs.h"

namespace thinwire::channel_choice_test {
namespace {

constexpr RuleAlgorithm kWays[] = {RuleAlgorithm::kDirect, RuleAlgorithm::kRing, RuleAlgorithm::kTwoLevel};
constexpr const char* kVerbs[] = {"all-reduce", "reduce-scatter", "all-gather", "send"};

// One rank's end of a channel under a rule, beside the same in a rehearsal, and a plain one.
struct ChoosingRank {
  ChoosingRank(Progress& progress, const std::vector<int>& on_nodes, std::shared_ptr<const SiteCompression> compression,
               const CommTuning& tuning = small_chunks(1024))
      : nodes(on_nodes),
        tuning_(tuning),
        channel(make_channel(progress, 5, compression)),
        rehearsed(make_channel(progress, 7, compression)),
        plain(progress, static_cast<int>(nodes.size()), 6, tuning_, nodes) {
    rehearsed.rehearse(&price);
  }
  Channel make_channel(Progress& progress, int number, std::shared_ptr<const SiteCompression> compression) {
    auto group = std::make_unique<Communicator>(progress, all_ranks(static_cast<int>(nodes.size())), number,
                                                Site::kDpGradient, &counters, nodes, tuning_);
    return Channel(std::move(group), {std::move(compression)}, &clock, &counters,
                   std::make_shared<ChannelStates>("dp.gradient/" + std::to_string(number)));
  }

  struct Plain {
    Plain(Progress& progress, int size, int number, const CommTuning& tuning, const std::vector<int>& nodes)
        : group(progress, all_ranks(size), number, Site::kControl, nullptr, nodes, tuning) {}
    Communicator group;
  };

  std::vector<int> nodes;
  CommTuning tuning_;
  SiteCounters counters;
  CompressionClock clock;
  SitePrice price;
  Channel channel, rehearsed;
  Plain plain;
  HostStream stream;
};

struct Result {
  bool coded = false;  // the channel's word
  SitePrice price;
  int64_t wire = 0;
  bool as_plain = false;  // all bits are those of the plain verb
};

// One message of `verb` by a channel, the same in a rehearsal, and by the plain communicator. key.slot and the next
// ones, one per rank, are its own.
Result send_one(ChoosingRank& rank, int verb, int64_t count, DType dtype, const MessageKey& key) {
  const int n = rank.channel.size(), me = rank.channel.rank();
  const auto k = static_cast<size_t>(me);
  std::vector<int64_t> bounds;
  // Like the trainer's shards at multiples of the codecs' blocks; real_codecs_test.cpp cuts anywhere.
  for (int r = 0; r <= n; ++r) bounds.push_back(r == n ? count : count * r / n / 256 * 256);
  const bool summed = verb < 2;
  Result result;
  result.coded = rank.channel.codes(key, count, dtype, summed);
  rank.counters = {};
  rank.price = {};
  Buffer a(dtype, count), b(dtype, count);
  a.fill(7, me), b.fill(7, me);
  switch (verb) {
    case 0:
      rank.rehearsed.all_reduce(a.view(), ReduceKind::kSum, rank.stream, key).wait(rank.stream);
      rank.channel.all_reduce(a.view(), ReduceKind::kSum, rank.stream, key).wait(rank.stream);
      rank.plain.group.all_reduce(b.view(), ReduceKind::kSum, rank.stream).wait(rank.stream);
      break;
    case 1: {
      Buffer x(dtype, bounds[k + 1] - bounds[k]), y = x;
      rank.rehearsed.reduce_scatter(a.view(), bounds, x.view(), false, rank.stream, key).wait(rank.stream);
      rank.channel.reduce_scatter(a.view(), bounds, x.view(), false, rank.stream, key).wait(rank.stream);
      rank.plain.group.reduce_scatter(b.view(), bounds, y.view(), false, rank.stream).wait(rank.stream);
      a = x, b = y;
      break;
    }
    case 2: {
      const View x = a.view().element_range(bounds[k], bounds[k + 1] - bounds[k]);
      rank.rehearsed.all_gather(x, a.view(), bounds, rank.stream, key).wait(rank.stream);
      const View y = b.view().element_range(bounds[k], bounds[k + 1] - bounds[k]);
      rank.channel.all_gather(x, a.view(), bounds, rank.stream, key).wait(rank.stream);
      rank.plain.group.all_gather(y, b.view(), bounds, rank.stream).wait(rank.stream);
      break;
    }
    default: {
      // To the right neighbour, from the left one; a message has the same slot at both ends, its sender's.
      const int next = (me + 1) % n, previous = (me + n - 1) % n;
      MessageKey mine = key, other = key;
      mine.slot += static_cast<uint32_t>(me);
      other.slot += static_cast<uint32_t>(previous);
      Buffer x(dtype, count), y(dtype, count);
      rank.rehearsed.receive(x.view(), previous, rank.stream, other).wait(rank.stream);
      rank.rehearsed.send(a.view(), next, rank.stream, mine).wait(rank.stream);
      Ticket in = rank.channel.receive(x.view(), previous, rank.stream, other);
      Ticket out = rank.channel.send(a.view(), next, rank.stream, mine);
      in.wait(rank.stream), out.wait(rank.stream);
      Ticket plain_in = rank.plain.group.receive(y.view(), previous, rank.stream);
      Ticket plain_out = rank.plain.group.send(b.view(), next, rank.stream);
      plain_in.wait(rank.stream), plain_out.wait(rank.stream);
      a = x, b = y;
    }
  }
  result.price = rank.price;
  result.wire = rank.counters.wire_bytes;
  result.as_plain = a.bytes() == b.bytes();
  return result;
}

SiteRule rule_of(RuleAlgorithm way, int64_t min_bytes, int64_t warmup = 0) {
  SiteRule rule;
  rule.codec = real_spec("block_int", [](CodecSpec& s) { s["bits"] = 4, s["block"] = 32; });
  rule.min_bytes = min_bytes;
  rule.warmup_steps = warmup;
  rule.algorithm = way;
  return rule;
}

// Below min_bytes a message is the plain one, bit for bit and byte for byte; from min_bytes on it is coded. It is the
// whole message that counts, not a slice of it, in the type that it has; every rank and both ends of a message agree.
TEST(ChannelChoice, MinBytesAtItsEdge) {
  constexpr int64_t kMinBytes = 6000;
  const int n = 4;
  for (const RuleAlgorithm way : kWays) {
    const auto compression = make_site_compression(Site::kDpGradient, rule_of(way, kMinBytes));
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const int64_t edge = kMinBytes / static_cast<int64_t>(size_of(dtype));
      std::mutex mutex;
      run_ranks(n, [&](Progress& progress) {
        ChoosingRank rank(progress, node_list(2, 2), compression);
        uint32_t slot = 0;
        for (int verb = 0; verb < 4; ++verb) {
          for (const int64_t count : {int64_t{0}, int64_t{1}, edge - 1, edge, edge + 1, 4 * edge}) {
            const Result r = send_one(rank, verb, count, dtype, {.slot = slot});
            slot += 4;
            const std::lock_guard lock(mutex);
            SCOPED_TRACE(::testing::Message()
                         << kVerbs[verb] << " way " << static_cast<int>(way) << " " << name_of(dtype) << " count "
                         << count << " rank " << rank.channel.rank());
            EXPECT_EQ(r.coded, count >= edge);
            EXPECT_EQ(is_coded(*compression, 0, {}, count, dtype, verb < 2), count >= edge);
            EXPECT_TRUE(r.price.exact);
            EXPECT_EQ(r.wire, r.price.bytes);
            if (count >= edge) {
              // A reduce-scatter's own part, and a gather's, may be the largest of all: less travels in any case.
              EXPECT_LT(r.wire, r.price.plain_bytes);
              EXPECT_FALSE(r.as_plain) << "four bits lost nothing";
            } else {
              EXPECT_EQ(r.wire, r.price.plain_bytes);
              EXPECT_TRUE(r.as_plain);
            }
          }
        }
      });
      if (HasFailure()) return;
    }
  }
}

// What else decides: the plan's word about the message, the warm-up of the rule, a site that is switched off, and
// whether there is anything to gain.
TEST(ChannelChoice, FollowsPlanClockAndGain) {
  const auto compression = make_site_compression(Site::kDpGradient, rule_of(RuleAlgorithm::kDirect, 0, 3));
  EXPECT_FALSE(is_coded(*compression, 2, {}, 1000, DType::f32, true));
  EXPECT_TRUE(is_coded(*compression, 3, {}, 1000, DType::f32, true));
  EXPECT_FALSE(is_coded(*compression, 3, {.rule = kNoRule}, 1000, DType::f32, true));
  EXPECT_FALSE(is_coded(*compression, 3, {}, 0, DType::f32, true));
  // Three numbers of 4 bits and a scale of 2 bytes are 4 bytes; one of bf16 would grow.
  EXPECT_TRUE(is_coded(*compression, 3, {}, 3, DType::f32, false));
  EXPECT_FALSE(is_coded(*compression, 3, {}, 1, DType::bf16, false));
  // Nobody knows how long a framed payload gets: from a kilobyte on.
  const auto framed = make_site_compression(Site::kDpGradient, SiteRule{.codec = real_spec("entropy")});
  EXPECT_FALSE(is_coded(*framed, 0, {}, 255, DType::f32, false));
  EXPECT_TRUE(is_coded(*framed, 0, {}, 256, DType::f32, false));
  std::mutex mutex;
  run_ranks(3, [&](Progress& progress) {
    ChoosingRank rank(progress, {0, 0, 0}, compression);
    const auto coded = [&](const MessageKey& key) {
      const Result r = send_one(rank, 0, 5003, DType::f32, key);
      const std::lock_guard lock(mutex);
      EXPECT_EQ(r.coded, !r.as_plain);
      EXPECT_EQ(r.wire, r.price.bytes);
      EXPECT_EQ(r.coded, r.price.bytes < r.price.plain_bytes);
      return r.coded;
    };
    std::vector<bool> seen;
    for (rank.clock.step = 1; rank.clock.step < 5; ++rank.clock.step) seen.push_back(coded({.slot = 1}));
    seen.push_back(coded({.slot = 2, .rule = kNoRule}));
    rank.clock.ways[static_cast<size_t>(Site::kDpGradient)] = CodingWay::kPlain;
    seen.push_back(coded({.slot = 1}));
    rank.clock.ways = {};
    seen.push_back(coded({.slot = 1}));
    const std::lock_guard lock(mutex);
    EXPECT_EQ(seen, (std::vector<bool>{false, false, true, true, false, false, true}));
  });
}

// Messages of a slot may be under way together (micro-batches over one edge of a pipeline): with a residual each is
// packed behind the one before it, whichever leaves first, or timing would decide what is sent.
TEST(ChannelOrder, MessagesOfOneResidualPackInTheOrderOfIssue) {
  constexpr int64_t kCount = 20 * 1024 + 37;
  constexpr size_t kMessages = 3;
  SiteRule rule;
  rule.codec = real_spec("block_int", [](CodecSpec& s) { s["bits"] = 4, s["block"] = 64; });
  rule.residual.kind = ResidualKind::kErrorFeedback;
  const auto compression = make_site_compression(Site::kDpGradient, rule);
  const auto arrived = [&](uint64_t seed, bool one_by_one) {
    std::vector<std::vector<char>> got(kMessages);
    run_ranks(
        2,
        [&](Progress& progress) {
          ChoosingRank rank(progress, {0, 1}, compression);
          const bool sends = rank.channel.rank() == 0;
          std::vector<Buffer> buffers;
          std::vector<Ticket> tickets;
          for (size_t m = 0; m < kMessages; ++m) {
            buffers.emplace_back(DType::f32, kCount);
            if (sends) buffers.back().fill(7 + m, 0);
          }
          for (Buffer& b : buffers) {
            tickets.push_back(sends ? rank.channel.send(b.view(), 1, rank.stream)
                                    : rank.channel.receive(b.view(), 0, rank.stream));
            if (one_by_one) tickets.back().wait(rank.stream);
          }
          for (Ticket& t : tickets) t.wait(rank.stream);
          for (size_t m = 0; m < kMessages && !sends; ++m) got[m] = buffers[m].bytes();
        },
        seed);
    return got;
  };
  const auto expected = arrived(0, true);
  EXPECT_NE(expected[0], expected[1]);
  for (uint64_t seed = 1; seed <= 40; ++seed) EXPECT_EQ(arrived(seed, false), expected) << "seed " << seed;
}

// Rules that take turns at an edge of the pipeline number its messages together: with equal numbers two messages would
// round by equal chances. Where both rules say the same, the bits are those of one rule.
TEST(ChannelOrder, RulesThatTakeTurnsRoundByChancesOfTheirOwn) {
  const SiteRule stochastic{.codec = codec_spec("block_int", {{"bits", 4}, {"block", 64}, {"rounding", "stochastic"}})};
  const auto compression = make_site_compression(Site::kPpForward, stochastic);
  const auto arrived = [&](const std::vector<int>& rules) {
    std::vector<std::vector<char>> got;
    run_ranks(2, [&](Progress& progress) {
      SiteCounters counters;
      CompressionClock clock;
      Channel channel(std::make_unique<Communicator>(progress, all_ranks(2), 5, Site::kPpForward, &counters),
                      {compression, compression}, &clock, &counters, std::make_shared<ChannelStates>("pp.forward/5"));
      HostStream stream;
      for (const int rule : rules) {
        Buffer data(DType::f32, 4096);
        data.fill(3, 0);
        const MessageKey key{.slot = 1, .rule = rule};
        if (channel.rank() == 0) {
          channel.send(data.view(), 1, stream, key).wait(stream);
          continue;
        }
        channel.receive(data.view(), 0, stream, key).wait(stream);
        got.push_back(data.bytes());
      }
    });
    return got;
  };
  const auto of_one = arrived({0, 0, 0});
  EXPECT_NE(of_one[0], of_one[1]);
  EXPECT_EQ(arrived({0, 1, 0}), of_one);
}

// Residual ema keeps a scale for 256 elements; codecs that code a piece whole are cut between ranks there, too.
TEST(ChannelOrder, EmaAroundWholeMessages) {
  for (const char* codec : {"one_bit", "top_k"}) {
    SiteRule rule;
    rule.codec = real_spec(codec, [](CodecSpec& s) {
      if (s.codec == "top_k") s["density"] = 0.1;
    });
    rule.residual.kind = ResidualKind::kEma;
    const auto compression = make_site_compression(Site::kDpGradient, rule);
    for (int ranks : {2, 3, 5, 7}) {
      std::vector<std::vector<std::vector<char>>> sums(static_cast<size_t>(ranks));  // of each rank, by step
      run_ranks(ranks, [&](Progress& progress) {
        ChoosingRank rank(progress, std::vector<int>(static_cast<size_t>(ranks)), compression);
        Buffer data(DType::f32, 3 * 4096);
        for (rank.clock.step = 0; rank.clock.step < 3; ++rank.clock.step) {
          data.fill(3, rank.channel.rank());
          rank.channel.all_reduce(data.view(), ReduceKind::kSum, rank.stream).wait(rank.stream);
          bool finite = true;
          for (int64_t i = 0; i < data.count(); ++i) finite = finite && std::isfinite(data.get(i));
          EXPECT_TRUE(finite) << codec;
          sums[static_cast<size_t>(rank.channel.rank())].push_back(data.bytes());
        }
      });
      for (const auto& each : sums) EXPECT_EQ(each, sums[0]) << codec << ": replicas of " << ranks << " ranks differ";
      EXPECT_NE(sums[0].front(), sums[0].back()) << codec << ": the residual changes nothing";
    }
  }
}

// Law 6 over Channel's branches. Two levels on a group that has none, and a ring's gathers, are the direct ones.
TEST(ChannelChoice, PricesOfEveryCodecAreWhatIsSent) {
  std::vector<CodecSpec> specs;
  for (const RealCodec& codec : real_codecs()) specs.push_back(codec.spec);
  specs.push_back(real_spec("sketch", [](CodecSpec& s) { s["density"] = 0.05; }));
  specs.push_back(real_spec("low_rank", [](CodecSpec& s) { s["rank"] = 2; }));
  // Messages carry checksums where their rule says so, else as everywhere: in turn none, between nodes, all.
  for (const char* codec : {"identity", "sketch", "low_rank"})
    specs.push_back(real_spec(codec, [](CodecSpec& s) { s.checksum = true; }));
  int turn = 0;
  for (const CodecSpec& spec : specs) {
    for (const RuleAlgorithm way : kWays) {
      SiteRule rule{.codec = spec, .algorithm = way};
      const auto compression = make_site_compression(Site::kDpGradient, rule);
      for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 0}, node_list(2, 2)}) {
        const int n = static_cast<int>(nodes.size());
        CommTuning tuning = small_chunks(1024);
        tuning.checksums = static_cast<Checksums>(turn++ % 3);
        std::mutex mutex;
        run_ranks(n, [&](Progress& progress) {
          ChoosingRank rank(progress, nodes, compression, tuning);
          uint32_t slot = 0;
          for (int verb = 0; verb < 4; ++verb) {
            if (spec.codec == "low_rank" && verb == 2) continue;  // no site gathers by it
            const int64_t count = 64 * 64 + (spec.codec == "low_rank" ? 0 : 907);
            const MatrixShape matrix{0, 64, 64};
            MessageKey key{.slot = slot};
            if (spec.codec == "low_rank") key.matrices = {&matrix, 1};
            slot += 4;
            const Result r = send_one(rank, verb, count, DType::f32, key);
            const std::lock_guard lock(mutex);
            SCOPED_TRACE(::testing::Message() << spec.codec << " " << kVerbs[verb] << " way " << static_cast<int>(way)
                                              << " ranks " << n << " rank " << rank.channel.rank());
            EXPECT_EQ(r.coded, spec.codec != "identity" && (spec.codec != "sketch" || verb < 2));
            if (r.price.exact) {
              EXPECT_EQ(r.wire, r.price.bytes);
            } else {
              EXPECT_LE(r.wire, r.price.bytes);
            }
            EXPECT_GT(r.wire, 0);
          }
        });
        if (HasFailure()) return;
      }
    }
  }
}

// Parameter all-gathers of bf16 weights are packed from fp32 masters, in pieces that are cut by what is packed: with a
// checksum in each, more of them are more bytes.
TEST(ChannelChoice, GathersFromMastersArePriced) {
  for (const RuleAlgorithm way : {RuleAlgorithm::kDirect, RuleAlgorithm::kTwoLevel}) {
    for (const char* codec : {"block_int", "identity"}) {
      SiteRule rule = rule_of(way, 0);
      rule.codec = real_spec(codec, [&](CodecSpec& s) { s.checksum = codec == std::string("block_int"); });
      const auto compression = make_site_compression(Site::kZeroParameter, rule);
      const std::vector<int64_t> bounds = {0, 40960, 81920, 122880, 170000};
      std::mutex mutex;
      run_ranks(4, [&](Progress& progress) {
        ChoosingRank rank(progress, node_list(2, 2), compression, small_chunks(32 << 10));
        const auto me = static_cast<size_t>(rank.channel.rank());
        Buffer whole(DType::bf16, bounds.back()), mine(DType::f32, bounds[me + 1] - bounds[me]);
        mine.fill(5, rank.channel.rank());
        rank.channel.all_gather(mine.view(), whole.view(), bounds, rank.stream, {.slot = 1}).wait(rank.stream);
        const auto priced = [&](View from) {
          rank.price = {};
          rank.rehearsed.all_gather(from, whole.view(), bounds, rank.stream, {.slot = 1}).wait(rank.stream);
          return rank.price.bytes;
        };
        const int64_t bytes = priced(mine.view());
        const std::lock_guard lock(mutex);
        EXPECT_EQ(rank.counters.wire_bytes, bytes) << codec << " rank " << me;
        if (rank.channel.codes({.slot = 1}, bounds.back(), DType::bf16, false)) {
          EXPECT_GT(bytes, priced(whole.view().element_range(bounds[me], bounds[me + 1] - bounds[me])));
        }
      });
    }
  }
}

// Large gathers forward payloads in two levels where the group has them, as plain ones do: the bits, the state behind
// them and the price stay what they are.
TEST(ChannelChoice, LargeGathersTakeTwoLevels) {
  for (const char* codec : {"block_int", "ecsq"}) {
    SiteRule rule;
    rule.codec = real_spec(codec, [&](CodecSpec& s) {
      if (s.codec == "ecsq") s["rate"] = 2.25;
    });
    rule.residual.kind = ResidualKind::kValueDifference;
    const auto compression = make_site_compression(Site::kZeroParameter, rule);
    const std::vector<int64_t> bounds = {0, 200000, 430000, 600000, 907001};
    std::vector<std::vector<char>> bits[2];
    for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kAuto}) {
      const CommTuning tuning = small_chunks(32 << 10, algorithm);
      auto& got = bits[algorithm == Algorithm::kAuto ? 1 : 0];
      got.resize(4);
      std::mutex mutex;
      run_ranks(4, [&](Progress& progress) {
        ChoosingRank rank(progress, node_list(2, 2), compression, tuning);
        const auto me = static_cast<size_t>(rank.channel.rank());
        Buffer whole(DType::f32, bounds.back()), mine(DType::f32, bounds[me + 1] - bounds[me]);
        for (uint64_t round = 0; round < 3; ++round) {
          mine.fill(5 + round, rank.channel.rank());
          rank.counters = {}, rank.price = {};
          rank.rehearsed.all_gather(mine.view(), whole.view(), bounds, rank.stream, {.slot = 1}).wait(rank.stream);
          rank.channel.all_gather(mine.view(), whole.view(), bounds, rank.stream, {.slot = 1}).wait(rank.stream);
          const std::lock_guard lock(mutex);
          if (rank.price.exact) {
            EXPECT_EQ(rank.counters.wire_bytes, rank.price.bytes) << codec;
          } else {
            EXPECT_LE(rank.counters.wire_bytes, rank.price.bytes) << codec;
          }
        }
        const std::lock_guard lock(mutex);
        got[me] = whole.bytes();
      });
      for (const auto& other : got) EXPECT_EQ(other, got[0]) << codec << ": replicas differ";
    }
    EXPECT_EQ(bits[0], bits[1]) << codec;
  }
}

}  // namespace
}  // namespace thinwire::channel_choice_test
