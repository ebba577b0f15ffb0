// Channels that code on devices against channels of the host: the same bits, bytes and states for every verb, over a
// fake NCCL and emulated kernels; and mistakes that are found by name.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <random>

#include "compression/codec_table.h"
#include "parallel/channel/channel.h"
#include "tests/comm/device_rank.h"
#include "tests/emulation/cuda_emulation.h"

namespace thinwire::device_coded_test {
namespace {

using namespace test;

SiteRule rule_of(const std::string& codec, const CodecValues& values, ResidualKind residual = ResidualKind::kNone,
                 bool hadamard = false) {
  SiteRule rule;
  rule.codec = codec_spec(codec, values);
  rule.codec.hadamard = hadamard;
  rule.residual.kind = residual;
  return rule;
}

// One rank's two channels under a rule.
struct TwinChannels {
  TwinChannels(DeviceRank& rank, const SiteRule& rule) : rank(rank) {
    const std::vector<int> all = all_ranks(rank.size);
    const auto compression = make_site_compression(Site::kDpGradient, rule);
    EXPECT_TRUE(compression->on_device);
    std::vector<int> nodes;
    for (int r = 0; r < rank.size; ++r) nodes.push_back(rule.algorithm == RuleAlgorithm::kTwoLevel ? r / 2 : 0);
    CommTuning tuning;  // plain messages are those of the device
    tuning.all_reduce = tuning.reduce_scatter = tuning.all_gather = Algorithm::kDirect;
    const auto make = [&](int number, SiteCounters* counters, bool on_device) {
      auto group =
          std::make_unique<Communicator>(rank.progress, all, number, Site::kDpGradient, counters, nodes, tuning);
      if (on_device) group->use_device(rank.communicator(7, all, DeviceEdges::kAll, counters));
      auto states = std::make_shared<ChannelStates>("dp.gradient/1/rank0." + std::to_string(rank.me) + ".0", true,
                                                    on_device ? &rank.gpu : nullptr);
      (on_device ? device_states : host_states) = states;
      return Channel(std::move(group), {compression}, &clock, counters, states);
    };
    host = make(1, &host_counters, false);
    device = make(2, &device_counters, true);
    rank.nccl->use_kernels(emulated_cuda_ops(), rank.traffic.stream());
    rank.traffic.connect("coded", rank.size, rank.me, 9);
  }
  void settle(bool applied) {
    host_states->settle(applied), device_states->settle(applied);
    if (applied) ++clock.step;
    ++clock.pass;
  }

  DeviceRank& rank;
  CompressionClock clock;
  SiteCounters host_counters, device_counters;
  std::shared_ptr<ChannelStates> host_states, device_states;
  Channel host, device;
  HostStream none;
};

// Bytes by name, wherever they lie.
class StateBytes final : public StateVisitor {
 public:
  explicit StateBytes(Device* device) : device_(device) {}
  void tensor(const GlobalSlice& s) override {
    std::vector<char>& bytes = all[s.name];
    bytes.resize(s.local.bytes());
    if (device_ != nullptr)
      device_->copy_at_rest(bytes.data(), s.local.data, bytes.size());
    else
      std::memcpy(bytes.data(), s.local.data, bytes.size());
  }
  void integer(const std::string&, int64_t&) override { FAIL(); }
  void real(const std::string&, double&) override { FAIL(); }
  void text(const std::string&, std::string&) override { FAIL(); }
  std::map<std::string, std::vector<char>> all;

 private:
  Device* device_;
};

void play_verbs(TwinChannels& twins, std::mt19937_64& random, bool stateful, uint64_t seed) {
  DeviceRank& rank = twins.rank;
  Stream& compute = *rank.compute;
  const int n = rank.size, me = rank.me, right = (me + 1) % n, left = (me + n - 1) % n;
  const auto at = static_cast<size_t>(me);
  const int64_t count = 1 + random_count(random, 9000);
  const std::vector<int64_t> bounds = ragged_bounds(random, count, n);
  const int64_t first = bounds[at], own = bounds[at + 1] - first;
  const DType type = random() % 3 == 0 ? DType::bf16 : DType::f32;
  const auto slot = [](uint32_t number) { return MessageKey{.slot = number}; };
  const auto same = [&](Tensor& there, Buffer& host, const char* what) {
    EXPECT_EQ(there.read().bytes(), host.bytes()) << what << " of " << count << " " << name_of(type);
  };
  for (int step = 0; step < (stateful ? 4 : 2); ++step) {
    twins.clock.loss_scale = step == 2 ? 1024.0f : 1.0f;
    twins.clock.train = step != 1 || !stateful;
    const auto fresh = [&](DType dtype, int64_t elements, uint64_t what) {
      return filled(dtype, elements, seed * 100 + static_cast<uint64_t>(step) * 10 + what, me);
    };
    {
      Buffer data = fresh(type, count, 0);
      Tensor there(rank.gpu, compute, data);
      twins.host.all_reduce(data.view(), ReduceKind::kSum, twins.none, slot(1)).wait_on_host();
      twins.device.all_reduce(there.view(), ReduceKind::kSum, compute, slot(1)).wait(compute);
      same(there, data, "all-reduce");
    }
    for (const bool adds : {false, true}) {
      Buffer data = fresh(type, count, 1), out = fresh(DType::f32, own, 2);
      Tensor there(rank.gpu, compute, data), result(rank.gpu, compute, out);
      const MessageKey key = slot(adds ? 2 : 3);
      twins.host.reduce_scatter(data.view(), bounds, out.view(), adds, twins.none, key).wait_on_host();
      twins.device.reduce_scatter(there.view(), bounds, result.view(), adds, compute, key).wait(compute);
      same(result, out, "reduce-scatter");
    }
    for (const bool inside : {false, true}) {
      Buffer data = fresh(type, count, 3), part = fresh(DType::f32, own, 4);
      Tensor there(rank.gpu, compute, data), piece(rank.gpu, compute, part);
      const MessageKey key = slot(inside ? 4 : 5);
      twins.host
          .all_gather(inside ? data.view().element_range(first, own) : part.view(), data.view(), bounds, twins.none,
                      key)
          .wait_on_host();
      twins.device
          .all_gather(inside ? there.view().element_range(first, own) : piece.view(), there.view(), bounds, compute,
                      key)
          .wait(compute);
      same(there, data, "all-gather");
    }
    {  // to the right and, with more than two ranks, to the left, as one exchange
      Buffer data = fresh(type, count, 5), from_left(type, count), from_right(type, count);
      Tensor there(rank.gpu, compute, data), in_left(rank.gpu, compute, from_left);
      Tensor in_right(rank.gpu, compute, from_right);
      const auto both = [&](Channel& channel, View out, View l, View r, Stream& stream) {
        std::vector<Ticket> tickets;
        tickets.push_back(channel.send(out, right, stream, slot(10 + static_cast<uint32_t>(me))));
        tickets.push_back(channel.receive(l, left, stream, slot(10 + static_cast<uint32_t>(left))));
        if (n > 2) {
          tickets.push_back(channel.send(out, left, stream, slot(20 + static_cast<uint32_t>(me))));
          tickets.push_back(channel.receive(r, right, stream, slot(20 + static_cast<uint32_t>(right))));
        }
        return tickets;
      };
      for (Ticket& t : both(twins.host, data.view(), from_left.view(), from_right.view(), twins.none)) t.wait_on_host();
      rank.traffic.open_exchange();
      std::vector<Ticket> tickets = both(twins.device, there.view(), in_left.view(), in_right.view(), compute);
      EXPECT_TRUE(tickets[0].open());
      rank.traffic.close_exchange();
      for (Ticket& t : tickets) t.wait(compute);
      same(in_left, from_left, "message");
      if (n > 2) same(in_right, from_right, "message");
    }
    if (!stateful) {
      std::vector<int64_t> from_bounds = {0}, to_bounds = {0};
      for (int r = 0; r < n; ++r) {
        from_bounds.push_back(from_bounds.back() + 300 * (me + 2 * r + 1));
        to_bounds.push_back(to_bounds.back() + 300 * (r + 2 * me + 1));
      }
      Buffer from = fresh(type, from_bounds.back(), 6), to(type, to_bounds.back());
      Tensor from_there(rank.gpu, compute, from), to_there(rank.gpu, compute, to);
      twins.host.all_to_all(from.view(), from_bounds, to.view(), to_bounds, twins.none, slot(6)).wait_on_host();
      twins.device.all_to_all(from_there.view(), from_bounds, to_there.view(), to_bounds, compute, slot(6))
          .wait(compute);
      same(to_there, to, "all-to-all");

      // Around once, and the last that came straight back to its owner.
      int64_t most = 0;
      const auto length = [&](int r) { return 40 + 100 * static_cast<int64_t>(r); };
      int64_t total = 0;
      for (int r = 0; r < n; ++r) most = std::max(most, length(r)), total += length(r);
      Buffer part = fresh(type, length(me), 7);
      Tensor part_there(rank.gpu, compute, part);
      RingMessage ring = twins.host.start_ring(part.view(), total, most, twins.none, slot(7));
      RingMessage ring_there = twins.device.start_ring(part_there.view(), total, most, compute, slot(7));
      same(part_there, part, "start of a ring");
      Buffer held = part;
      std::unique_ptr<Tensor> held_there;
      for (int hop = 1; hop < n; ++hop) {
        Buffer next(type, length((me + n - hop) % n));
        auto next_there = std::make_unique<Tensor>(rank.gpu, compute, next);
        twins.host.hop(ring, held.view(), next.view(), twins.none).wait_on_host();
        twins.device.hop(ring_there, (held_there ? *held_there : part_there).view(), next_there->view(), compute)
            .wait(compute);
        same(*next_there, next, "hop");
        held = next, held_there = std::move(next_there);
      }
      Buffer back(type, length(me));
      Tensor back_there(rank.gpu, compute, back);
      twins.host.hand_back(held.view(), back.view(), n - 1, total, twins.none, slot(8)).wait_on_host();
      twins.device.hand_back(held_there->view(), back_there.view(), n - 1, total, compute, slot(8)).wait(compute);
      same(back_there, back, "hand-back");
    }
    twins.settle(step != 2);
  }
  StateBytes host(nullptr), device(&rank.gpu);
  twins.host_states->visit(host);
  twins.device_states->visit(device);
  EXPECT_EQ(host.all, device.all);
  EXPECT_EQ(stateful, !host.all.empty());
  EXPECT_EQ(twins.host_states->bytes(), twins.device_states->bytes());
  EXPECT_EQ(twins.host_counters.wire_bytes, twins.device_counters.wire_bytes);
  EXPECT_EQ(twins.host_counters.logical_bytes, twins.device_counters.logical_bytes);
}

DeviceTraffic::Options in_pieces() {
  DeviceTraffic::Options options;
  options.scratch_bytes = 96 << 10;
  return options;
}

void expect_same(const SiteRule& rule) {
  const bool stateful = rule.residual.kind != ResidualKind::kNone;
  for (int size : {2, 3, 4}) {
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      Findings findings;
      FakeFabric fabric(findings, 30.0);
      run_ranks(
          size,
          [&](Progress& progress) {
            DeviceRank rank(progress, fabric, findings, seed, in_pieces());
            TwinChannels twins(rank, rule);
            std::mt19937_64 random(seed * 31 + static_cast<uint64_t>(size));
            play_verbs(twins, random, stateful, seed);
            EXPECT_EQ(rank.gpu.host_blocks(), 0);
          },
          seed);
      EXPECT_FALSE(findings.any()) << findings.text();
    }
  }
}

TEST(DeviceCoded, BlockInt) {
  ASSERT_NE(make_device_codec(codec_spec("block_int")), nullptr);  // the emulation's, not those of the build
  expect_same(
      rule_of("block_int", {{"bits", int64_t{8}}, {"block", int64_t{64}}, {"rounding", std::string("stochastic")}}));
}
TEST(DeviceCoded, BlockIntWithFeedback) {
  expect_same(rule_of("block_int", {{"bits", int64_t{4}}, {"block", int64_t{32}}}, ResidualKind::kErrorFeedback, true));
}
TEST(DeviceCoded, Cast) {
  expect_same(rule_of("cast", {{"format", std::string("e4m3")}}));
}
TEST(DeviceCoded, MxWithFeedbackAndOtherSums) {
  SiteRule rule = rule_of("mx", {{"format", std::string("mxfp4")}}, ResidualKind::kErrorFeedback);
  rule.has_sum_codec = true;
  rule.sum_codec = codec_spec("block_int", {{"bits", int64_t{8}}});
  rule.sum_residual.kind = ResidualKind::kErrorFeedback;
  expect_same(rule);
}

TEST(DeviceCoded, Rings) {
  SiteRule rule = rule_of("block_int", {{"bits", int64_t{4}}}, ResidualKind::kErrorFeedback);
  rule.algorithm = RuleAlgorithm::kRing;
  expect_same(rule);
  rule = rule_of("cast", {});
  rule.has_sum_codec = true;  // sums go back as they are
  rule.algorithm = RuleAlgorithm::kRing;
  expect_same(rule);
}
TEST(DeviceCoded, TwoLevels) {
  SiteRule rule = rule_of("block_int", {{"bits", int64_t{8}}}, ResidualKind::kErrorFeedback);
  rule.has_sum_codec = true;
  rule.sum_codec = codec_spec("mx");
  rule.algorithm = RuleAlgorithm::kTwoLevel;
  expect_same(rule);
  rule.sum_codec = {};
  expect_same(rule);
}

// What is not finite is said in the sum that is reduced, and by site; and forgotten where it is put aside.
TEST(DeviceCoded, FindingsReachTheControlSum) {
  Findings findings;
  FakeFabric fabric(findings, 30.0);
  run_ranks(2, [&](Progress& progress) {
    DeviceRank rank(progress, fabric, findings, 5, in_pieces());
    TwinChannels twins(rank, rule_of("block_int", {}));
    Buffer data(DType::f32, 500), sum(DType::f64, 1);
    data.fill(3, rank.me);
    if (rank.me == 1) data.set(400, std::numeric_limits<double>::infinity());
    Tensor there(rank.gpu, *rank.compute, data), sum_there(rank.gpu, *rank.compute, sum);
    for (const bool aside : {true, false}) {
      if (aside) rank.traffic.put_findings_aside();
      const std::vector<int64_t> bounds = {0, 500, 500};
      twins.device
          .reduce_scatter(there.view(), bounds, there.view().element_range(0, rank.me == 0 ? 500 : 0), false,
                          *rank.compute)
          .wait(*rank.compute);
      if (aside) rank.traffic.put_findings_back();
      rank.traffic.take_findings(sum_there.view(), *rank.compute);
      EXPECT_EQ(sum_there.read().get(0), !aside && rank.me == 1 ? 1.0 : 0.0);
      const std::vector<DeviceTally> found = rank.traffic.findings();
      EXPECT_EQ(found.at(static_cast<size_t>(Site::kDpGradient)).flags, !aside && rank.me == 1 ? kDeviceNonFinite : 0u);
    }
  });
  EXPECT_FALSE(findings.any()) << findings.text();
}

// Residuals of another number of ranks are dealt out as on the host, in whatever they are kept.
TEST(DeviceCoded, OldResidualsAreDealtOut) {
  for (const ResidualDtype kept_in : {ResidualDtype::kFp32, ResidualDtype::kBf16}) {
    Findings findings;
    FakeFabric fabric(findings, 30.0);
    run_ranks(3, [&](Progress& progress) {
      DeviceRank rank(progress, fabric, findings, 6, in_pieces());
      SiteRule rule = rule_of("block_int", {}, ResidualKind::kErrorFeedback);
      rule.residual.dtype = kept_in;
      TwinChannels twins(rank, rule);
      const int64_t count = 5000;
      const std::vector<int64_t> bounds = {0, 1000, 4096, count};
      twins.host.prepare({.slot = 3}, count, ChannelUse::kScatter, bounds);
      twins.device.prepare({.slot = 3}, count, ChannelUse::kScatter, bounds);
      const auto stored = [](const std::string& name, int64_t i) {
        return static_cast<float>(std::hash<std::string>{}(name + std::to_string(i)) % 1000) / 64.0f;
      };
      const OldResiduals old{2, [&](const std::string&) { return count; },
                             [&](const std::string& name, int64_t first, std::span<float> out) {
                               for (size_t i = 0; i < out.size(); ++i)
                                 out[i] = stored(name, first + static_cast<int64_t>(i));
                             }};
      EXPECT_EQ(twins.host_states->adopt(old).residuals, 1);
      EXPECT_EQ(twins.device_states->adopt(old).residuals, 1);
      StateBytes host(nullptr), device(&rank.gpu);
      twins.host_states->visit(host);
      twins.device_states->visit(device);
      EXPECT_EQ(host.all, device.all);
      EXPECT_FALSE(host.all.empty());
    });
    EXPECT_FALSE(findings.any()) << findings.text();
  }
}

// ---- mistakes ------------------------------------------------------------------------------------------------------

std::string found_in(const Mistake& call, const EventMistakes& events, uint64_t seed) {
  Findings findings;
  FakeFabric fabric(findings, 30.0);
  try {
    run_ranks(
        3,
        [&](Progress& progress) {
          DeviceRank rank(progress, fabric, findings, seed, in_pieces(), 300);
          TwinChannels twins(rank, rule_of("block_int", {}, ResidualKind::kErrorFeedback));
          rank.nccl->make(call);
          if (rank.me == 1) rank.gpu.make(events);
          Buffer data = filled(DType::f32, 4000, seed, rank.me);
          const std::vector<int64_t> bounds = {0, 1000, 2500, 4000};
          const auto me = static_cast<size_t>(rank.me);
          for (int step = 0; step < 3; ++step) {
            Tensor there(rank.gpu, *rank.compute, data);
            const View own = there.view().element_range(bounds[me], bounds[me + 1] - bounds[me]);
            twins.device.reduce_scatter(there.view(), bounds, own, false, *rank.compute, {.slot = 1})
                .wait(*rank.compute);
            twins.device.all_gather(own, there.view(), bounds, *rank.compute, {.slot = 2}).wait(*rank.compute);
            there.read();
          }
        },
        seed);
  } catch (const std::exception& error) {
    findings.add("exception", error.what());
  }
  return findings.any() ? findings.name() : "nothing";
}

TEST(DeviceCoded, MistakesAreFoundByName) {
  EXPECT_EQ(found_in({}, {}, 1), "nothing");
  for (int at = 0; at < 3; ++at) {
    // Of each step the first: packed before it was there, and the last: read before it has come.
    EXPECT_EQ(found_in({}, {.dropped_wait = 2 * at}, 2), "missing wait") << at;
    EXPECT_EQ(found_in({}, {.dropped_wait = 2 * at + 1, .of_waits_in_compute = true}, 3), "missing wait") << at;
    EXPECT_EQ(found_in({.what = CallMistake::kWrongCount, .rank = 2, .at = 4 * at}, {}, 4), "count") << at;
  }
}

}  // namespace
}  // namespace thinwire::device_coded_test
