// Shared memory between the ranks of a node: random traffic, messages out of turn, what is given up, and sleepers.
#include "parallel/wire/transport_node.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <thread>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "tests/comm/allocation_count.h"
#include "tests/comm/local_group.h"

namespace thinwire::transport_node_test {
namespace {

using std::chrono::microseconds;

// Runs body(transport) on threads that share the memory of nodes.
void run_nodes(int size, int per_node, const std::function<void(Transport&)>& body) {
  NodeMemories nodes(size, per_node);
  run_local_ranks(size, [&](Transport& transport) {
    const auto joined = nodes.join(transport);
    body(*joined);
  });
}

// What the transfers of one rank are waiting for: token -> bytes of those that are not over.
class Open {
 public:
  explicit Open(Transport& transport) : transport_(transport) {}
  void send(const void* data, size_t bytes, int peer, int tag) {
    const uint32_t token = next_++;
    if (!transport_.post_send(data, bytes, peer, tag, token)) open_[token] = bytes;
  }
  // Returns its token; may be over at once.
  uint32_t receive(void* data, size_t bytes, int peer, int tag) {
    const uint32_t token = next_++;
    if (transport_.post_receive(data, bytes, peer, tag, token)) return token;
    open_[token] = bytes;
    return token;
  }
  void poll() {
    std::array<Completion, 3> done;  // fewer than are often over at once
    const size_t n = transport_.poll(done);
    for (size_t i = 0; i < n; ++i) {
      EXPECT_EQ(open_.count(done[i].token), 1u) << "a token that is not open, or was reported before";
      open_.erase(done[i].token);
      bytes_[done[i].token] = done[i].bytes;
    }
    if (n == 0) std::this_thread::yield();
  }
  void finish() {
    while (!open_.empty()) poll();
  }
  void forget(uint32_t token) { open_.erase(token); }
  size_t count() const { return open_.size(); }
  size_t bytes_of(uint32_t token) const { return bytes_.at(token); }

 private:
  Transport& transport_;
  uint32_t next_ = 0;
  std::map<uint32_t, size_t> open_, bytes_;
};

struct Message {
  int from, to, tag;
  size_t bytes;
};

char byte_of(const Message& m, size_t number, size_t i) {
  return static_cast<char>(static_cast<size_t>(m.from) * 31 + static_cast<size_t>(m.tag) * 7 + number * 13 + i * 3 +
                           (i >> 8));
}

// Sizes around what fits into a header, a cell and a ring.
size_t random_bytes(std::mt19937_64& random) {
  constexpr size_t kEdges[] = {0, 1, 47, 48, 49, 64, 16383, 16384, 16385, 65536, 524288, 524289, 1200001};
  return random() % 2 == 0 ? kEdges[random() % std::size(kEdges)] : random() % 30000;
}

// Every pair exchanges messages of few tags; receives are posted in any order of tags and peers, before and after the
// messages come, and all arrive whole, in the order of posting within a tag.
TEST(TransportNode, RandomTrafficArrivesWholeAndInOrder) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    const bool many = seed % 20 == 0;  // so many ranks on a node that cells are small and few
    const int size = many ? 33 : 2 + static_cast<int>(random() % 6);
    const int per_node = many ? size : 2 + static_cast<int>(random() % 4);
    std::vector<Message> messages;
    for (int i = 0; i < (many ? 8 : 40) * size; ++i) {
      const int from = static_cast<int>(random() % static_cast<uint64_t>(size));
      const int to = (from + 1 + static_cast<int>(random() % static_cast<uint64_t>(size - 1))) % size;
      messages.push_back({from, to, static_cast<int>(random() % 3) * 1000, random_bytes(random)});
    }
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << size << " ranks, nodes of " << per_node);
    run_nodes(size, per_node, [&](Transport& transport) {
      const int me = transport.rank();
      Open open(transport);
      std::mt19937_64 mine(seed * 100 + static_cast<uint64_t>(me));
      std::vector<std::vector<char>> out(messages.size()), in(messages.size());
      // The lists of what is to be posted: sends in one order, receives per (peer, tag) in the senders' order.
      std::vector<size_t> sends;
      std::map<std::pair<int, int>, std::vector<size_t>> receives;
      for (size_t i = 0; i < messages.size(); ++i) {
        const Message& m = messages[i];
        if (m.from == me) sends.push_back(i);
        if (m.to == me) receives[{m.from, m.tag}].push_back(i);
      }
      std::vector<std::pair<int, int>> turns;
      for (const auto& [key, list] : receives) turns.insert(turns.end(), list.size(), key);
      std::shuffle(turns.begin(), turns.end(), mine);
      std::map<std::pair<int, int>, size_t> at;
      size_t sent = 0, received = 0;
      while (sent < sends.size() || received < turns.size()) {
        if (mine() % 3 == 0) open.poll();
        if (sent < sends.size() && (mine() % 2 == 0 || received == turns.size())) {
          const size_t i = sends[sent++];
          const Message& m = messages[i];
          out[i].resize(m.bytes + 1);
          for (size_t b = 0; b < m.bytes; ++b) out[i][b] = byte_of(m, i, b);
          open.send(out[i].data(), m.bytes, m.to, m.tag);
        } else if (received < turns.size()) {
          const auto key = turns[received++];
          const size_t i = receives[key][at[key]++];
          in[i].assign(messages[i].bytes + 1, 'x');
          open.receive(in[i].data(), messages[i].bytes, key.first, key.second);
        }
      }
      open.finish();
      for (size_t i = 0; i < messages.size(); ++i) {
        const Message& m = messages[i];
        if (m.to != me) continue;
        ASSERT_EQ(in[i][m.bytes], 'x') << "a byte behind the message was written";
        for (size_t b = 0; b < m.bytes; ++b)
          ASSERT_EQ(in[i][b], byte_of(m, i, b)) << "message " << i << " of " << m.bytes << " bytes, byte " << b;
      }
    });
  }
}

TEST(TransportNode, AShorterMessageSaysItsLengthALongerOneIsAnError) {
  for (const bool asked_first : {true, false}) {
    run_nodes(2, 2, [&](Transport& transport) {
      Open open(transport);
      std::vector<char> data(100000, 'a');
      if (transport.rank() == 0) {
        open.send(data.data(), 70000, 1, 5);
        open.send(data.data(), 30, 1, 6);
        open.finish();
        return;
      }
      std::vector<char> first(100000), second(48);
      if (!asked_first) {  // both lie there unasked once something else was asked for
        char none = 0;
        open.receive(&none, 1, 0, 9);
        for (int i = 0; i < 2000; ++i) open.poll();
        transport.withdraw(0);
        open.forget(0);
      }
      const uint32_t a = open.receive(first.data(), first.size(), 0, 5);
      const uint32_t b = open.receive(second.data(), second.size(), 0, 6);
      open.finish();
      EXPECT_EQ(open.bytes_of(a), 70000u);
      EXPECT_EQ(open.bytes_of(b), 30u);
      EXPECT_EQ(first[69999], 'a');
      EXPECT_EQ(first[70000], '\0');
    });
  }
  EXPECT_THROW(run_nodes(2, 2,
                         [](Transport& transport) {
                           Open open(transport);
                           std::vector<char> data(200);
                           if (transport.rank() == 0) open.send(data.data(), 200, 1, 1);
                           if (transport.rank() == 1) open.receive(data.data(), 199, 0, 1);
                           open.finish();
                         }),
               std::exception);
}

// What is given up is neither touched nor reported any more, and what comes behind it arrives.
TEST(TransportNode, GivenUpTransfersLeaveTheOthersWhole) {
  constexpr size_t kLarge = 3 << 20;  // more than a ring
  std::atomic<int> step{0};
  run_nodes(2, 2, [&](Transport& transport) {
    Open open(transport);
    std::vector<char> large(kLarge, 'l'), small(100, 's');
    if (transport.rank() == 0) {
      open.send(large.data(), kLarge, 1, 1);  // token 0: half of it lies in the ring
      open.send(small.data(), 100, 1, 2);     // token 1: not begun
      open.send(small.data(), 100, 1, 3);     // token 2
      EXPECT_EQ(open.count(), 3u);
      EXPECT_TRUE(transport.withdraw(0));
      EXPECT_TRUE(transport.withdraw(1));
      open.forget(0);
      open.forget(1);
      std::fill(large.begin(), large.end(), '?');  // its owner may do so now
      step = 1;
      open.finish();
      return;
    }
    while (step == 0) std::this_thread::yield();
    std::vector<char> got(kLarge, 'x'), third(100);
    const uint32_t a = open.receive(got.data(), kLarge, 0, 1);
    const uint32_t c = open.receive(third.data(), 100, 0, 3);
    open.finish();
    EXPECT_EQ(open.bytes_of(a), kLarge);
    EXPECT_EQ(got, std::vector<char>(kLarge, 'l'));
    EXPECT_EQ(open.bytes_of(c), 100u);
    EXPECT_EQ(third, small);
  });
  step = 0;
  run_nodes(2, 2, [&](Transport& transport) {
    Open open(transport);
    std::vector<char> large(kLarge, 'l'), small(100, 's');
    if (transport.rank() == 0) {
      open.send(large.data(), kLarge, 1, 1);
      open.send(small.data(), 100, 1, 2);
      while (step == 0) std::this_thread::yield();  // the other half stays away until the receive is given up
      open.finish();
      return;
    }
    // A receive that is given up in the middle, and one that has not begun.
    std::vector<char> got(kLarge, 'x'), second(100);
    open.receive(got.data(), kLarge, 0, 1);
    open.receive(second.data(), 100, 0, 7);
    while (got[0] == 'x') open.poll();
    EXPECT_TRUE(transport.withdraw(0));
    EXPECT_TRUE(transport.withdraw(1));
    open.forget(0);
    open.forget(1);
    step = 1;
    std::fill(got.begin(), got.end(), 'y');
    open.receive(second.data(), 100, 0, 2);
    open.finish();
    EXPECT_EQ(second, small);
    EXPECT_EQ(got, std::vector<char>(kLarge, 'y'));
  });
}

// A rank that sleeps is woken by what it waits for, long before its limit; so is a sender who waits for room.
TEST(TransportNode, SleepersAreWoken) {
  constexpr microseconds kLimit{20'000'000};
  const auto begin = std::chrono::steady_clock::now();
  run_nodes(2, 2, [&](Transport& transport) {
    const int peer = 1 - transport.rank();
    std::vector<char> data(5 << 20, 'd'), got(5 << 20);
    std::array<Completion, 4> done;
    const auto wait = [&](size_t left) {
      while (left > 0) {
        const uint32_t heard = transport.listen();
        const size_t n = transport.poll(done);
        EXPECT_TRUE(transport.all_wake());
        if (n == 0) transport.sleep(heard, kLimit);
        transport.stop_listening();
        left -= n;
      }
    };
    for (int round = 0; round < 200; ++round) {
      const size_t bytes = round % 20 == 0 ? data.size() : static_cast<size_t>(round);
      const bool first = transport.rank() == round % 2;
      if (first && round % 4 == 0) std::this_thread::sleep_for(microseconds(300));
      if (first) wait(transport.post_send(data.data(), bytes, peer, round, 0) ? 0 : 1);
      wait(transport.post_receive(got.data(), bytes, peer, round, 1) ? 0 : 1);
      if (!first) wait(transport.post_send(data.data(), bytes, peer, round, 0) ? 0 : 1);
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLimit) << "somebody slept through the bell";
}

TEST(TransportNode, SteadyStateAllocatesNothing) {
  std::vector<int64_t> counts;  // of rank 0
  counts.reserve(6);
  run_ranks(
      4,
      [&](Progress& progress) {
        HostStream stream;
        Communicator group(progress, all_ranks(4), 1, Site::kControl, nullptr);
        std::vector<float> data(100000), more(100000);
        const View whole(data.data(), DType::f32, {100000}), other(more.data(), DType::f32, {100000});
        const int me = progress.transport().rank();
        const auto rounds = [&](int n) {
          for (int i = 0; i < n; ++i) {
            group.all_reduce(whole, ReduceKind::kMax, stream).wait(stream);
            // Sent before it is asked for: the second message comes first.
            if (me == 0) {
              Ticket a = group.send(whole, 1, stream), b = group.send(other, 1, stream);
              a.wait(stream);
              b.wait(stream);
            }
            if (me == 1) {
              Ticket a = group.receive(whole, 0, stream);
              a.wait(stream);
              group.receive(other, 0, stream).wait(stream);
            }
            group.barrier().wait(stream);
          }
        };
        rounds(300);
        for (int window = 0; window <= 5; ++window) {
          group.barrier().wait(stream);
          if (me == 0) counts.push_back(allocations_of_the_process());
          group.barrier().wait(stream);
          rounds(100);
        }
      },
      0, {.spin_us = 0}, 4);
  EXPECT_LE(middle_growth(counts), 1) << "allocations in 100 rounds";
}

// Who waits through a ring for a rank that has failed learns it from the transport beneath.
TEST(TransportNode, AFailureEndsTheWaitsOfTheOthers) {
  EXPECT_THROW(run_ranks(
                   2,
                   [](Progress& progress) {
                     HostStream stream;
                     Communicator group(progress, all_ranks(2), 1, Site::kControl, nullptr);
                     group.barrier().wait(stream);
                     if (group.rank() == 1) throw Error(ExitCode::kBadData, "left");
                     float value = 0.0f;
                     group.receive(View(&value, DType::f32, {1}), 1, stream).wait(stream);
                   },
                   0, {.spin_us = 0}, 2),
               Error);
}

int64_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

// The memory of a node among this process's maps, opened through /proc; -1 where this user may not. The other rank may
// be done and its map gone meanwhile: the next line is that of the same memory.
int open_node_memory() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:thinwire-node") == std::string::npos) continue;
    const int file = ::open(("/proc/self/map_files/" + line.substr(0, line.find(' '))).c_str(), O_RDWR);
    if (file >= 0 || errno != ENOENT) return file;
  }
  ADD_FAILURE() << "no memory of a node is mapped";
  return -1;
}

// Whoever cut it would end every rank of the node with SIGBUS.
TEST(TransportNode, NobodyCanCutTheMemory) {
  run_local_ranks(2, [&](Transport& transport) {
    std::string notice;
    const auto joined = join_node(std::make_unique<Between>(transport), {0, 0}, true, notice);
    ASSERT_TRUE(joined->all_wake());
    const Descriptor memory(open_node_memory());
    if (!memory && errno == EPERM) GTEST_SKIP() << "/proc/self/map_files needs more rights";
    ASSERT_TRUE(memory);
    for (const off_t bytes : {off_t{0}, static_cast<off_t>(node_memory_bytes(2)) - 4096, off_t{1} << 30}) {
      EXPECT_EQ(::ftruncate(memory.get(), bytes), -1) << bytes;
      EXPECT_EQ(errno, EPERM);
    }
    EXPECT_EQ(memory.size(), node_memory_bytes(2));
  });
}

// Ranks of one node find each other; where one of them does not want to, or they are on different nodes, the transport
// stays what it was, and the first rank of the node is told why. No file stays open, no memory mapped.
TEST(TransportNode, RanksOfANodeFindTheirMemory) {
  const std::vector<int> nodes = {0, 1, 0, 2, 1, 0};
  const int64_t files = open_files();
  for (const int unwilling : {-1, 2}) {
    run_local_ranks(6, [&](Transport& transport) {
      const int me = transport.rank();
      std::string notice;
      const auto joined = join_node(std::make_unique<Between>(transport), nodes, me != unwilling, notice);
      const int node = nodes[static_cast<size_t>(me)];
      EXPECT_EQ(joined->all_wake(), node == 1 || (node == 0 && unwilling < 0)) << me;
      EXPECT_EQ(notice.empty(), me != 0 || unwilling < 0) << me << notice;
      Progress progress(*joined, {.spin_us = 0});
      HostStream stream;
      Communicator group(progress, all_ranks(6), 1, Site::kControl, nullptr);
      int64_t sum = 1 << me;
      group.all_reduce(View(&sum, DType::i64, {1}), ReduceKind::kSum, stream).wait(stream);
      EXPECT_EQ(sum, 63);
      group.barrier().wait(stream);
    });
  }
  EXPECT_EQ(open_files(), files);
}

// A node may have little: a container of Docker's has 64 MiB of it by default.
TEST(TransportNode, MemoryIsAsLargeAsPromised) {
  for (int ranks = 2; ranks <= kMostNodeRanks; ++ranks) {
    const size_t bytes = node_memory_bytes(ranks);
    EXPECT_EQ(bytes % 64, 0u);
    EXPECT_LT(bytes, size_t{34} << 20) << ranks << " ranks";
  }
  EXPECT_LT(node_memory_bytes(2), size_t{1030} << 10);
}

}  // namespace
}  // namespace thinwire::transport_node_test
