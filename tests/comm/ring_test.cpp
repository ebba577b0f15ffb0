// What goes around a ring: everybody ends with the bits that its owner has, the codes of every hop are those that the
// owner packed, and wire and price are the formula's; and messages that are handed back to their owners.
#include <mutex>

#include "parallel/channel/channel.h"
#include "tests/comm/coded_bytes.h"
#include "tests/comm/coded_codecs.h"
#include "tests/comm/real_codecs.h"
#include "tests/support/worst.h"

namespace thinwire::ring_test {
namespace {

// Hashes what is sent, in order.
class Recorder : public Between {
 public:
  using Between::Between;
  bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    const auto* p = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) hash_ = (hash_ ^ p[i]) * 0x100000001B3u;
    peer_ = peer;
    return Between::post_send(data, bytes, peer, tag, token);
  }
  uint64_t take() { return std::exchange(hash_, kStart); }
  int peer() const { return peer_; }

 private:
  static constexpr uint64_t kStart = 1469598103934665603u;
  uint64_t hash_ = kStart;
  int peer_ = -1;
};

std::shared_ptr<const SiteCompression> compression_of(std::shared_ptr<const Coder> coder) {
  if (coder == nullptr) return nullptr;
  auto compression = std::make_shared<SiteCompression>();
  compression->site = Site::kSequenceForward;
  compression->first = std::move(coder);
  return compression;
}

struct RingRank {
  RingRank(Progress& progress, int n, const CommTuning& tuning, const std::shared_ptr<const Coder>& coder)
      : tuning(tuning), channel(make(progress, n, 5, coder)), rehearsed(make(progress, n, 7, coder)) {
    rehearsed.rehearse(&price);
  }
  Channel make(Progress& progress, int n, int number, const std::shared_ptr<const Coder>& coder) {
    auto group = std::make_unique<Communicator>(progress, all_ranks(n), number, Site::kSequenceForward, &counters,
                                                std::vector<int>(), tuning);
    return Channel(std::move(group), {compression_of(coder)}, &clock, &counters,
                   std::make_shared<ChannelStates>("sequence.forward/" + std::to_string(number)));
  }
  CommTuning tuning;
  SiteCounters counters;
  CompressionClock clock;
  SitePrice price;
  Channel channel, rehearsed;
  HostStream stream;
};

// Runs body(rank, recorder) on n ranks.
template <typename Body>
void run_ring(int n, const CommTuning& tuning, const std::shared_ptr<const Coder>& coder, const Body& body) {
  run_local_ranks(n, [&](Transport& transport) {
    Recorder recorder(transport);
    Progress progress(recorder, {.spin_us = 0});
    RingRank rank(progress, n, tuning, coder);
    body(rank, recorder);
  });
}

std::vector<std::pair<std::string, std::shared_ptr<const Coder>>> coders() {
  return {
      {"plain", nullptr},
      {"block8", coder_of(std::make_shared<Block8>())},
      {"block8 sealed", coder_of(std::make_shared<Block8>(127.0f, true))},
      {"cast", RealCodec{real_spec("cast", [](CodecSpec& s) { s["format"] = "bf16"; })}.coder()},
      {"block_int", RealCodec{real_spec("block_int", [](CodecSpec& s) { s["bits"] = 8, s["block"] = 32; })}.coder()},
      {"framed", coder_of(std::make_shared<NonZeros>(8))}};
}

TEST(Ring, EverybodyGetsWhatTheOwnerHasAndCodesAreMadeOnce) {
  for (const auto& [name, coder] : coders()) {
    for (const int n : {2, 3, 4, 5, 8}) {
      std::mt19937_64 random(static_cast<uint64_t>(n));
      const DType dtype = n % 2 == 0 ? DType::f32 : DType::bf16;
      std::vector<int64_t> counts;
      int64_t total = 0, most = 0;
      for (int r = 0; r < n; ++r) {
        counts.push_back(1500 + static_cast<int64_t>(random() % 800));
        total += counts.back(), most = std::max(most, counts.back());
      }
      const auto bytes_of = [&](int owner) {
        const auto count = counts[static_cast<size_t>(owner)];
        const CommTuning tuning = small_chunks(1024);
        return coder == nullptr ? count * static_cast<int64_t>(size_of(dtype))
                                : coded_message_bytes(*coder, tuning, count, dtype);
      };
      SCOPED_TRACE(name + ", ranks " + std::to_string(n));
      std::vector<std::vector<uint64_t>> hops(static_cast<size_t>(n));            // by rank: hashes of what it sent
      std::vector<std::vector<std::vector<char>>> parts(static_cast<size_t>(n));  // by rank and owner
      std::vector<WireCounters> counted(static_cast<size_t>(n));
      std::mutex mutex;
      run_ring(n, small_chunks(1024), coder, [&](RingRank& rank, Recorder& recorder) {
        const int me = rank.channel.rank();
        const auto k = static_cast<size_t>(me);
        const auto count_of = [&](int owner) { return counts[static_cast<size_t>((owner + n) % n)]; };
        Buffer part(dtype, counts[k]), other(dtype, most);
        part.fill(7, me);
        std::vector<std::vector<char>> got(static_cast<size_t>(n));
        std::vector<uint64_t> sent;
        RingMessage ring = rank.channel.start_ring(part.view(), total, most, rank.stream);
        RingMessage rehearsal = rank.rehearsed.start_ring(part.view(), total, most, rank.stream);
        got[k].assign(part.bytes().begin(), part.bytes().end() - 1);
        Buffer both[2] = {Buffer(dtype, most), Buffer(dtype, most)};
        View held = part.view();
        recorder.take();
        for (int hop = 0; hop + 1 < n; ++hop) {
          const View next = both[hop % 2].view().element_range(0, count_of(me - hop - 1));
          rank.channel.hop(ring, held, next, rank.stream).wait(rank.stream);
          rank.rehearsed.hop(rehearsal, held, next, rank.stream).wait(rank.stream);
          const auto* bytes = static_cast<const char*>(next.data);
          got[static_cast<size_t>((me - hop - 1 + n) % n)].assign(bytes, bytes + next.bytes());
          sent.push_back(recorder.take());
          held = next;
        }
        const std::lock_guard lock(mutex);
        EXPECT_EQ(recorder.peer(), (me + 1) % n);
        int64_t bytes = 0, plain = 0;
        for (int hop = 0; hop + 1 < n; ++hop) {
          bytes += bytes_of((me - hop + n) % n);
          plain += count_of(me - hop) * static_cast<int64_t>(size_of(dtype));
        }
        EXPECT_EQ(rank.counters.logical_bytes, plain);
        EXPECT_EQ(rank.price.plain_bytes, plain);
        EXPECT_EQ(rank.price.bytes, bytes);
        if (rank.price.exact)
          EXPECT_EQ(rank.counters.wire_bytes, bytes);
        else
          EXPECT_LE(rank.counters.wire_bytes, bytes);
        hops[k] = sent, parts[k] = got;
      });
      for (int r = 0; r < n; ++r) {
        for (int owner = 0; owner < n; ++owner)
          ASSERT_EQ(parts[static_cast<size_t>(r)][static_cast<size_t>(owner)],
                    parts[static_cast<size_t>(owner)][static_cast<size_t>(owner)])
              << "rank " << r << " has other bits than their owner " << owner;
        // What rank r sends in hop h its neighbour passes on in hop h + 1.
        for (size_t hop = 0; hop + 2 < static_cast<size_t>(n); ++hop)
          ASSERT_EQ(hops[static_cast<size_t>((r + 1) % n)][hop + 1], hops[static_cast<size_t>(r)][hop]) << r;
      }
      // Coding changes the owner's numbers, too, as it changes everybody's.
      Buffer before(dtype, counts[0]);
      before.fill(7, 0);
      const std::vector<char> as_filled(before.bytes().begin(), before.bytes().end() - 1);
      const bool lossless = coder == nullptr || coder->traits().lossless || (name == "cast" && dtype == DType::bf16);
      EXPECT_EQ(parts[0][0] == as_filled, lossless);
    }
  }
}

// The n-th rank behind gets it, decoded from codes made here; whether it is coded follows from what all ranks have.
TEST(Ring, HandedBackOverAnyDistance) {
  for (const auto& [name, coder] : coders()) {
    for (const int n : {2, 3, 5}) {
      SCOPED_TRACE(name + ", ranks " + std::to_string(n));
      std::mutex mutex;
      run_ring(n, small_chunks(1024), coder, [&](RingRank& rank, Recorder&) {
        const int me = rank.channel.rank();
        const auto count_for = [](int owner) { return int64_t{700} + 37 * owner; };
        for (int distance = 1; distance < n; ++distance) {
          const int behind = (me - distance + n) % n, ahead = (me + distance) % n;
          Buffer mine(DType::f32, count_for(behind)), got(DType::f32, count_for(me)), theirs(DType::f32, count_for(me));
          mine.fill(static_cast<uint64_t>(distance), me), theirs.fill(static_cast<uint64_t>(distance), ahead);
          const int64_t total = n * 700 + 37 * n * (n - 1) / 2;
          rank.counters = {}, rank.price = {};
          rank.rehearsed.hand_back(mine.view(), got.view(), distance, total, rank.stream).wait(rank.stream);
          rank.channel.hand_back(mine.view(), got.view(), distance, total, rank.stream).wait(rank.stream);
          const std::lock_guard lock(mutex);
          // Codes of 8 bits are off by at most 1/127 of the largest number (half of it, where they are not rounded by
          // chance), which is below 1; bf16 by 2^-9.
          const double most = coder == nullptr || coder->traits().lossless ? 0.0 : 1.001 / 127;
          double worst = 0.0;
          for (int64_t i = 0; i < got.count(); ++i) worst = test::worse(worst, std::abs(got.get(i) - theirs.get(i)));
          EXPECT_LE(worst, most) << "over " << distance;
          EXPECT_EQ(rank.counters.logical_bytes, 4 * mine.count());
          EXPECT_EQ(rank.price.plain_bytes, 4 * mine.count());
          if (rank.price.exact)
            EXPECT_EQ(rank.counters.wire_bytes, rank.price.bytes);
          else
            EXPECT_LE(rank.counters.wire_bytes, rank.price.bytes);
        }
      });
    }
  }
}

}  // namespace
}  // namespace thinwire::ring_test
