// Every real codec through every coded collective. Whoever codes the same
// slices by hand, without any transport, has to come to the same bits: that is
// what chunks, routes, orders and random numbers of a collective are compared
// with.
#include "tests/comm/real_codecs.h"

#include <cmath>
#include <mutex>

#include "compression/residual.h"
#include "parallel/collective/pieces.h"
#include "tests/comm/coded_bytes.h"
#include "tests/comm/coded_codecs.h"

namespace thinwire::real_codecs_test {
namespace {

enum Op {
  kScatter,
  kReduce,
  kGather,
  kSend,
  kRingScatter,
  kRingReduce,
  kLevelsScatter,
  kLevelsReduce,
  kLevelsGather,
  kOps
};
constexpr const char* kOpNames[] = {"reduce-scatter",
                                    "all-reduce",
                                    "all-gather",
                                    "send",
                                    "ring reduce-scatter",
                                    "ring all-reduce",
                                    "two-level reduce-scatter",
                                    "two-level all-reduce",
                                    "two-level all-gather"};
bool of_levels(Op op) {
  return op == kLevelsScatter || op == kLevelsReduce || op == kLevelsGather;
}
bool scatters(Op op) {
  return op == kScatter || op == kRingScatter || op == kLevelsScatter;
}
bool reduces(Op op) {
  return op == kReduce || op == kRingReduce || op == kLevelsReduce;
}

// One message of one group.
struct Job {
  NodeGrid grid;
  DType dtype = DType::f32;
  int64_t count = 0;
  std::vector<int64_t> bounds;  // of scatters and gathers
  std::vector<int64_t> shared;  // of all-reduces, at multiples of the granule
  CommTuning tuning;
  std::vector<Buffer> all;
  int n() const { return grid.nodes * grid.local; }
  Slice slice(Op op, int rank) const {
    const auto& b = reduces(op) ? shared : bounds;
    return {b[static_cast<size_t>(rank)], b[static_cast<size_t>(rank) + 1] - b[static_cast<size_t>(rank)]};
  }
};

Job job_of(const NodeGrid& grid, const Coder& coder, int64_t count, DType dtype, uint64_t seed) {
  Job s;
  s.grid = grid, s.dtype = dtype, s.count = count;
  std::mt19937_64 random(seed);
  s.bounds = ragged_bounds(random, count, s.n());
  for (int r = 0; r <= s.n(); ++r) s.shared.push_back(part_bound(count, s.n(), r, common_unit(&coder)));
  s.tuning = small_chunks(1024);
  s.all = contributions(dtype, count, seed, s.n());
  return s;
}

// --- by hand
// ----------------------------------------------------------------------------------------------------

class ByHand {
 public:
  using Payload = std::vector<std::byte>;
  ByHand(const Coder& coder, Job& job) : coder_(coder), s_(job) {}

  // What the owner of a slice has behind a reduction, in fp32.
  std::vector<float> sum(Op op, int owner) {
    const Slice slice = s_.slice(op, owner);
    std::vector<float> out(static_cast<size_t>(slice.count));
    if (slice.count == 0) return out;
    if (op == kRingScatter || op == kRingReduce)
      around(owner, slice, out);
    else if (of_levels(op))
      in_levels(owner, slice, out);
    else
      among(0, s_.n(), owner, slice, out);
    return out;
  }
  // What a message becomes on its way, elements from `first` of it.
  std::vector<float> coded(View x, int64_t first, int rank) {
    std::vector<float> out(static_cast<size_t>(x.count()));
    if (out.empty()) return out;
    const Payload payload = pack(x, first, rank);
    const Share share{payload, View(), rank};
    absorb({&share, 1}, out, first);
    return out;
  }

 private:
  Msg message(int64_t first, int rank) const {
    Msg msg;
    msg.seed = 77;
    msg.first = first;
    msg.rank = rank;
    msg.ranks = s_.n();
    return msg;
  }
  Payload pack(View x, int64_t first, int rank) const {
    Payload payload(coder_.wire_bytes(x.count(), x.dtype));
    CompressionStats stats;
    payload.resize(coder_.pack(message(first, rank), x, View(), payload, nullptr, stats));
    return payload;
  }
  void absorb(std::span<const Share> shares, std::vector<float>& out, int64_t first) const {
    CompressionStats stats;
    coder_.absorb(message(first, shares[0].rank), shares, view(out), false, stats);
  }
  static View view(std::vector<float>& x) { return View(x.data(), DType::f32, {static_cast<int64_t>(x.size())}); }
  View input(int rank, const Slice& slice) { return part_of(s_.all[static_cast<size_t>(rank)].view(), slice); }

  // Direct: members [base, base + size) code their slice for `keeper`, who adds
  // up in their order.
  void among(int base, int size, int keeper, const Slice& slice, std::vector<float>& out) {
    std::vector<Payload> payloads;
    for (int m = base; m < base + size; ++m)
      payloads.push_back(m == keeper ? Payload() : pack(input(m, slice), slice.first, m));
    std::vector<Share> shares;
    for (int m = base; m < base + size; ++m)
      shares.push_back({payloads[static_cast<size_t>(m - base)], m == keeper ? input(m, slice) : View(), m});
    absorb(shares, out, slice.first);
  }
  // Ring: from the owner's successor on, everybody adds his own and codes
  // again.
  void around(int owner, const Slice& slice, std::vector<float>& out) {
    const int n = s_.n();
    int before = (owner + 1) % n;
    Payload payload = pack(input(before, slice), slice.first, before);
    while (before != owner) {
      const int me = (before + 1) % n;
      const Share shares[] = {{payload, View(), before}, {{}, input(me, slice), me}};
      absorb(shares, out, slice.first);
      if (me != owner) payload = pack(view(out), slice.first, me);
      before = me;
    }
  }
  // Two levels: inside each node for the rank at the owner's place, who codes
  // the node's sum for the owner.
  void in_levels(int owner, const Slice& slice, std::vector<float>& out) {
    const int local = s_.grid.local, place = owner % local;
    std::vector<std::vector<float>> sums;
    std::vector<Payload> payloads;
    std::vector<Share> shares;
    for (int j = 0; j < s_.grid.nodes; ++j) {
      sums.emplace_back(out.size());
      among(j * local, local, j * local + place, slice, sums.back());
      const int speaker = j * local + place;
      payloads.push_back(speaker == owner ? Payload() : pack(view(sums.back()), slice.first, speaker));
    }
    for (int j = 0; j < s_.grid.nodes; ++j) {
      const auto k = static_cast<size_t>(j);
      const int speaker = j * local + place;
      shares.push_back({payloads[k], speaker == owner ? view(sums[k]) : View(), speaker});
    }
    absorb(shares, out, slice.first);
  }

  const Coder& coder_;
  Job& s_;
};

// --- by the collectives
// -----------------------------------------------------------------------------------------

struct Outcome {
  std::vector<Buffer> got;
  std::vector<int64_t> bytes;
};

void perform(Op op, CodedRank& rank, const Coder& coder, Job& s, Buffer& got) {
  const auto me = static_cast<size_t>(rank.me());
  const int n = s.n(), next = (rank.me() + 1) % n, previous = (rank.me() + n - 1) % n;
  const GroupLane lane = rank.group.lane();
  const CodedCall call = rank.call(&coder);
  const View mine = s.all[me].view();
  const Slice own = s.slice(op, rank.me());
  if (reduces(op) && s.count > 0) std::memcpy(got.view().data, mine.data, mine.bytes());
  switch (op) {
    case kScatter:
      return rank.run(coded_reduce_scatter(lane, call, mine, bounds_in(rank.group, s.bounds), got.view(), false));
    case kRingScatter:
      return rank.run(
          coded_reduce_scatter(lane, call, mine, bounds_in(rank.group, s.bounds), got.view(), false, Algorithm::kRing));
    case kLevelsScatter:
      return rank.run(coded_reduce_scatter(lane, call, mine, bounds_in(rank.group, s.bounds), got.view(), false,
                                           Algorithm::kTwoLevel, call));
    case kReduce:
      return rank.run(coded_all_reduce(lane, call, call, got.view()));
    case kRingReduce:
      return rank.run(coded_all_reduce(lane, call, call, got.view(), Algorithm::kRing));
    case kLevelsReduce:
      return rank.run(coded_all_reduce(lane, call, call, got.view(), Algorithm::kTwoLevel, call));
    case kGather:
      return rank.run(coded_all_gather(lane, call, part_of(mine, own), got.view(), bounds_in(rank.group, s.bounds)));
    case kLevelsGather:
      return rank.run(coded_all_gather(lane, call, part_of(mine, own), got.view(), bounds_in(rank.group, s.bounds),
                                       Algorithm::kTwoLevel));
    default: {
      Ticket in = rank.group.start(coded_receive(rank.group.lane_from(previous), call, got.view(), previous), "in", 1);
      Ticket out = rank.group.start(coded_send(rank.group.lane_to(next), call, mine, next), "out", 1);
      out.wait(rank.stream);
      in.wait(rank.stream);
    }
  }
}

int64_t formula(Op op, const Coder& coder, const Job& s, int me) {
  switch (op) {
    case kScatter:
      return coded_reduce_scatter_bytes(coder, s.tuning, me, s.bounds, s.dtype);
    case kRingScatter:
      return coded_reduce_scatter_bytes(coder, s.tuning, me, s.bounds, s.dtype, Algorithm::kRing);
    case kLevelsScatter:
      return coded_reduce_scatter_bytes(coder, s.tuning, me, s.bounds, s.dtype, Algorithm::kTwoLevel, &coder, s.grid);
    case kReduce:
      return coded_all_reduce_bytes(coder, &coder, s.tuning, s.n(), me, s.count, s.dtype);
    case kRingReduce:
      return coded_all_reduce_bytes(coder, &coder, s.tuning, s.n(), me, s.count, s.dtype, Algorithm::kRing);
    case kLevelsReduce:
      return coded_all_reduce_bytes(coder, &coder, s.tuning, s.n(), me, s.count, s.dtype, Algorithm::kTwoLevel, &coder,
                                    s.grid);
    case kGather:
      return coded_all_gather_bytes(coder, s.tuning, me, s.bounds, s.dtype);
    case kLevelsGather:
      return coded_all_gather_bytes(coder, s.tuning, me, s.bounds, s.dtype, Algorithm::kTwoLevel, s.grid);
    default:
      return coded_message_bytes(coder, s.tuning, s.count, s.dtype);
  }
}

// How far a result may be from the exact sum of contributions below one: the
// codec's own error of everything that is coded on the way, whose magnitudes
// are what was added up so far and its error.
double allowed(Op op, const RealCodec& codec, const Job& s) {
  const int n = s.n();
  const auto compression = [&](double magnitude) { return codec.error * magnitude + codec.floor; };
  double error = 0.0;
  if (op == kGather || op == kLevelsGather || op == kSend) {
    error = compression(1.0);
  } else if (op == kRingScatter || op == kRingReduce) {
    for (int hop = 1; hop < n; ++hop) error += compression(hop + error);
  } else if (of_levels(op)) {
    const double inside = (s.grid.local - 1) * compression(1.0);
    error = s.grid.nodes * inside + (s.grid.nodes - 1) * compression(s.grid.local + inside);
  } else {
    error = (n - 1) * compression(1.0);
  }
  if (reduces(op)) error += compression(n + error);
  return error + sum_tolerance(s.dtype, 2 * n + 2, n + error, 3);
}

class RealCodecs : public ::testing::TestWithParam<RealCodec> {};

// Bits, bytes and errors of one operation on all ranks.
void check(Op op, const RealCodec& codec, const Coder& coder, Job& s, const Outcome& outcome) {
  const int n = s.n();
  const bool bits = !coder.traits().lossless && n > 1;  // lossless: real_rounds_test.cpp has the plain ones
  ByHand hand(coder, s);
  Buffer want(s.dtype, s.count);
  std::vector<double> exact(static_cast<size_t>(s.count));
  for (int owner = 0; owner < n; ++owner) {
    const Slice slice = s.slice(op, owner);
    std::vector<float> v;
    if (scatters(op) || reduces(op)) v = hand.sum(op, owner);
    if (reduces(op)) v = hand.coded(View(v.data(), DType::f32, {slice.count}), slice.first, owner);
    if (op == kGather || op == kLevelsGather)
      v = hand.coded(part_of(s.all[static_cast<size_t>(owner)].view(), slice), slice.first, owner);
    for (int64_t i = 0; i < static_cast<int64_t>(v.size()); ++i) {
      want.set(slice.first + i, v[static_cast<size_t>(i)]);
      double& e = exact[static_cast<size_t>(slice.first + i)];
      e = s.all[static_cast<size_t>(owner)].get(slice.first + i);
      for (int r = 0; r < n && op != kGather && op != kLevelsGather; ++r)
        e += r == owner ? 0.0 : s.all[static_cast<size_t>(r)].get(slice.first + i);
    }
  }
  const double bound = allowed(op, codec, s);
  for (int r = 0; r < n; ++r) {
    const auto k = static_cast<size_t>(r);
    const Buffer& got = outcome.got[k];
    if (coder.traits().framed)
      ASSERT_LE(outcome.bytes[k], formula(op, coder, s, r)) << kOpNames[op];
    else
      ASSERT_EQ(outcome.bytes[k], formula(op, coder, s, r)) << kOpNames[op];
    int64_t first = 0;
    if (scatters(op)) first = s.slice(op, r).first;
    if (op == kSend) {
      const int from = (r + n - 1) % n;
      Buffer& sent = s.all[static_cast<size_t>(from)];
      const std::vector<float> v = hand.coded(sent.view(), 0, from);
      for (int64_t i = 0; i < s.count; ++i) {
        want.set(i, v[static_cast<size_t>(i)]);
        exact[static_cast<size_t>(i)] = sent.get(i);
      }
    }
    if (reduces(op) || op == kGather || op == kLevelsGather) {
      ASSERT_EQ(got.bytes(), outcome.got[0].bytes()) << kOpNames[op] << ": replicas differ";
    }
    for (int64_t i = 0; i < got.count(); ++i) {
      if (bits) {
        ASSERT_EQ(got.get(i), want.get(first + i)) << kOpNames[op] << " rank " << r << " element " << first + i;
      }
      ASSERT_LE(std::abs(got.get(i) - exact[static_cast<size_t>(first + i)]), n == 1 ? 0.0 : bound)
          << kOpNames[op] << " rank " << r << " element " << first + i;
    }
  }
}

TEST_P(RealCodecs, ThroughEveryCollective) {
  const RealCodec& codec = GetParam();
  const auto coder = codec.coder();
  const int64_t granule = coder->granule();
  const auto said = codec.spec.parameters.find("block");
  const int64_t own = said != codec.spec.parameters.end() ? std::get<int64_t>(said->second) : 0;
  const int64_t block = granule > 1 && granule <= 8192 ? granule : own > 0 ? own : 64;
  const int64_t counts[] = {0, 1, block - 1, block, block + 1, 5003};
  for (const NodeGrid grid : {NodeGrid{1, 1}, NodeGrid{1, 2}, NodeGrid{1, 3}, NodeGrid{2, 2}, NodeGrid{4, 2}}) {
    const int n = grid.nodes * grid.local;
    std::vector<Job> jobs;
    for (size_t i = 0; i < std::size(counts); ++i) {
      const DType dtype = (static_cast<int>(i) + n / 2) % 2 == 0 ? DType::f32 : DType::bf16;
      jobs.push_back(job_of(grid, *coder, counts[i], dtype, 100 * i + static_cast<uint64_t>(n)));
    }
    std::vector<Op> ops;
    for (int i = 0; i < kOps; ++i) {
      const Op op = static_cast<Op>(i);
      if ((of_levels(op) && !grid.two_level()) || (op == kSend && n == 1)) continue;
      ops.push_back(op);
    }
    // [job][op], places for all ranks.
    std::vector<std::vector<Outcome>> outcomes(jobs.size(), std::vector<Outcome>(kOps));
    for (size_t i = 0; i < jobs.size(); ++i) {
      for (const Op op : ops) {
        outcomes[i][op].bytes.resize(static_cast<size_t>(n));
        for (int r = 0; r < n; ++r)
          outcomes[i][op].got.emplace_back(jobs[i].dtype, scatters(op) ? jobs[i].slice(op, r).count : jobs[i].count);
      }
    }
    run_ranks(n, [&](Progress& progress) {
      for (size_t i = 0; i < jobs.size(); ++i) {
        CodedRank rank(progress, n, jobs[i].tuning, node_list(grid.nodes, grid.local));
        const auto me = static_cast<size_t>(rank.me());
        for (const Op op : ops) {
          rank.counters = {};
          perform(op, rank, *coder, jobs[i], outcomes[i][op].got[me]);
          outcomes[i][op].bytes[me] = rank.counters.wire_bytes;
        }
      }
    });
    for (size_t i = 0; i < jobs.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << coder->name() << " ranks " << n << " count " << jobs[i].count << " "
                                        << name_of(jobs[i].dtype));
      for (const Op op : ops) {
        check(op, codec, *coder, jobs[i], outcomes[i][op]);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, RealCodecs, ::testing::ValuesIn(real_codecs()),
                         [](const auto& info) { return info.param.spec.codec + "_" + std::to_string(info.index); });

}  // namespace
}  // namespace thinwire::real_codecs_test
