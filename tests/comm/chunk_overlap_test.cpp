// Encoding overlaps the wire: chunk k + 1 is packed while chunk k is under way. A transport keeps every transfer of
// chunk k under way until chunk k + 1 was packed, so that whoever waited for the one before the other would wait for
// ever.
#include <atomic>
#include <chrono>
#include <deque>
#include <map>

#include "parallel/collective/coded.h"
#include "tests/comm/between.h"
#include "tests/comm/coded_codecs.h"

namespace thinwire::chunk_overlap_test {
namespace {

constexpr int kChunks = 8;
constexpr int64_t kPiece = 128, kSlice = kChunks * kPiece;

class Counting final : public Block8 {
 public:
  explicit Counting(std::atomic<int>& packed) : packed_(packed) {}
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState* state) const override {
    ++packed_;
    return Block8::encode(msg, in, out, state);
  }

 private:
  std::atomic<int>& packed_;
};

// Reports transfer number o (of sends, of receives) once `ahead` more chunks than o + 1 are packed, or there are none.
class Holding final : public Between {
 public:
  Holding(Transport& inner, const std::atomic<int>& packed, int ahead, std::chrono::milliseconds patience)
      : Between(inner), packed_(packed), ahead_(ahead), patience_(patience) {}
  bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    number_[token] = sends_++;
    if (Between::post_send(data, bytes, peer, tag, token)) over_.push_back({token, bytes});
    return false;
  }
  bool post_receive(void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    number_[token] = receives_++;
    if (Between::post_receive(data, bytes, peer, tag, token)) over_.push_back({token, bytes});
    return false;
  }
  size_t poll(std::span<Completion> done) override {
    Completion some[16];
    for (size_t n; (n = Between::poll(some)) > 0;) over_.insert(over_.end(), some, some + n);
    // Whoever does not pack ahead is let go in the end, and found out.
    const bool late = gave_up || std::chrono::steady_clock::now() - since_ > patience_;
    size_t reported = 0;
    for (auto it = over_.begin(); it != over_.end() && reported < done.size();) {
      const bool ahead = packed_ >= std::min(number_.at(it->token) + 1 + ahead_, kChunks);
      if (!ahead && !late) {
        ++it;
        continue;
      }
      gave_up = gave_up || !ahead;
      done[reported++] = *it;
      number_.erase(it->token);
      it = over_.erase(it);
      since_ = std::chrono::steady_clock::now();
    }
    return reported;
  }
  bool withdraw(uint32_t token) noexcept override {
    const auto it = std::find_if(over_.begin(), over_.end(), [&](const Completion& c) { return c.token == token; });
    if (it == over_.end()) return Between::withdraw(token);
    over_.erase(it);
    return true;
  }
  bool gave_up = false;

 private:
  const std::atomic<int>& packed_;
  int ahead_, sends_ = 0, receives_ = 0;
  std::chrono::milliseconds patience_;
  std::map<uint32_t, int> number_;
  std::deque<Completion> over_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

// Whether rank 0 packed `ahead` chunks further than what was under way, in each verb.
bool packs_ahead(int verb, int ahead, std::chrono::milliseconds patience) {
  bool ok = true;
  run_local_ranks(2, [&](Transport& transport) {
    std::atomic<int> packed{0};
    const auto coder = coder_of(std::make_shared<Counting>(packed));
    const bool first = transport.rank() == 0;
    Holding holding(transport, packed, first ? ahead : -kChunks, patience);
    Progress progress(holding, {.spin_us = 0});
    CodedRank rank(progress, 2, small_chunks(4 * kPiece));
    Buffer whole(DType::f32, 2 * kSlice), part(DType::f32, kSlice);
    whole.fill(1, rank.me()), part.fill(2, rank.me());
    const CodedCall call = rank.call(coder.get());
    const std::vector<int64_t> bounds = {0, kSlice, 2 * kSlice};
    if (verb == 0)
      rank.run(coded_reduce_scatter(rank.group.lane(), call, whole.view(), bounds_in(rank.group, bounds), part.view(),
                                    false));
    else if (verb == 1)
      rank.run(coded_all_gather(rank.group.lane(), call, part.view(), whole.view(), bounds_in(rank.group, bounds)));
    else if (first)
      rank.run(coded_send(rank.group.lane_to(1), call, part.view(), 1));
    else
      rank.run(coded_receive(rank.group.lane_from(0), call, part.view(), 0));
    if (!first) return;
    EXPECT_EQ(packed, kChunks);
    ok = !holding.gave_up;
  });
  return ok;
}

TEST(ChunkOverlap, NextChunkIsPackedWhileOneTravels) {
  for (int verb = 0; verb < 3; ++verb) {
    EXPECT_TRUE(packs_ahead(verb, 1, std::chrono::seconds(10))) << "verb " << verb;
    EXPECT_TRUE(packs_ahead(verb, 2, std::chrono::seconds(10))) << "verb " << verb;  // kInFlight: three are under way
  }
}

// There are buffers for three: a fourth waits until the first has left. (The transport gives up after a while.)
TEST(ChunkOverlap, NoMoreThanThreeAreUnderWay) {
  EXPECT_FALSE(packs_ahead(2, 3, std::chrono::milliseconds(200)));
}

}  // namespace
}  // namespace thinwire::chunk_overlap_test
