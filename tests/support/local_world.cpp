// Ranks as threads of one process: a send and its receive are matched in the receiver's mailbox.
#include "tests/support/local_world.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

constexpr size_t kCopiedBytes = 4096;  // sends up to this size are copied into the mailbox and are over at once
constexpr int kRendezvous = -1;        // PostedSend::copy of the others: their memory is read once they are matched

struct PostedReceive {
  void* data;
  size_t bytes;
  int source, tag;
  uint32_t token;
};

struct PostedSend {
  const void* data;  // the sender's memory, or the mailbox's copy
  size_t bytes;
  int source, tag;
  uint32_t token;
  int copy;  // its number in Mailbox::copies, or kRendezvous
};

// The first posted one of this source and tag. Lists are in the order of posting.
template <typename T>
auto oldest(std::vector<T>& list, int source, int tag) {
  return std::find_if(list.begin(), list.end(), [&](const T& t) { return t.source == source && t.tag == tag; });
}

// A matched pair. Only with a seed: the bytes are copied when poll() reports the receive.
struct Met {
  PostedReceive receive;
  PostedSend send;
};

struct Mailbox {
  std::mutex mutex;
  // In the order of posting. They keep their capacity, so that nothing is allocated after the first steps.
  std::vector<PostedReceive> receives;
  std::vector<PostedSend> sends;
  std::vector<Met> met;
  std::vector<Completion> done;  // to be reported to this rank
  std::vector<std::unique_ptr<char[]>> copies;
  std::vector<int> free_copies;
  std::atomic<size_t> news{0};  // entries of done and met together: where it is 0, poll() takes no lock
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

  bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    check_arguments(peer, tag);
    Mailbox& box = world_->boxes[static_cast<size_t>(peer)];
    PostedSend send{data, bytes, rank_, tag, token, kRendezvous};
    std::lock_guard lock(box.mutex);
    if (const auto found = oldest(box.receives, rank_, tag); found != box.receives.end()) {
      const PostedReceive receive = *found;
      check_fits(receive, send);
      box.receives.erase(found);
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
    if (world_->seed == 0 && bytes <= kCopiedBytes) {
      if (box.free_copies.empty()) {
        box.copies.push_back(std::make_unique<char[]>(kCopiedBytes));
        box.free_copies.push_back(static_cast<int>(box.copies.size()) - 1);
      }
      send.copy = box.free_copies.back();
      box.free_copies.pop_back();
      char* const kept = box.copies[static_cast<size_t>(send.copy)].get();
      if (bytes > 0) std::memcpy(kept, data, bytes);
      send.data = kept;
    }
    box.sends.push_back(send);
    return send.copy != kRendezvous;
  }

  bool post_receive(void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    check_arguments(peer, tag);
    Mailbox& box = world_->boxes[static_cast<size_t>(rank_)];
    const PostedReceive receive{data, bytes, peer, tag, token};
    std::unique_lock lock(box.mutex);
    if (const auto found = oldest(box.sends, peer, tag); found != box.sends.end()) {
      const PostedSend send = *found;
      check_fits(receive, send);
      box.sends.erase(found);
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
      // Shorter than the receive allows: only a completion can tell the caller.
      report(rank_, {token, send.bytes});
      return false;
    }
    box.receives.push_back(receive);
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
    size_t gone = 0;
    // This rank's sends wait in the mailboxes of its peers, matched ones too.
    for (int r = 0; r < world_->size; ++r) {
      Mailbox& box = world_->boxes[static_cast<size_t>(r)];
      std::lock_guard lock(box.mutex);
      gone += std::erase_if(box.sends, [&](const PostedSend& s) {
        return s.source == rank_ && s.token == token && s.copy == kRendezvous;
      });
      const size_t met = std::erase_if(box.met, [&](const Met& m) {
        return (m.send.source == rank_ && m.send.token == token) || (r == rank_ && m.receive.token == token);
      });
      box.news -= met, gone += met;
      if (r != rank_) continue;
      gone += std::erase_if(box.receives, [&](const PostedReceive& p) { return p.token == token; });
      const size_t done = std::erase_if(box.done, [&](const Completion& c) { return c.token == token; });
      box.news -= done, gone += done;
    }
    return gone > 0;  // otherwise a peer has just met it, and its completion is on the way
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
    if (send.bytes > 0) std::memcpy(receive.data, send.data, send.bytes);
  }
  void report(int rank, Completion completion) {
    Mailbox& box = world_->boxes[static_cast<size_t>(rank)];
    std::lock_guard lock(box.mutex);
    box.done.push_back(completion);
    ++box.news;
  }

  // Reports some of what is over, in random order. Bytes are copied here: the latest moment that the contract allows.
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
  const auto left = [&](int r, const std::string& why) {
    std::lock_guard lock(mutex);
    if (!first) first = std::current_exception();
    world.fail("rank " + std::to_string(r) + " left" + why);
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        const auto endpoint = world.make_endpoint(r);
        body(*endpoint);
      } catch (const std::exception& e) {
        left(r, std::string(": ") + e.what());
      } catch (...) {
        left(r, "");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace thinwire
