// Under a launcher: coded collectives against the MPI library's sums, the same bits on all ranks, bytes by formula.
#include <mpi.h>

#include <cmath>
#include <cstdio>
#include <exception>

#include "parallel/wire/transport.h"
#include "tests/comm/coded_bytes.h"
#include "tests/comm/coded_codecs.h"

namespace thinwire {
namespace {

int failures = 0;

#define EXPECT(condition)                                         \
  do {                                                            \
    if (!(condition)) {                                           \
      std::printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                 \
    }                                                             \
  } while (0)

// Infinity where an element is no number.
double farthest(const Buffer& got, const double* want) {
  double worst = 0.0;
  for (int64_t i = 0; i < got.count(); ++i) {
    const double distance = std::abs(got.get(i) - want[i]);
    worst = std::max(worst, std::isfinite(distance) ? distance : HUGE_VAL);
  }
  return worst;
}

void check(CodedRank& rank, const Coder* coder, const std::vector<int>& nodes, int64_t count, double error) {
  const int n = rank.group.size(), me = rank.me();
  const bool levels = node_grid(nodes, n).two_level(), framed = coder != nullptr && coder->traits().framed;
  const CommTuning& tuning = rank.group.tuning();
  std::vector<int64_t> bounds;
  for (int r = 0; r <= n; ++r) bounds.push_back(r == n ? count : count * r / n / 32 * 32);
  const auto first = static_cast<size_t>(bounds[static_cast<size_t>(me)]);
  const int64_t own = bounds[static_cast<size_t>(me) + 1] - bounds[static_cast<size_t>(me)];

  Buffer mine(DType::f32, count);
  mine.fill(static_cast<uint64_t>(count), me);
  std::vector<double> contribution(static_cast<size_t>(count)), sum(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) contribution[static_cast<size_t>(i)] = mine.get(i);
  MPI_Allreduce(contribution.data(), sum.data(), static_cast<int>(count), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  const auto same_everywhere = [&](Buffer& b) {
    std::vector<char> root = b.bytes();
    MPI_Bcast(root.data(), static_cast<int>(root.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
    return root == b.bytes();
  };
  for (const Algorithm way : {Algorithm::kDirect, Algorithm::kRing, Algorithm::kTwoLevel}) {
    if (way == Algorithm::kTwoLevel && !levels) continue;
    const CodedCall call = rank.call(coder);
    const GroupLane lane = rank.group.lane();
    Buffer data(DType::f32, count);
    data.fill(static_cast<uint64_t>(count), me);
    rank.counters = {};
    rank.run(coded_all_reduce(lane, call, call, data.view(), way, call));
    if (coder != nullptr && !framed && way == Algorithm::kDirect) {
      EXPECT(rank.counters.wire_bytes == coded_all_reduce_bytes(*coder, coder, tuning, n, me, count, DType::f32));
    }
    EXPECT(same_everywhere(data));
    EXPECT(farthest(data, sum.data()) <= error);
    Buffer out(DType::f32, own), whole(DType::f32, count);
    const GroupLane second = rank.group.lane();
    rank.run(
        coded_reduce_scatter(second, call, mine.view(), bounds_in(rank.group, bounds), out.view(), false, way, call));
    EXPECT(farthest(out, sum.data() + first) <= error);
    const GroupLane third = rank.group.lane();
    rank.run(coded_all_gather(third, call, out.view(), whole.view(), bounds_in(rank.group, bounds),
                              way == Algorithm::kTwoLevel ? way : Algorithm::kDirect));
    EXPECT(same_everywhere(whole));
  }
  if (n > 1) {
    const int next = (me + 1) % n, previous = (me + n - 1) % n;
    Buffer got(DType::f32, count), sent(DType::f32, count);
    sent.fill(static_cast<uint64_t>(count), previous);
    Ticket receive = rank.group.start(
        coded_receive(rank.group.lane_from(previous), rank.call(coder), got.view(), previous), "receive", 1);
    Ticket send =
        rank.group.start(coded_send(rank.group.lane_to(next), rank.call(coder), mine.view(), next), "send", 1);
    send.wait(rank.stream);
    receive.wait(rank.stream);
    std::vector<double> want;
    for (int64_t i = 0; i < count; ++i) want.push_back(sent.get(i));
    EXPECT(farthest(got, want.data()) <= error);
  }
}

int run() {
  World world = open_world();
  const int n = world.transport->size(), me = world.transport->rank();
  {
    Progress progress(*world.transport, {.spin_us = 0});
    std::vector<int> pairs;
    for (int r = 0; r < n; ++r) pairs.push_back(r / 2);
    CodedRank rank(progress, n, small_chunks(16384), pairs);
    const auto lossy = coder_of(std::make_shared<Block8>(127.0f, true));
    const auto framed = coder_of(std::make_shared<NonZeros>(32));
    for (const int64_t count : {1, 31, 32, 1000, 50257, 300000}) {
      // At most n + 1 compressions, each off by 1/254 of a partial sum below n; exact ones by rounding alone.
      check(rank, lossy.get(), pairs, count, (n + 1.0) * n / 250.0);
      check(rank, framed.get(), pairs, count, n * n * 0x1p-23);
      check(rank, nullptr, pairs, count, n * n * 0x1p-23);
    }
    EXPECT(rank.counters.open == 0);
  }
  int all = 0;
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (me == 0) std::printf("%d ranks: %s\n", n, all == 0 ? "ok" : "FAILED");
  return all == 0 ? 0 : 1;
}

}  // namespace
}  // namespace thinwire

int main() {
  try {
    return thinwire::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
