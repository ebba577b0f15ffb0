// What damaged payloads do: a bit that turns over on its way is told with peer, site and chunk, whatever carried it.
#include <map>
#include <mutex>
#include <set>

#include "engine/base/core/error.h"
#include "parallel/collective/coded.h"
#include "tests/comm/between.h"
#include "tests/comm/coded_codecs.h"

namespace thinwire::bad_payload_test {
namespace {

constexpr int64_t kPiece = 128;         // elements of fp32 in chunks of 512 bytes
constexpr int64_t kSlice = 3 * kPiece;  // three chunks of everything

struct Sent {
  int peer, tag;
  size_t bytes;
};

constexpr size_t kAll = SIZE_MAX;

// Turns a bit of one message over as it leaves, or makes all of it zero; whoever sent it keeps what he had.
class Flipping final : public Between {
 public:
  Flipping(Transport& inner, int at_send, size_t byte) : Between(inner), at_(at_send), byte_(byte) {}
  bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    sent.push_back({peer, tag, bytes});
    if (at_-- != 0) return Between::post_send(data, bytes, peer, tag, token);
    const char* from = static_cast<const char*>(data);
    damaged_.assign(from, from + bytes);
    if (byte_ == kAll)
      damaged_.assign(bytes, 0);
    else
      damaged_[byte_ % bytes] ^= 16;
    return Between::post_send(damaged_.data(), bytes, peer, tag, token);
  }
  std::vector<Sent> sent;

 private:
  int at_;
  size_t byte_;
  std::vector<char> damaged_;
};

struct Verb {
  const char* name;
  int nodes, local;
  std::function<Task(CodedRank&, const Coder*, Buffer& whole, Buffer& part)> task;
  // Who packed the payload that rank 0 sends as number `ordinal` to `peer` (on_second_tag: under the operation's other
  // tag): rank 0 itself, or whoever's payload it hands on.
  std::function<int(int peer, bool on_second_tag, int ordinal)> packer = [](int, bool, int) { return 0; };
  int n() const { return nodes * local; }
};

std::vector<int64_t> slices(int n) {
  std::vector<int64_t> bounds;
  for (int r = 0; r <= n; ++r) bounds.push_back(kSlice * r);
  return bounds;
}

std::vector<Verb> verbs() {
  const auto cuts = [](CodedRank& rank) { return bounds_in(rank.group, slices(rank.group.size())); };
  return {
      {"reduce_scatter", 1, 3,
       [=](CodedRank& r, const Coder* c, Buffer& whole, Buffer& part) {
         return coded_reduce_scatter(r.group.lane(), r.call(c), whole.view(), cuts(r), part.view(), false);
       }},
      {"all_reduce", 1, 3,
       [](CodedRank& r, const Coder* c, Buffer& whole, Buffer&) {
         return coded_all_reduce(r.group.lane(), r.call(c), r.call(c), whole.view());
       }},
      {"all_gather", 1, 3,
       [=](CodedRank& r, const Coder* c, Buffer& whole, Buffer& part) {
         return coded_all_gather(r.group.lane(), r.call(c), part.view(), whole.view(), cuts(r));
       }},
      {"send", 1, 2,
       [](CodedRank& r, const Coder* c, Buffer&, Buffer& part) {
         return r.me() == 0 ? coded_send(r.group.lane_to(1), r.call(c), part.view(), 1)
                            : coded_receive(r.group.lane_from(0), r.call(c), part.view(), 0);
       }},
      {"ring_reduce_scatter", 1, 3,
       [=](CodedRank& r, const Coder* c, Buffer& whole, Buffer& part) {
         return coded_reduce_scatter(r.group.lane(), r.call(c), whole.view(), cuts(r), part.view(), false,
                                     Algorithm::kRing);
       }},
      {"ring_all_reduce", 1, 3,
       [](CodedRank& r, const Coder* c, Buffer& whole, Buffer&) {
         return coded_all_reduce(r.group.lane(), r.call(c), r.call(c), whole.view(), Algorithm::kRing);
       },
       // Three chunks of two hops that code, three of its own sum, three of rank 2's.
       [](int, bool, int ordinal) { return ordinal < 9 ? 0 : 2; }},
      {"two_level_reduce_scatter", 2, 2,
       [=](CodedRank& r, const Coder* c, Buffer& whole, Buffer& part) {
         return coded_reduce_scatter(r.group.lane(), r.call(c), whole.view(), cuts(r), part.view(), false,
                                     Algorithm::kTwoLevel, r.call(c));
       }},
      {"two_level_all_gather", 2, 2,
       [=](CodedRank& r, const Coder* c, Buffer& whole, Buffer& part) {
         return coded_all_gather(r.group.lane(), r.call(c), part.view(), whole.view(), cuts(r), Algorithm::kTwoLevel);
       },
       // What rank 2 sent is handed on to rank 1 under the second tag.
       [](int, bool second, int) { return second ? 2 : 0; }},
      {"two_level_all_reduce", 2, 2,
       [](CodedRank& r, const Coder* c, Buffer& whole, Buffer&) {
         return coded_all_reduce(r.group.lane(), r.call(c), r.call(c), whole.view(), Algorithm::kTwoLevel, r.call(c));
       },
       [](int, bool second, int) { return second ? 2 : 0; }},
  };
}

struct Heard {
  std::vector<Sent> sent;           // by rank 0
  std::map<int, std::string> told;  // by rank that was told of a bad payload
};

// Rank 0's message number `at` is damaged on its way (-1: none). A rank that was told leaves, which ends the waits of
// the others.
Heard run_damaged(const Verb& verb, const Coder& coder, int at, size_t byte) {
  Heard heard;
  const int n = verb.n();
  std::mutex mutex;
  const auto body = [&](Transport& transport) {
    Flipping flipping(transport, transport.rank() == 0 ? at : -1, byte);
    Progress progress(flipping, {.spin_us = 0});
    CodedRank rank(progress, n, small_chunks(4 * kPiece), node_list(verb.nodes, verb.local));
    Buffer whole(DType::f32, n * kSlice), part(DType::f32, kSlice);
    whole.fill(1, rank.me()), part.fill(2, rank.me());
    const int64_t before = rank.group.pool().blocks_out();
    try {
      rank.run(verb.task(rank, &coder, whole, part));
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      if (error.code() == ExitCode::kHungPeer) throw;  // somebody else was told
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      heard.told[rank.me()] = error.what();
      // Nothing is left open by the one who was.
      EXPECT_EQ(rank.group.pool().blocks_out(), before);
      EXPECT_EQ(rank.counters.open, 0);
      for (const auto& slot : progress.core().slots) EXPECT_EQ(slot.owner, nullptr);
      throw;
    }
    if (rank.me() == 0) {
      const std::lock_guard lock(mutex);
      heard.sent = flipping.sent;
    }
  };
  try {
    run_local_ranks(n, body);
    EXPECT_TRUE(heard.told.empty());
  } catch (const Error&) {
    EXPECT_FALSE(heard.told.empty());
  }
  return heard;
}

class FlippedBit : public ::testing::TestWithParam<Verb> {};

// Every message that rank 0 sends, one after the other.
TEST_P(FlippedBit, IsToldWithPeerSiteAndChunk) {
  const Verb& verb = GetParam();
  const auto coder = coder_of(std::make_shared<Block8>(127.0f, true));
  const Heard whole = run_damaged(verb, *coder, -1, 0);
  ASSERT_FALSE(whole.sent.empty());
  int first_tag = whole.sent[0].tag;
  for (const Sent& s : whole.sent) first_tag = std::min(first_tag, s.tag);
  std::map<std::pair<int, int>, int> ordinals;
  std::set<int> chunks;
  for (size_t at = 0; at < whole.sent.size(); ++at) {
    const Sent& sent = whole.sent[at];
    const int ordinal = ordinals[{sent.peer, sent.tag}]++;
    const int chunk = ordinal % 3, packer = verb.packer(sent.peer, sent.tag != first_tag, ordinal);
    chunks.insert(chunk);
    // Anywhere in the payload: a scale, a code, a seal.
    for (const size_t byte : {size_t{0}, 7 + 29 * at, sent.bytes - 1}) {
      const Heard heard = run_damaged(verb, *coder, static_cast<int>(at), byte);
      SCOPED_TRACE(::testing::Message() << "message " << at << " of rank 0, number " << ordinal << " to rank "
                                        << sent.peer << ", byte " << byte);
      // Whoever hands payloads on may lose the race with those who got them from him: someone is told, and rightly.
      ASSERT_FALSE(heard.told.empty());
      EXPECT_EQ(heard.told.count(0), 0u) << "its sender had it as it was";
      for (const auto& [rank, message] : heard.told) {
        EXPECT_NE(message.find("rank " + std::to_string(packer) + " sent"), std::string::npos) << message;
        EXPECT_NE(message.find("site dp.gradient"), std::string::npos) << message;
        EXPECT_NE(message.find("chunk " + std::to_string(chunk) + " "), std::string::npos) << message;
        EXPECT_NE(message.find("seal"), std::string::npos) << message;
      }
    }
  }
  EXPECT_EQ(chunks, (std::set<int>{0, 1, 2}));
}

INSTANTIATE_TEST_SUITE_P(Every, FlippedBit, ::testing::ValuesIn(verbs()),
                         [](const auto& info) { return std::string(info.param.name); });

// Framed: a length and a payload per peer; bit 4 of its second byte makes the length longer by 4096. A length of 0
// would be taken for somebody who has nothing to add: weights became zeros.
TEST(BadPayload, LengthsThatNoPackerWritesAreRefused) {
  const auto coder = coder_of(std::make_shared<NonZeros>(8));
  for (const Verb& verb : verbs()) {
    const Heard whole = run_damaged(verb, *coder, -1, 0);
    SCOPED_TRACE(verb.name);
    int lengths = 0;
    for (size_t at = 0; at < whole.sent.size(); ++at) {
      if (whole.sent[at].bytes != 8) continue;
      ++lengths;
      for (const size_t damage : {size_t{1}, kAll}) {
        const Heard heard = run_damaged(verb, *coder, static_cast<int>(at), damage);
        ASSERT_FALSE(heard.told.empty()) << "message " << at;
        for (const auto& [rank, message] : heard.told) {
          EXPECT_NE(message.find(" sent a bad payload at site dp.gradient"), std::string::npos) << message;
          EXPECT_NE(message.find("its length is beyond"), std::string::npos) << message;
        }
      }
    }
    EXPECT_GE(lengths, 3);
  }
}

}  // namespace
}  // namespace thinwire::bad_payload_test
