// Under a launcher: every verb against the MPI library's own on doubles, on the world and on parts of it.
#include <mpi.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/base/core/error.h"
#include "parallel/collective/communicator.h"

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

View view_of(std::vector<double>& v) {
  return View(v.data(), DType::f64, {static_cast<int64_t>(v.size())});
}

// Members of [first, first + size) compare with MPI on the same part of the world.
void check_group(Progress& progress, MPI_Comm comm, std::vector<int> ranks, int number, Algorithm algorithm,
                 std::vector<int> nodes) {
  const int n = static_cast<int>(ranks.size());
  HostStream stream;
  int me = 0;
  MPI_Comm_rank(comm, &me);
  WireCounters counters;
  Communicator group(
      progress, std::move(ranks), number, Site::kControl, &counters, std::move(nodes),
      {.all_reduce = algorithm, .reduce_scatter = algorithm, .all_gather = algorithm, .chunk_bytes = 20000});
  std::mt19937_64 same(static_cast<uint64_t>(number));  // equal on all ranks
  std::mt19937_64 own(static_cast<uint64_t>(number * 100 + me));
  const auto random_vector = [&](int64_t count) {
    std::vector<double> v(static_cast<size_t>(count));
    for (double& x : v) x = static_cast<double>(static_cast<int64_t>(own())) * 0x1p-63;
    return v;
  };
  for (const int64_t count : {0, 1, 5, 1000, 30011, 200000}) {
    // Sums of n numbers below one differ by less than n rounding errors of n.
    const double tolerance = n * n * 0x1p-52;
    std::vector<double> mine = random_vector(count), want(mine.size());
    MPI_Allreduce(mine.data(), want.data(), static_cast<int>(count), MPI_DOUBLE, MPI_SUM, comm);
    std::vector<double> got = mine;
    group.all_reduce(view_of(got), ReduceKind::kSum, stream).wait(stream);
    for (size_t i = 0; i < got.size(); ++i) EXPECT(std::abs(got[i] - want[i]) <= tolerance);
    // The same bits everywhere.
    std::vector<double> first = got;
    MPI_Bcast(first.data(), static_cast<int>(count), MPI_DOUBLE, 0, comm);
    EXPECT(first == got);
    got = mine;
    MPI_Allreduce(mine.data(), want.data(), static_cast<int>(count), MPI_DOUBLE, MPI_MAX, comm);
    group.all_reduce(view_of(got), ReduceKind::kMax, stream).wait(stream);
    EXPECT(got == want);

    std::vector<int64_t> bounds = {0};
    for (int r = 1; r < n; ++r) bounds.push_back(static_cast<int64_t>(same() % static_cast<uint64_t>(count + 1)));
    bounds.push_back(count);
    std::sort(bounds.begin(), bounds.end());
    std::vector<int> lengths, starts;
    for (int r = 0; r < n; ++r) {
      const auto k = static_cast<size_t>(r);
      lengths.push_back(static_cast<int>(bounds[k + 1] - bounds[k]));
      starts.push_back(static_cast<int>(bounds[k]));
    }
    std::vector<double> part(static_cast<size_t>(lengths[static_cast<size_t>(me)])), want_part(part.size());
    MPI_Reduce_scatter(mine.data(), want_part.data(), lengths.data(), MPI_DOUBLE, MPI_SUM, comm);
    got = mine;
    group.reduce_scatter(view_of(got), bounds, view_of(part), false, stream).wait(stream);
    for (size_t i = 0; i < part.size(); ++i) EXPECT(std::abs(part[i] - want_part[i]) <= tolerance);

    std::vector<double> all(static_cast<size_t>(count)), want_all(all.size());
    MPI_Allgatherv(part.data(), static_cast<int>(part.size()), MPI_DOUBLE, want_all.data(), lengths.data(),
                   starts.data(), MPI_DOUBLE, comm);
    group.all_gather(view_of(part), view_of(all), bounds, stream).wait(stream);
    EXPECT(all == want_all);

    const int root = static_cast<int>(same() % static_cast<uint64_t>(n));
    want = mine;
    got = mine;
    MPI_Bcast(want.data(), static_cast<int>(count), MPI_DOUBLE, root, comm);
    group.broadcast(view_of(got), root, stream).wait(stream);
    EXPECT(got == want);

    // Part r of every rank has (r + 1) * unit elements.
    const int64_t unit = count / 40;
    std::vector<int64_t> out_bounds = {0}, in_bounds = {0};
    std::vector<int> out_lengths, out_starts, in_lengths, in_starts;
    for (int r = 0; r < n; ++r) {
      out_lengths.push_back(static_cast<int>(unit * (r + 1)));
      out_starts.push_back(static_cast<int>(out_bounds.back()));
      out_bounds.push_back(out_bounds.back() + unit * (r + 1));
      in_lengths.push_back(static_cast<int>(unit * (me + 1)));
      in_starts.push_back(static_cast<int>(in_bounds.back()));
      in_bounds.push_back(in_bounds.back() + unit * (me + 1));
    }
    std::vector<double> out = random_vector(out_bounds.back()), in(static_cast<size_t>(in_bounds.back())),
                        want_in(in.size());
    MPI_Alltoallv(out.data(), out_lengths.data(), out_starts.data(), MPI_DOUBLE, want_in.data(), in_lengths.data(),
                  in_starts.data(), MPI_DOUBLE, comm);
    group.all_to_all(view_of(out), out_bounds, view_of(in), in_bounds, stream).wait(stream);
    EXPECT(in == want_in);

    if (n > 1) {
      const int next = (me + 1) % n, previous = (me + n - 1) % n;
      std::vector<double> from(mine.size()), want_from(mine.size());
      MPI_Sendrecv(mine.data(), static_cast<int>(count), MPI_DOUBLE, next, 1, want_from.data(), static_cast<int>(count),
                   MPI_DOUBLE, previous, 1, comm, MPI_STATUS_IGNORE);
      Ticket receive = group.receive(view_of(from), previous, stream);
      Ticket send = group.send(view_of(mine), next, stream);
      receive.wait(stream);
      send.wait(stream);
      EXPECT(from == want_from);
    }
    group.barrier().wait(stream);
  }
  EXPECT(counters.open == 0);
}

// Small operations do not wait for the end of a large one that was issued before them: between the same ranks many come
// and go while it is under way. Over TCP, with or without a latency, small ones take longer: the large one has to, too.
void check_fairness(Progress& progress, const std::vector<int>& ranks, bool apart) {
  const int64_t kLarge = (apart ? 64 : 16) << 20;  // floats
  constexpr int kSmall = 100;
  const int n = static_cast<int>(ranks.size()), me = progress.transport().rank();
  HostStream stream;
  WireCounters counters;
  Communicator large(progress, ranks, 8, Site::kDpGradient, &counters);
  Communicator small(progress, ranks, 9, Site::kControl, &counters);
  std::vector<float> data(static_cast<size_t>(kLarge)), part(static_cast<size_t>(kLarge / n));
  const View whole(data.data(), DType::f32, {kLarge});
  std::vector<int64_t> bounds;
  for (int r = 0; r <= n; ++r) bounds.push_back(kLarge / n * r);
  const View cut = whole.element_range(0, bounds.back()),
             mine = cut.element_range(bounds[static_cast<size_t>(me)], kLarge / n);
  // One large operation, and how many small ones came and went beside it, at the rank that saw the most.
  const auto beside_one = [&](const std::string& verb) {
    small.barrier().wait(stream);
    Ticket under_way;
    if (verb == "send" && me == 0) under_way = large.send(whole, 1, stream);
    if (verb == "send" && me == 1) under_way = large.receive(whole, 0, stream);
    if (verb == "all_gather") under_way = large.all_gather(mine, cut, bounds, stream);
    if (verb == "reduce_scatter")
      under_way = large.reduce_scatter(cut, bounds, View(part.data(), DType::f32, {kLarge / n}), false, stream);
    if (verb == "all_reduce") under_way = large.all_reduce(whole, ReduceKind::kSum, stream);
    if (verb == "broadcast") under_way = large.broadcast(whole, 0, stream);
    int beside = 0, most = 0;
    for (int i = 0; i < kSmall; ++i) {
      double value = 1.0;
      small.all_reduce(View(&value, DType::f64, {1}), ReduceKind::kSum, stream).wait(stream);
      EXPECT(value == n);
      beside += under_way.open();
    }
    under_way.wait(stream);
    MPI_Allreduce(&beside, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return most;
  };
  // Where ranks outnumber cores, two of them may be done before the others had their turn: some try shows
  // it. Operations that wait for each other let none pass, however often.
  for (const char* verb : {"send", "all_gather", "reduce_scatter", "all_reduce", "broadcast"}) {
    int most = 0;
    for (int attempt = 0; attempt < 10 && most < 3; ++attempt) most = std::max(most, beside_one(verb));
    if (me == 0) std::printf("%s of %d MiB: %d of %d small sums beside it\n", verb, apart ? 256 : 64, most, kSmall);
    EXPECT(most >= 3);
  }
}

// apart: each rank was started in an IPC namespace of its own, as on machines whose hosts have one name.
int run(bool apart) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 256);
  ::setrlimit(RLIMIT_NOFILE, &files);
  World world = open_world();
  ::getrlimit(RLIMIT_NOFILE, &files);
  EXPECT(files.rlim_cur == files.rlim_max);
  const int n = world.transport->size(), me = world.transport->rank();
  EXPECT(static_cast<int>(world.hosts.size()) == n);
  EXPECT(world.local_size == (apart ? 1 : n) && world.local_rank == (apart ? 0 : me));
  for (int r = 0; r < n; ++r) {
    EXPECT(world.hosts[static_cast<size_t>(r)] == world.hosts[0]);
    EXPECT(world.nodes[static_cast<size_t>(r)] == (apart ? r : 0));
  }
  {
    Progress progress(*world.transport, {.spin_us = 0});
    std::vector<int> everybody(static_cast<size_t>(n));
    std::iota(everybody.begin(), everybody.end(), 0);
    std::vector<int> pairs;
    for (int r = 0; r < n; ++r) pairs.push_back(r / 2);
    for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kDirect, Algorithm::kRing})
      check_group(progress, MPI_COMM_WORLD, everybody, 1 + static_cast<int>(algorithm), algorithm, {});
    check_group(progress, MPI_COMM_WORLD, everybody, 5, Algorithm::kTwoLevel, pairs);
    // Backwards, and every second rank.
    MPI_Comm backwards = MPI_COMM_NULL, parity = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, 0, n - me, &backwards);
    std::vector<int> reversed(everybody.rbegin(), everybody.rend());
    check_group(progress, backwards, reversed, 6, Algorithm::kAuto, {});
    MPI_Comm_split(MPI_COMM_WORLD, me % 2, me, &parity);
    std::vector<int> same;
    for (int r = me % 2; r < n; r += 2) same.push_back(r);
    check_group(progress, parity, same, 7, Algorithm::kRing, {});
    check_fairness(progress, everybody, apart);
    MPI_Comm_free(&backwards);
    MPI_Comm_free(&parity);
  }
  int total = 0;
  MPI_Allreduce(&failures, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (me == 0) std::printf("%d ranks: %d failures\n", n, total);
  return total == 0 ? 0 : 1;
}

}  // namespace
}  // namespace thinwire

int main(int argc, char**) {
  try {
    return thinwire::run(argc > 1);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
