// The cases of `bench comm`: a verb at a size, proved against a float64 loop, then timed in turns with what it is
// compared to: MPI's own call, or for channel_ and checked_ cases the same verb without a channel or checksums.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/core/text.h"
#include "engine/run/bench/benches.h"
#include "parallel/channel/channel.h"
#include "parallel/collective/communicator.h"
#include "parallel/collective/tuning.h"
#include "parallel/wire/binding.h"
#include "parallel/wire/raw_mpi_bench.h"

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kSizes[] = {8, 64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
constexpr int kWindow = 64;
constexpr double kBlockSeconds = 3e-3;  // calls timed in one go
constexpr int kBlocks = 15;             // per side, in turns; their median counts

// What a rank contributes to element i: neighbouring ranks and elements differ.
float value(int rank, int64_t i) {
  return static_cast<float>((i * 7 + rank * 13) % 61 - 30) * (rank % 2 == 0 ? 0.37f : 1.21f);
}

// 1 if any of the first `count` elements is not wanted(i), else 0.
template <typename Wanted>
double unequal(const std::vector<float>& there, int64_t count, const Wanted& wanted) {
  for (int64_t i = 0; i < count; ++i)
    if (there[static_cast<size_t>(i)] != wanted(i)) return 1.0;
  return 0.0;
}

struct Case {
  std::string name;
  bool beside_plain = false;  // `theirs` is the communicator's verb; otherwise MPI's
  int64_t bytes = 0;
  std::function<void()> fill;  // fresh contents for the proof
  std::function<void()> ours, theirs;
  // Of what `ours` left, relative to the sum of magnitudes; of bytes that are only moved, 1 if one is wrong.
  std::function<double()> error;
  double tolerance = 0.0;
  double messages = 1.0;  // of one call, whose time is divided by them: 2 of a round trip, the window for message rates
};

class Bench {
 public:
  Bench(World& world, bool json)
      : world_(world), json_(json), rank_(world.transport->rank()), size_(world.transport->size()) {
    const auto cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
    progress_ =
        std::make_unique<Progress>(*world.transport, ProgressOptions{.spin_us = world.local_size > cores ? 0 : 50});
    std::vector<int> all;
    for (int r = 0; r < size_; ++r) all.push_back(r);
    communicator_ = std::make_unique<Communicator>(*progress_, all, 0, Site::kControl, nullptr, world.nodes);
    CommTuning checked;
    checked.checksums = Checksums::kAll;
    checked_ = std::make_unique<Communicator>(*progress_, all, 2, Site::kControl, nullptr, world.nodes, checked);
    channel_ = Channel(std::make_unique<Communicator>(*progress_, all, 1, Site::kDpGradient, &counters_, world.nodes),
                       SiteCompressions(), &clock_, &counters_, std::make_shared<ChannelStates>("dp.gradient/0"));
  }

  int run(const std::string& filter) {
    for (int64_t bytes : kSizes) add_point_to_point(bytes);
    Case barrier;
    barrier.name = "barrier/0";
    barrier.fill = [] {};
    barrier.ours = [this] { communicator_->barrier().wait(stream_); };
    barrier.theirs = [] { raw_mpi::barrier(); };
    barrier.error = [] { return 0.0; };
    cases_.push_back(barrier);
    for (int64_t bytes : kSizes) add_collectives(bytes);
    std::stable_sort(cases_.begin(), cases_.end(), [](const Case& a, const Case& b) {
      return a.name.substr(0, a.name.find('/')) < b.name.substr(0, b.name.find('/'));
    });
    const auto matches = [&](const std::string& name) {
      // A filter that ends a name ends there: all_reduce/8 is not all_reduce/8192.
      return name.find(filter) != std::string::npos &&
             (filter.find('/') == std::string::npos || name.ends_with(filter) || filter.ends_with('/'));
    };
    std::erase_if(cases_, [&](const Case& c) { return !matches(c.name); });
    std::vector<int64_t> overlaps;
    for (int64_t bytes : kSizes)
      if (bytes >= (256 << 10) && matches("overlap/" + std::to_string(bytes))) overlaps.push_back(bytes);
    if (cases_.empty() && overlaps.empty()) {
      throw_usage("bench comm: no case's name contains \"" + filter +
                  "\" (known: ping_pong, message_rate, all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, "
                  "barrier, overlap, beside MPI's calls that only start: mpi_isend, mpi_iallgather, mpi_ialltoall, "
                  "mpi_ibcast, and beside "
                  "the same verb without a channel: channel_all_reduce, channel_reduce_scatter, channel_all_gather, or "
                  "without checksums: checked_ping_pong, checked_all_reduce, checked_all_gather; "
                  "each with /BYTES)");
    }
    int64_t most = 0;
    for (const Case& c : cases_) most = std::max(most, c.bytes);
    for (int64_t bytes : overlaps) most = std::max(most, bytes);
    a_.assign(static_cast<size_t>(most / 4 + 16), 0.0f);
    b_.assign(static_cast<size_t>(most / 4 + 16 * size_), 0.0f);
    for (const Case& c : cases_) run_case(c);
    for (int64_t bytes : overlaps) overlap(bytes);
    return all_ok_ ? 0 : static_cast<int>(ExitCode::kInternal);
  }

 private:
  View whole(int64_t count) { return View(a_.data(), DType::f32, {count}); }
  View other(int64_t first, int64_t count) { return View(b_.data() + first, DType::f32, {count}); }
  // Between rank 0 and the last one; the others do nothing.
  void add_point_to_point(int64_t bytes) {
    const int64_t count = bytes / 4;
    const int last = size_ - 1;
    const bool first = rank_ == 0, partner = rank_ == last;
    const int peer = first ? last : 0;
    const auto n = static_cast<size_t>(bytes);
    Case c;
    c.name = "ping_pong/" + std::to_string(bytes), c.bytes = bytes, c.messages = 2.0;
    c.fill = [=, this] {
      for (int64_t i = 0; i < count; ++i) a_[static_cast<size_t>(i)] = first ? value(3, i) : 0.0f;
    };
    const auto ping_pong = [=, this](Communicator& by) {
      if (first) by.send(whole(count), peer, stream_).wait(stream_);
      if (first || partner) by.receive(whole(count), peer, stream_).wait(stream_);
      if (partner) by.send(whole(count), peer, stream_).wait(stream_);
    };
    c.ours = [=, this] { ping_pong(*communicator_); };
    const auto raw = [=, this](bool started) {
      if (first) raw_mpi::send(a_.data(), n, peer, started);
      if (first || partner) raw_mpi::receive(a_.data(), n, peer, started);
      if (partner) raw_mpi::send(a_.data(), n, peer, started);
    };
    c.theirs = [=] { raw(false); };
    c.error = [=, this] { return unequal(a_, first || partner ? count : 0, [](int64_t i) { return value(3, i); }); };
    cases_.push_back(c);
    add_beside_plain("checked_", c, [=, this] { ping_pong(*checked_); });
    add_started(c, "mpi_isend", [=] { raw(true); });
    if (bytes > (64 << 10)) return;
    // One way, a window of messages at once, then one back.
    c.name = "message_rate/" + std::to_string(bytes), c.messages = kWindow;
    c.ours = [=, this] {
      std::vector<Ticket> tickets;
      tickets.reserve(kWindow);
      for (int i = 0; i < kWindow && (first || partner); ++i) {
        tickets.push_back(first ? communicator_->send(whole(count), peer, stream_)
                                : communicator_->receive(whole(count), peer, stream_));
      }
      for (Ticket& ticket : tickets) ticket.wait(stream_);
      if (partner) communicator_->send(other(0, 1), peer, stream_).wait(stream_);
      if (first) communicator_->receive(other(0, 1), peer, stream_).wait(stream_);
    };
    c.theirs = [=, this] {
      if (first) raw_mpi::send_window(a_.data(), n, peer, kWindow);
      if (partner) raw_mpi::receive_window(a_.data(), n, peer, kWindow);
    };
    cases_.push_back(c);
  }
  // `bytes` is the whole vector, for every verb.
  void add_collectives(int64_t bytes) {
    const int64_t count = bytes / 4;
    const std::string size_text = "/" + std::to_string(bytes);
    std::vector<int64_t> bounds;
    std::vector<int> counts;
    for (int r = 0; r <= size_; ++r) bounds.push_back(count * r / size_);
    for (int r = 0; r < size_; ++r)
      counts.push_back(static_cast<int>(bounds[static_cast<size_t>(r) + 1] - bounds[static_cast<size_t>(r)]));
    const int64_t first = bounds[static_cast<size_t>(rank_)], mine = counts[static_cast<size_t>(rank_)];
    const auto fill = [=, this] {
      for (int64_t i = 0; i < count; ++i) a_[static_cast<size_t>(i)] = value(rank_, i);
    };
    // Sums of n fp32 numbers differ from the exact one by at most (n - 1) roundings of partial sums.
    const auto sum_error = [this](int64_t at, int64_t n, const float* result) {
      double worst = 0.0;
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0.0, magnitude = 1e-30;
        for (int r = 0; r < size_; ++r) sum += value(r, at + i), magnitude += std::abs(value(r, at + i));
        const double e = std::abs(result[i] - sum) / magnitude;
        worst = e > worst || std::isnan(e) ? e : worst;
      }
      return worst;
    };
    const double rounding = (size_ - 1) * 0x1p-24;
    Case c;
    c.bytes = bytes;
    c.name = "all_reduce" + size_text, c.fill = fill, c.tolerance = rounding;
    const auto all_reduce = [=, this](auto& by) {
      by.all_reduce(whole(count), ReduceKind::kSum, stream_).wait(stream_);
    };
    c.ours = [=, this] { all_reduce(*communicator_); };
    c.theirs = [=, this] { raw_mpi::all_reduce(a_.data(), count); };
    c.error = [=, this] { return sum_error(0, count, a_.data()); };
    cases_.push_back(c);
    add_beside_plain("channel_", c, [=, this] { all_reduce(channel_); });
    add_beside_plain("checked_", c, [=, this] { all_reduce(*checked_); });
    c.name = "reduce_scatter" + size_text;
    const auto reduce_scatter = [=, this](auto& by) {
      by.reduce_scatter(whole(count), bounds, other(0, mine), false, stream_).wait(stream_);
    };
    c.ours = [=, this] { reduce_scatter(*communicator_); };
    c.theirs = [=, this] { raw_mpi::reduce_scatter(a_.data(), b_.data(), counts); };
    c.error = [=, this] { return sum_error(first, mine, b_.data()); };
    cases_.push_back(c);
    add_beside_plain("channel_", c, [=, this] { reduce_scatter(channel_); });
    c.name = "all_gather" + size_text, c.tolerance = 0.0;
    c.fill = [=, this] {
      std::fill_n(a_.begin(), count, 0.0f);
      for (int64_t i = 0; i < mine; ++i) b_[static_cast<size_t>(i)] = value(rank_, first + i);
    };
    const auto all_gather = [=, this](auto& by) {
      by.all_gather(other(0, mine), whole(count), bounds, stream_).wait(stream_);
    };
    c.ours = [=, this] { all_gather(*communicator_); };
    c.theirs = [=, this] { raw_mpi::all_gather(b_.data(), a_.data(), counts); };
    c.error = [=, this] {
      int owner = 0;
      return unequal(a_, count, [&](int64_t i) {
        while (i >= bounds[static_cast<size_t>(owner) + 1]) ++owner;
        return value(owner, i);
      });
    };
    cases_.push_back(c);
    add_beside_plain("channel_", c, [=, this] { all_gather(channel_); });
    add_beside_plain("checked_", c, [=, this] { all_gather(*checked_); });
    add_started(c, "mpi_iallgather", [=, this] { raw_mpi::all_gather(b_.data(), a_.data(), counts, true); });
    c.name = "all_to_all" + size_text, c.fill = fill;
    std::vector<int64_t> to_bounds;
    for (int r = 0; r <= size_; ++r) to_bounds.push_back(mine * r);
    c.ours = [=, this] {
      communicator_->all_to_all(whole(count), bounds, other(0, to_bounds.back()), to_bounds, stream_).wait(stream_);
    };
    c.theirs = [=, this] { raw_mpi::all_to_all(a_.data(), b_.data(), counts); };
    c.error = [=, this] {
      return unequal(b_, mine * size_, [=](int64_t i) { return value(static_cast<int>(i / mine), first + i % mine); });
    };
    cases_.push_back(c);
    add_started(c, "mpi_ialltoall", [=, this] { raw_mpi::all_to_all(a_.data(), b_.data(), counts, true); });
    c.name = "broadcast" + size_text;
    c.ours = [=, this] { communicator_->broadcast(whole(count), 0, stream_).wait(stream_); };
    c.theirs = [=, this] { raw_mpi::broadcast(a_.data(), static_cast<size_t>(bytes), 0); };
    c.error = [=, this] { return unequal(a_, count, [](int64_t i) { return value(0, i); }); };
    cases_.push_back(c);
    add_started(c, "mpi_ibcast", [=, this] { raw_mpi::broadcast(a_.data(), static_cast<size_t>(bytes), 0, true); });
  }
  // A case's verb through a channel that compresses nothing, or with checksums, beside the case's own.
  void add_beside_plain(const char* with, const Case& plain, std::function<void()> ours) {
    Case c = plain;
    c.name = with + plain.name, c.beside_plain = true;
    c.theirs = plain.ours;
    c.ours = std::move(ours);
    cases_.push_back(c);
  }
  // The same verb beside MPI's call that only starts, and a wait for it.
  void add_started(Case c, const char* name, std::function<void()> theirs) {
    c.name = name + c.name.substr(c.name.find('/'));
    c.theirs = std::move(theirs);
    cases_.push_back(std::move(c));
  }
  // How much of an all-reduce hides behind work of the same length on the calling thread.
  void overlap(int64_t bytes) {
    const int64_t count = bytes / 4;
    const std::string name = "overlap/" + std::to_string(bytes);
    const auto busy = [](double time) {
      const auto start = Clock::now();
      while (std::chrono::duration<double>(Clock::now() - start).count() < time) {
      }
    };
    const auto ours = [&] { communicator_->all_reduce(whole(count), ReduceKind::kSum, stream_).wait(stream_); };
    const auto theirs = [&] { raw_mpi::all_reduce_beside(a_.data(), count, [] {}); };
    ours(), theirs();
    std::vector<double> hidden, mpi_hidden;
    for (int block = 0; block < kBlocks; ++block) {
      const double pure = seconds(ours, 1), mpi_pure = seconds(theirs, 1);
      const double both = seconds(
          [&] {
            Ticket ticket = communicator_->all_reduce(whole(count), ReduceKind::kSum, stream_);
            busy(pure);
            ticket.wait(stream_);
          },
          1);
      const double mpi_both =
          seconds([&] { raw_mpi::all_reduce_beside(a_.data(), count, [&] { busy(mpi_pure); }); }, 1);
      hidden.push_back(std::clamp(100.0 * (2.0 * pure - both) / pure, 0.0, 100.0));
      mpi_hidden.push_back(std::clamp(100.0 * (2.0 * mpi_pure - mpi_both) / mpi_pure, 0.0, 100.0));
    }
    if (rank_ != 0) return;
    const nlohmann::ordered_json line = {{"bench", "comm"},
                                         {"case", name},
                                         {"ranks", size_},
                                         {"bytes", bytes},
                                         {"overlap_percent", median(hidden)},
                                         {"mpi_overlap_percent", median(mpi_hidden)},
                                         {"command", command_of(name)}};
    print_line(json_ ? line.dump()
                     : printed("%-26s %10.0f %%   MPI %10.0f %%   of an all-reduce hidden behind work  | %s",
                               name.c_str(), median(hidden), median(mpi_hidden), command_of(name).c_str()));
  }
  // Our own collective, not MPI's: a rank that arrives early in MPI's would spin on a core that another rank needs.
  double largest(double mine) {
    communicator_->all_reduce(View(&mine, DType::f64, {1}), ReduceKind::kMax, stream_).wait(stream_);
    return mine;
  }
  // Seconds of one of `times` calls on the slowest rank.
  double seconds(const std::function<void()>& call, int64_t times) {
    communicator_->barrier().wait(stream_);
    const auto start = Clock::now();
    for (int64_t i = 0; i < times; ++i) call();
    const double mine = std::chrono::duration<double>(Clock::now() - start).count();
    return largest(mine) / static_cast<double>(times);
  }
  void run_case(const Case& c) {
    std::fill(b_.begin(), b_.end(), NAN);  // what the case before left there would be right here, too
    c.fill();
    communicator_->barrier().wait(stream_);
    c.ours();
    const double error = largest(c.error());
    const bool ok = error <= c.tolerance;
    all_ok_ = all_ok_ && ok;
    c.theirs();
    const double once = std::min(seconds(c.ours, 2), seconds(c.theirs, 2));
    const auto times = static_cast<int64_t>(std::clamp(kBlockSeconds / std::max(once, 1e-7), 1.0, 20000.0));
    std::vector<double> ours, theirs, ratios;
    for (int block = 0; block < kBlocks; ++block) {
      ours.push_back(seconds(c.ours, times) * 1e6 / c.messages);
      theirs.push_back(seconds(c.theirs, times) * 1e6 / c.messages);
      // A ratio per block: both sides of a block meet the same speed of the machine.
      ratios.push_back(ours.back() / theirs.back());
    }
    if (rank_ != 0) return;
    const double us = median(ours), their_us = median(theirs), ratio = median(ratios);
    const nlohmann::ordered_json line = {
        {"bench", "comm"},    {"case", c.name},
        {"ranks", size_},     {"bytes", c.bytes},
        {"us", us},           {c.beside_plain ? "plain_us" : "mpi_us", their_us},
        {"ratio", ratio},     {"gbytes_per_s", static_cast<double>(c.bytes) / us * 1e-3},
        {"rel_error", error}, {"tolerance", c.tolerance},
        {"ok", ok},           {"command", command_of(c.name)}};
    print_line(json_ ? line.dump()
                     : printed("%-26s %11.2f us  %s %11.2f us  ratio %5.2f %8.2f GB/s  error %.1e %s  | %s",
                               c.name.c_str(), us, c.beside_plain ? "plain" : "MPI", their_us, ratio,
                               static_cast<double>(c.bytes) / us * 1e-3, error, ok ? "ok" : "FAIL",
                               command_of(c.name).c_str()));
  }
  std::string command_of(const std::string& name) const {
    return "mpirun -n " + std::to_string(size_) + " build/bench comm " + name;
  }

  World& world_;
  bool json_, all_ok_ = true;
  int rank_, size_;
  HostStream stream_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Communicator> communicator_, checked_;
  SiteCounters counters_;
  CompressionClock clock_;
  Channel channel_;
  std::vector<float> a_, b_;
  std::vector<Case> cases_;
};

}  // namespace

int bench_comm(const std::string& filter, bool json) {
  World world = open_world();
  if (world.transport->size() == 1) refuse_one_rank(filter);
  bind_to_cores(*world.transport, world.nodes);
  Bench bench(world, json);
  return bench.run(filter);
}

}  // namespace thinwire
