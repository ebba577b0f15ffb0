// Every verb and algorithm where a send is over only when its receive was posted, with many operations in flight: the
// windows of the executor, its reuse of buffers and the turns among all-gathers must not close a circle of ranks that
// wait for each other. A circle shows as a test that does not end.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <mutex>
#include <tuple>

#include "tests/comm/coded_codecs.h"
#include "tests/comm/real_codecs.h"

namespace thinwire::rendezvous_test {
namespace {

// Receives that were posted and have no send yet, by (from, to, tag).
struct Board {
  std::mutex mutex;
  std::map<std::tuple<int, int, int>, int> open;
};

class Rendezvous : public Between {
 public:
  Rendezvous(Transport& inner, Board& board) : Between(inner), board_(board) {}

  bool post_receive(void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    const bool over = Between::post_receive(data, bytes, peer, tag, token);
    std::lock_guard lock(board_.mutex);
    ++board_.open[{peer, rank(), tag}];
    return over;
  }
  bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    waiting_[{peer, tag}].push_back({data, bytes, token});
    return false;
  }
  size_t poll(std::span<Completion> done) override {
    size_t reported = 0;
    for (auto& [to, sends] : waiting_) {
      while (!sends.empty() && reported < done.size() && take(to)) {
        const Send send = sends.front();
        sends.pop_front();
        if (Between::post_send(send.data, send.bytes, to.first, to.second, send.token))
          done[reported++] = {send.token, send.bytes};
      }
    }
    return reported + Between::poll(done.subspan(reported));
  }
  bool withdraw(uint32_t token) noexcept override {
    for (auto& [to, sends] : waiting_)
      if (std::erase_if(sends, [&](const Send& send) { return send.token == token; }) > 0) return true;
    return Between::withdraw(token);
  }

 private:
  struct Send {
    const void* data;
    size_t bytes;
    uint32_t token;
  };
  bool take(const std::pair<int, int>& to) {
    std::lock_guard lock(board_.mutex);
    int& open = board_.open[{rank(), to.first, to.second}];
    return open > 0 && open-- > 0;
  }
  Board& board_;
  std::map<std::pair<int, int>, std::deque<Send>> waiting_;
};

void run(int n, const std::function<void(Progress&)>& body) {
  Board board;
  run_local_ranks(
      n,
      [&](Transport& transport) {
        Rendezvous rendezvous(transport, board);
        Progress progress(rendezvous, {.thread = false, .spin_us = 0});
        body(progress);
      },
      static_cast<uint64_t>(n));
}

struct Case {
  int n, local;
  int64_t count;
  std::vector<int64_t> bounds;
  std::vector<int> nodes;
};
Case case_of(int n) {
  Case c{.n = n, .local = n, .count = 900 + 37 * n, .bounds = {}, .nodes = {}};
  for (int l = n / 2; l > 1; --l)
    if (n % l == 0 && c.local == n) c.local = l;
  for (int r = 0; r < n; ++r) c.nodes.push_back(c.local < n ? r / c.local : r < n - 1 ? 0 : 1);
  std::mt19937_64 random(static_cast<uint64_t>(n));
  c.bounds = ragged_bounds(random, c.count, n);
  return c;
}

const int kSizes[] = {2, 3, 4, 5, 6, 8, 9, 12, 16, 33};

TEST(Rendezvous, PlainVerbsInFlightTogether) {
  for (const int n : kSizes) {
    for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing, Algorithm::kTwoLevel}) {
      const Case c = case_of(n);
      run(n, [&](Progress& progress) {
        CodedRank rank(progress, n, small_chunks(256, algorithm), c.nodes);
        Communicator& group = rank.group;
        const int me = rank.me(), next = (me + 1) % n, previous = (me + n - 1) % n;
        std::deque<Buffer> kept;
        const auto buffer = [&](int64_t count) -> Buffer& {
          kept.emplace_back(DType::f32, count).fill(3, me);
          return kept.back();
        };
        const int64_t mine = c.bounds[static_cast<size_t>(me) + 1] - c.bounds[static_cast<size_t>(me)];
        std::vector<int64_t> cuts = {0};
        for (int r = 0; r < n; ++r) cuts.push_back(cuts.back() + mine);
        std::vector<Ticket> open;
        for (int round = 0; round < 2; ++round) {
          open.push_back(group.receive(buffer(c.count * 20).view(), previous, rank.stream));
          open.push_back(group.all_gather(buffer(mine).view(), buffer(c.count).view(), c.bounds, rank.stream));
          open.push_back(group.all_reduce(buffer(c.count).view(), ReduceKind::kSum, rank.stream));
          open.push_back(
              group.reduce_scatter(buffer(c.count).view(), c.bounds, buffer(mine).view(), true, rank.stream));
          open.push_back(group.all_gather(buffer(mine).view(), buffer(c.count).view(), c.bounds, rank.stream));
          open.push_back(
              group.all_to_all(buffer(c.count).view(), c.bounds, buffer(n * mine).view(), cuts, rank.stream));
          open.push_back(group.broadcast(buffer(c.count).view(), round, rank.stream));
          open.push_back(group.all_reduce(buffer(3).view(), ReduceKind::kMax, rank.stream));
          open.push_back(group.all_reduce(buffer(3).view(), ReduceKind::kSum, rank.stream));
          open.push_back(group.barrier());
          open.push_back(group.send(buffer(c.count * 20).view(), next, rank.stream));
        }
        for (auto ticket = open.rbegin(); ticket != open.rend(); ++ticket) ticket->wait(rank.stream);
      });
    }
  }
}

TEST(Rendezvous, CompressedVerbsInFlightTogether) {
  const auto cast = RealCodec{real_spec("cast", [](CodecSpec& s) { s.format = "bf16"; })}.coder();
  const auto framed = coder_of(std::make_shared<NonZeros>(8));
  for (const int n : {2, 3, 4, 6, 9, 16}) {
    for (const Coder* const coder : {static_cast<const Coder*>(nullptr), cast.get(), framed.get()}) {
      const Case c = case_of(n);
      run(n, [&](Progress& progress) {
        CodedRank rank(progress, n, small_chunks(512), c.nodes);
        Communicator& group = rank.group;
        const int me = rank.me(), next = (me + 1) % n, previous = (me + n - 1) % n;
        std::deque<Buffer> kept;
        const auto data = [&](int64_t count) {
          kept.emplace_back(DType::f32, count).fill(3, me);
          return kept.back().view();
        };
        const int64_t mine = c.bounds[static_cast<size_t>(me) + 1] - c.bounds[static_cast<size_t>(me)];
        const auto bounds = [&] { return bounds_in(group, c.bounds); };
        std::vector<Ticket> open;
        const auto start = [&](Task task) { open.push_back(group.start(std::move(task), "verb", 1)); };
        const CodedCall call = rank.call(coder);
        for (int round = 0; round < 2; ++round) {
          start(coded_receive(group.lane_from(previous), call, data(c.count), previous));
          start(coded_all_gather(group.lane(), call, data(mine), data(c.count), bounds()));
          start(coded_all_reduce(group.lane(), call, call, data(c.count)));
          start(coded_all_reduce(group.lane(), call, rank.call(nullptr), data(c.count)));
          start(coded_reduce_scatter(group.lane(), call, data(c.count), bounds(), data(mine), true));
          start(coded_all_gather(group.lane(), call, data(mine), data(c.count), bounds()));
          start(coded_ring_all_reduce(group.lane(), call, call, data(c.count)));
          start(coded_ring_reduce_scatter(group.lane(), call, data(c.count), bounds(), data(mine), false));
          if (c.local < n) {
            start(coded_two_level_all_reduce(group.lane(), call, call, call, data(c.count)));
            start(coded_two_level_all_gather(group.lane(), call, data(mine), data(c.count), bounds()));
          }
          start(coded_send(group.lane_to(next), call, data(c.count), next));
        }
        for (auto ticket = open.rbegin(); ticket != open.rend(); ++ticket) ticket->wait(rank.stream);
      });
    }
  }
}

}  // namespace
}  // namespace thinwire::rendezvous_test
