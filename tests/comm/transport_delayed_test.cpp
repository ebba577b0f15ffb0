// An emulated latency: random traffic that comes late and whole, neighbours that are not held back, and what is given
// up.
#include "parallel/wire/transport_delayed.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "engine/base/core/error.h"
#include "tests/comm/between.h"
#include "tests/support/local_world.h"

namespace thinwire::transport_delayed_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kRanks = 4, kTagsUsed = 3, kMessages = 40;

std::unique_ptr<Transport> delayed(Transport& transport, milliseconds delay) {
  return delayed_transport(std::make_unique<Between>(transport), {0, 0, 1, 1}, delay);
}

// Polls with little room until all of `open` are over; a receive is told to over(token, bytes).
template <typename Over>
void finish(Transport& transport, std::map<uint32_t, bool>& open, const Over& over) {
  std::array<Completion, 2> done;
  while (!open.empty()) {
    const size_t n = transport.poll(done);
    for (size_t i = 0; i < n; ++i) {
      const auto it = open.find(done[i].token);
      ASSERT_NE(it, open.end()) << "not open, or reported twice";
      if (it->second) over(done[i].token, done[i].bytes);
      open.erase(it);
    }
    if (n == 0) std::this_thread::yield();
  }
}

// Message `number` from one rank to another: when it was sent, and bytes that nobody else sends.
std::vector<char> message(int from, int to, int number) {
  std::mt19937 random(static_cast<unsigned>(from * 1009 + to * 101 + number));
  std::vector<char> bytes(sizeof(Clock::rep) + random() % 5000);
  for (size_t i = sizeof(Clock::rep); i < bytes.size(); ++i) bytes[i] = static_cast<char>(random());
  return bytes;
}

TEST(TransportDelayed, WhatOtherNodesSendIsLateAndWhole) {
  constexpr milliseconds kDelay{3};
  for (const uint64_t seed : {0, 7}) {
    run_local_ranks(
        kRanks,
        [&](Transport& inner) {
          const auto transport = delayed(inner, kDelay);
          const int me = transport->rank();
          std::map<uint32_t, bool> open;
          std::map<uint32_t, std::pair<int, int>> which;
          std::map<uint32_t, std::vector<char>> sent, received;
          uint32_t token = 0;
          for (int number = 0; number < kMessages; ++number)
            for (int peer = 0; peer < kRanks; ++peer) {
              if (peer == me) continue;
              which[token] = {peer, number};
              std::vector<char>& place = received[token];
              place.resize(8000);
              if (!transport->post_receive(place.data(), place.size(), peer, number % kTagsUsed, token))
                open[token] = true;
              ++token;
              std::vector<char>& out = sent[token] = message(me, peer, number);
              const Clock::rep now = Clock::now().time_since_epoch().count();
              std::memcpy(out.data(), &now, sizeof now);
              if (!transport->post_send(out.data(), out.size(), peer, number % kTagsUsed, token)) open[token] = false;
              ++token;
            }
          finish(*transport, open, [&](uint32_t t, size_t bytes) {
            const auto [peer, number] = which.at(t);
            const std::vector<char> expected = message(peer, me, number);
            ASSERT_EQ(bytes, expected.size());
            EXPECT_EQ(std::memcmp(received[t].data() + 8, expected.data() + 8, bytes - 8), 0);
            Clock::rep then = 0;
            std::memcpy(&then, received[t].data(), sizeof then);
            if (peer / 2 != me / 2) {
              EXPECT_GE(Clock::now().time_since_epoch() - Clock::duration(then), kDelay);
            }
          });
        },
        seed);
  }
}

// 2 sends to its neighbour 3 after it has sent to 0, whose message is under way for longer than anybody waits for it.
TEST(TransportDelayed, NeighboursAreNotHeldBack) {
  constexpr std::chrono::minutes kDelay{5};
  Clock::time_point sent, near_came;
  std::atomic<bool> came = false;
  run_local_ranks(kRanks, [&](Transport& inner) {
    const auto transport = delayed(inner, kDelay);
    const int me = transport->rank();
    char far = 0, near = 0;
    std::map<uint32_t, bool> open;
    const auto post = [&](bool over, uint32_t token, bool receives) {
      if (!over) open[token] = receives;
    };
    if (me == 2) {
      sent = Clock::now();
      post(transport->post_send(&far, 1, 0, 1, 0), 0, false);
      post(transport->post_send(&near, 1, 3, 1, 1), 1, false);
    }
    if (me == 3) post(transport->post_receive(&near, 1, 2, 1, 0), 0, true);
    if (me == 0) {
      EXPECT_FALSE(transport->post_receive(&far, 1, 2, 1, 0));
      std::array<Completion, 4> done;
      while (!came) {
        EXPECT_EQ(transport->poll(done), 0u);
        std::this_thread::yield();
      }
      EXPECT_TRUE(transport->withdraw(0));
    }
    finish(*transport, open, [](uint32_t, size_t) {});
    if (me == 3) near_came = Clock::now(), came = true;
  });
  EXPECT_LT(near_came - sent, kDelay);
}

// Who looks late, or posts late, does not wait once more: a latency passes while others compute, and while what is
// polled for are other messages. Polls are counted, not time: who waits once more polls hundreds of times.
TEST(TransportDelayed, TheLatencyRunsFromTheSending) {
  constexpr milliseconds kDelay{200};
  for (const bool posts_late : {false, true}) {
    std::atomic<bool> sent = false;
    run_local_ranks(kRanks, [&](Transport& inner) {
      const auto transport = delayed(inner, kDelay);
      char byte = 1;
      std::map<uint32_t, bool> open;
      std::array<Completion, 4> done;
      if (transport->rank() == 2) {
        if (!transport->post_send(&byte, 1, 0, 1, 0)) open[0] = false;
        sent = true;
      }
      const auto post = [&] {
        if (!transport->post_receive(&byte, 1, 2, 1, 0)) open[0] = true;
      };
      const bool receives = transport->rank() == 0;
      if (receives) {
        if (!posts_late) post();
        while (!sent) std::this_thread::yield();
        std::this_thread::sleep_for(2 * kDelay);
        if (posts_late) {
          EXPECT_EQ(transport->poll(done), 0u);
        }
      }
      if (receives && posts_late) post();
      size_t came = 0;
      for (int polls = 0; receives && came == 0 && polls < 3; ++polls) came = transport->poll(done);
      if (receives) {
        EXPECT_EQ(came, 1u);
      }
      if (came > 0) open.clear();
      finish(*transport, open, [](uint32_t, size_t) {});
    });
  }
}

TEST(TransportDelayed, WhatIsGivenUpIsNotReported) {
  run_local_ranks(kRanks, [&](Transport& inner) {
    const auto transport = delayed(inner, milliseconds(2000));  // so late that the poll below comes in time
    char byte = 1, second = 2;
    std::map<uint32_t, bool> open;
    if (transport->rank() == 2) {
      if (!transport->post_send(&byte, 1, 0, 1, 0)) open[0] = false;
      if (!transport->post_send(&second, 1, 0, 2, 1)) open[1] = false;
    }
    if (transport->rank() == 0) {
      transport->post_receive(&byte, 1, 2, 1, 0);
      transport->post_receive(&second, 1, 2, 2, 1);
      std::this_thread::sleep_for(milliseconds(10));
      std::array<Completion, 4> done;
      EXPECT_EQ(transport->poll(done), 0u);
      EXPECT_TRUE(transport->withdraw(0));
      open[1] = true;
    }
    finish(*transport, open, [](uint32_t token, size_t) { EXPECT_EQ(token, 1u); });
  });
}

TEST(TransportDelayed, AWishThatIsNoNumberIsRefused) {
  for (const char* wish : {"5ms", "-1", "1e99", "10000001"}) {
    ::setenv("THINWIRE_DELAY_US", wish, 1);
    EXPECT_THROW(wished_delay(), Error) << wish;
  }
  ::setenv("THINWIRE_DELAY_US", "5000", 1);
  EXPECT_EQ(wished_delay().count(), 5000);
  ::unsetenv("THINWIRE_DELAY_US");
  EXPECT_EQ(wished_delay().count(), 0);
}

}  // namespace
}  // namespace thinwire::transport_delayed_test
