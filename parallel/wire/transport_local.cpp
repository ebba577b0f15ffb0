// Ranks as threads: messages meet in the mailbox of the receiver and are copied once.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "parallel/wire/transport.h"

namespace thinwire {
namespace {

constexpr size_t kCopiedBytes = 4096;  // up to here a send does not wait for its receive
constexpr size_t kSmallBytes = 32;     // and up to here it is copied into its entry

// How a send keeps its bytes: the index of a buffer of the mailbox, or one of these.
constexpr int kRendezvous = -1, kInside = -2;

struct PostedReceive {
  void* data;
  size_t bytes;
  int source, tag;
  uint32_t token;
};

struct PostedSend {
  const void* data;  // of the sender, or of `copy`; not for kInside
  size_t bytes;
  int source, tag;
  uint32_t token;
  int copy;
  std::array<char, kSmallBytes> small;
};

// What waits for its counterpart, found by source and tag, in the order of posting. Entries are used again: the steady
// state allocates nothing.
template <typename T>
class MatchList {
 public:
  // The oldest entry of this source and tag; at: -1 if there is none. Good until the next change.
  struct Place {
    size_t bucket = 0;
    int before = -1, at = -1;
  };
  Place find(int source, int tag) const {
    Place place;
    if (buckets_.empty()) return place;
    place.bucket = bucket_of(source, tag);
    place.at = buckets_[place.bucket].first;
    for (; place.at >= 0; place.before = place.at, place.at = entry(place.at).next)
      if (entry(place.at).item.source == source && entry(place.at).item.tag == tag) break;
    return place;
  }
  const T& operator[](const Place& place) const { return entry(place.at).item; }
  void erase(const Place& place) {
    Bucket& bucket = buckets_[place.bucket];
    const int behind = entry(place.at).next;
    (place.before >= 0 ? entry(place.before).next : bucket.first) = behind;
    if (behind < 0) bucket.last = place.before;
    entry(place.at).next = free_;
    free_ = place.at;
    --used_;
  }
  void push(const T& item) {
    if (used_ == buckets_.size()) grow();
    if (free_ < 0) {
      free_ = static_cast<int>(entries_.size());
      entries_.push_back({});
    }
    const int at = free_;
    free_ = entry(at).next;
    entry(at) = {item, -1};
    append(at);
    ++used_;
  }
  template <typename Predicate>
  void erase_if(const Predicate& unwanted) {
    for (size_t b = 0; b < buckets_.size(); ++b) {
      for (Place place{b, -1, buckets_[b].first}; place.at >= 0;) {
        const int behind = entry(place.at).next;
        if (unwanted(entry(place.at).item)) {
          erase(place);
        } else {
          place.before = place.at;
        }
        place.at = behind;
      }
    }
  }

 private:
  struct Entry {
    T item;
    int next = -1;
  };
  struct Bucket {
    int first = -1, last = -1;
  };
  Entry& entry(int at) { return entries_[static_cast<size_t>(at)]; }
  const Entry& entry(int at) const { return entries_[static_cast<size_t>(at)]; }
  size_t bucket_of(int source, int tag) const {
    const uint64_t key = uint64_t{static_cast<uint32_t>(source)} << 32 | static_cast<uint32_t>(tag);
    return (key * 0x9E3779B97F4A7C15u >> 32) % buckets_.size();
  }
  void append(int at) {
    Bucket& bucket = buckets_[bucket_of(entry(at).item.source, entry(at).item.tag)];
    (bucket.last >= 0 ? entry(bucket.last).next : bucket.first) = at;
    bucket.last = at;
  }
  void grow() {
    const std::vector<Bucket> before = std::exchange(buckets_, std::vector<Bucket>(std::max<size_t>(8, 2 * used_)));
    for (const Bucket& bucket : before) {
      for (int at = bucket.first; at >= 0;) {
        const int behind = std::exchange(entry(at).next, -1);
        append(at);
        at = behind;
      }
    }
  }

  std::vector<Entry> entries_;
  std::vector<Bucket> buckets_;
  int free_ = -1;
  size_t used_ = 0;
};

// A message that has met its receive; only with a seed, where the copy happens when it is reported.
struct Met {
  PostedReceive receive;
  PostedSend send;
};

struct Mailbox {
  std::mutex mutex;
  MatchList<PostedReceive> receives;
  MatchList<PostedSend> sends;
  std::vector<Met> met;
  std::vector<Completion> done;  // to be reported to this rank
  std::vector<std::unique_ptr<char[]>> copies;
  std::vector<int> free_copies;
  std::atomic<size_t> news{0};  // done + met: a poll with nothing to do takes no lock
};

}  // namespace

struct LocalWorld::Shared {
  Shared(int size_, uint64_t seed_) : size(size_), seed(seed_), boxes(static_cast<size_t>(size_)) {}
  const int size;
  const uint64_t seed;
  std::vector<Mailbox> boxes;
  std::mutex failure_mutex;
  std::string failure;
  ExitCode failure_code = ExitCode::kHungPeer;
  std::atomic<bool> failed{false};

  void fail(ExitCode code, const std::string& message) {
    std::lock_guard lock(failure_mutex);
    if (failed.load()) return;
    failure = message;
    failure_code = code;
    failed.store(true);
  }
  void check() {
    if (!failed.load(std::memory_order_acquire)) return;
    std::lock_guard lock(failure_mutex);
    throw Error(failure_code, failure);
  }
};

namespace {

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalWorld::Shared> world, int rank)
      : world_(std::move(world)), rank_(rank), random_(world_->seed * 1000003 + static_cast<uint64_t>(rank)) {}

  int rank() const override { return rank_; }
  int size() const override { return world_->size; }
  const char* name() const override { return "threads"; }

  bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    check_arguments(peer, tag);
    Mailbox& box = world_->boxes[static_cast<size_t>(peer)];
    PostedSend send{data, bytes, rank_, tag, token, kRendezvous, {}};
    std::lock_guard lock(box.mutex);
    if (const auto place = box.receives.find(rank_, tag); place.at >= 0) {
      const PostedReceive receive = box.receives[place];
      check_fits(receive, send);
      box.receives.erase(place);
      if (world_->seed != 0) {
        box.met.push_back({receive, send});
        ++box.news;
        return false;
      }
      copy(receive, send);
      box.done.push_back({receive.token, bytes});
      ++box.news;
      return true;
    }
    if (world_->seed == 0 && bytes <= kSmallBytes) {
      send.copy = kInside;
      if (bytes > 0) std::memcpy(send.small.data(), data, bytes);
    } else if (world_->seed == 0 && bytes <= kCopiedBytes) {
      if (box.free_copies.empty()) {
        box.copies.push_back(std::make_unique<char[]>(kCopiedBytes));
        box.free_copies.push_back(static_cast<int>(box.copies.size()) - 1);
      }
      send.copy = box.free_copies.back();
      box.free_copies.pop_back();
      send.data = box.copies[static_cast<size_t>(send.copy)].get();
      std::memcpy(box.copies[static_cast<size_t>(send.copy)].get(), data, bytes);
    }
    box.sends.push(send);
    return send.copy != kRendezvous;
  }

  bool post_receive(void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    check_arguments(peer, tag);
    Mailbox& box = world_->boxes[static_cast<size_t>(rank_)];
    const PostedReceive receive{data, bytes, peer, tag, token};
    std::unique_lock lock(box.mutex);
    if (const auto place = box.sends.find(peer, tag); place.at >= 0) {
      const PostedSend send = box.sends[place];
      check_fits(receive, send);
      box.sends.erase(place);
      if (world_->seed != 0) {
        box.met.push_back({receive, send});
        ++box.news;
        return false;
      }
      copy(receive, send);
      if (send.copy >= 0) box.free_copies.push_back(send.copy);
      lock.unlock();
      if (send.copy == kRendezvous) report(send.source, {send.token, send.bytes});
      if (send.bytes == bytes) return true;
      // Shorter than it might be: only a completion can say so.
      report(rank_, {token, send.bytes});
      return false;
    }
    box.receives.push(receive);
    return false;
  }

  size_t poll(std::span<Completion> done) override {
    world_->check();
    Mailbox& box = world_->boxes[static_cast<size_t>(rank_)];
    if (box.news.load(std::memory_order_acquire) == 0 || done.empty()) return 0;
    if (world_->seed != 0) return poll_shuffled(box, done);
    std::lock_guard lock(box.mutex);
    const size_t n = std::min(done.size(), box.done.size());
    std::copy_n(box.done.begin(), n, done.begin());
    box.done.erase(box.done.begin(), box.done.begin() + static_cast<ptrdiff_t>(n));
    box.news -= n;
    return n;
  }

  bool withdraw(uint32_t token) noexcept override {
    // Sends wait in the peers' mailboxes, and so may messages that have met.
    for (int r = 0; r < world_->size; ++r) {
      Mailbox& box = world_->boxes[static_cast<size_t>(r)];
      std::lock_guard lock(box.mutex);
      box.sends.erase_if(
          [&](const PostedSend& s) { return s.source == rank_ && s.token == token && s.copy == kRendezvous; });
      box.news -= std::erase_if(box.met, [&](const Met& m) {
        return (m.send.source == rank_ && m.send.token == token) || (r == rank_ && m.receive.token == token);
      });
      if (r != rank_) continue;
      box.receives.erase_if([&](const PostedReceive& p) { return p.token == token; });
      box.news -= std::erase_if(box.done, [&](const Completion& c) { return c.token == token; });
    }
    return true;
  }

  [[noreturn]] void abort(int code) override {
    const std::string message = "rank " + std::to_string(rank_) + " ended the job with code " + std::to_string(code);
    world_->fail(static_cast<ExitCode>(code), message);
    throw Error(static_cast<ExitCode>(code), message);
  }

 private:
  void check_arguments(int peer, int tag) {
    world_->check();
    TW_CHECK(peer >= 0 && peer < world_->size && peer != rank_, "rank ", rank_, " to ", peer);
    TW_CHECK(tag >= 0 && tag < kTags, "tag ", tag);
  }
  static void check_fits(const PostedReceive& receive, const PostedSend& send) {
    TW_CHECK(send.bytes <= receive.bytes, "rank ", send.source, " sent ", send.bytes, " bytes into a receive of ",
             receive.bytes);
  }
  static void copy(const PostedReceive& receive, const PostedSend& send) {
    if (send.bytes > 0) std::memcpy(receive.data, send.copy == kInside ? send.small.data() : send.data, send.bytes);
  }
  void report(int rank, Completion completion) {
    Mailbox& box = world_->boxes[static_cast<size_t>(rank)];
    std::lock_guard lock(box.mutex);
    box.done.push_back(completion);
    ++box.news;
  }

  // Holds things back, and lets go of them in any order; memory is read and written as late as the rules allow.
  size_t poll_shuffled(Mailbox& box, std::span<Completion> done) {
    size_t n = 0;
    while (n < done.size() && random_() % 3 != 0) {
      Met met{};
      {
        std::lock_guard lock(box.mutex);
        const size_t choices = box.done.size() + box.met.size();
        if (choices == 0) break;
        const size_t pick = random_() % choices;
        --box.news;
        if (pick < box.done.size()) {
          done[n++] = box.done[pick];
          box.done.erase(box.done.begin() + static_cast<ptrdiff_t>(pick));
          continue;
        }
        met = box.met[pick - box.done.size()];
        box.met.erase(box.met.begin() + static_cast<ptrdiff_t>(pick - box.done.size()));
        copy(met.receive, met.send);
      }
      done[n++] = {met.receive.token, met.send.bytes};
      report(met.send.source, {met.send.token, met.send.bytes});
    }
    return n;
  }

  std::shared_ptr<LocalWorld::Shared> world_;
  int rank_;
  std::mt19937_64 random_;
};

}  // namespace

LocalWorld::LocalWorld(int size, uint64_t shuffle_seed) {
  TW_CHECK(size >= 1);
  shared_ = std::make_shared<Shared>(size, shuffle_seed);
}

LocalWorld::~LocalWorld() = default;

std::unique_ptr<Transport> LocalWorld::make_endpoint(int rank) {
  TW_CHECK(rank >= 0 && rank < shared_->size, "rank ", rank, " of ", shared_->size);
  return std::make_unique<LocalTransport>(shared_, rank);
}

void LocalWorld::fail(const std::string& message) {
  shared_->fail(ExitCode::kHungPeer, message);
}

void run_local_ranks(int size, const std::function<void(Transport&)>& body, uint64_t shuffle_seed) {
  LocalWorld world(size, shuffle_seed);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        const auto endpoint = world.make_endpoint(r);
        body(*endpoint);
      } catch (const std::exception& e) {
        {
          std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        world.fail("rank " + std::to_string(r) + " left: " + e.what());
      } catch (...) {
        {
          std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        world.fail("rank " + std::to_string(r) + " left");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace thinwire
