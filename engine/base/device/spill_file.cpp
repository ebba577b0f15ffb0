// Transfers by io_uring or by a thread, and the file that they work on.
#include "engine/base/device/spill_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#ifdef THINWIRE_HAS_URING
#include <liburing.h>
#endif

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/core/text.h"

namespace thinwire {

// Transfers under way, and what became of them: an errno, 0 where it went well.
class SpillFile::Engine {
 public:
  struct Transfer {
    bool write = false, open = false;  // open: started, and not known to be done
    char* memory = nullptr;
    size_t left = 0;
    uint64_t offset = 0;
    int error = 0;
    std::chrono::steady_clock::time_point done;
    // result: bytes, or a negative errno. A transfer may be done in parts; at the end of the file, or of the disk,
    // there is none.
    void moved(int64_t result) {
      if (result == -EINTR || result == -EAGAIN) return;  // once more
      if (result <= 0)
        error = result < 0 ? static_cast<int>(-result) : EIO, left = 0;
      else
        memory += result, offset += static_cast<uint64_t>(result), left -= static_cast<size_t>(result);
      open = left > 0;
      if (!open) done = std::chrono::steady_clock::now();
    }
  };
  Engine(int file, int requests) : file_(file), transfers_(static_cast<size_t>(requests)) {}
  virtual ~Engine() = default;
  virtual const char* name() const = 0;
  virtual void start(int request, const Transfer& transfer) = 0;
  virtual Transfer wait(int request) = 0;

 protected:
  Transfer& at(int request) { return transfers_.at(static_cast<size_t>(request)); }
  int file_;
  std::vector<Transfer> transfers_;
};

namespace {

class ThreadEngine final : public SpillFile::Engine {
 public:
  ThreadEngine(int file, int requests) : Engine(file, requests) {
    queue_.reserve(static_cast<size_t>(requests));
    thread_ = std::thread([this] { work(); });
  }
  ~ThreadEngine() override {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  const char* name() const override { return "pread and pwrite on a thread"; }
  void start(int request, const Transfer& transfer) override {
    {
      const std::lock_guard lock(mutex_);
      at(request) = transfer;
      queue_.push_back(request);
    }
    wake_.notify_all();
  }
  Transfer wait(int request) override {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return !at(request).open; });
    return at(request);
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return over_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const int request = queue_.front();
      queue_.erase(queue_.begin());
      Transfer t = at(request);
      lock.unlock();
      while (t.left > 0) {
        const auto place = static_cast<off_t>(t.offset);
        const ssize_t n = t.write ? ::pwrite(file_, t.memory, t.left, place) : ::pread(file_, t.memory, t.left, place);
        t.moved(n < 0 ? -errno : n);
      }
      lock.lock();
      at(request) = t;
      done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<int> queue_;
  bool over_ = false;
  std::thread thread_;
};

#ifdef THINWIRE_HAS_URING
class UringEngine final : public SpillFile::Engine {
 public:
  UringEngine(int file, int requests)
      : Engine(file, requests),
        opened_(io_uring_queue_init(static_cast<unsigned>(std::max(8, requests)), &ring_, 0) == 0) {}
  bool opened() const { return opened_; }  // false where the system has no io_uring for us
  ~UringEngine() override {
    if (!opened_) return;
    // What is under way writes into memory that will be gone.
    for (Transfer& t : transfers_)
      while (t.open && reap(true)) {
      }
    io_uring_queue_exit(&ring_);
  }
  const char* name() const override { return "io_uring"; }
  void start(int request, const Transfer& transfer) override {
    at(request) = transfer;
    while (reap(false)) {
    }
    queue(request);
  }
  Transfer wait(int request) override {
    while (at(request).open && reap(true)) {
    }
    return at(request);
  }

 private:
  void queue(int request) {
    Transfer& t = at(request);
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    TW_CHECK(sqe != nullptr, "more transfers than requests");
    const auto bytes = static_cast<unsigned>(std::min<size_t>(t.left, size_t{1} << 30));
    if (t.write)
      io_uring_prep_write(sqe, file_, t.memory, bytes, t.offset);
    else
      io_uring_prep_read(sqe, file_, t.memory, bytes, t.offset);
    io_uring_sqe_set_data64(sqe, static_cast<uint64_t>(request));
    int result = 0;
    do result = io_uring_submit(&ring_);
    while (result == -EINTR || result == -EAGAIN);
    if (result < 0) t.moved(result);
  }
  // Takes one result; false where there is none (yet).
  bool reap(bool block) {
    io_uring_cqe* cqe = nullptr;
    int result = 0;
    do result = block ? io_uring_wait_cqe(&ring_, &cqe) : io_uring_peek_cqe(&ring_, &cqe);
    while (block && result == -EINTR);
    if (result != 0) {
      TW_CHECK(!block, "io_uring: ", std::strerror(-result));
      return false;
    }
    const int request = static_cast<int>(io_uring_cqe_get_data64(cqe)), moved = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    at(request).moved(moved);
    if (at(request).open) queue(request);
    return true;
  }

  io_uring ring_{};
  bool opened_;
};
#endif

std::unique_ptr<SpillFile::Engine> make_engine(int file, int requests, [[maybe_unused]] SpillFile::Way way) {
#ifdef THINWIRE_HAS_URING
  if (way == SpillFile::Way::kBest)
    if (auto ring = std::make_unique<UringEngine>(file, requests); ring->opened()) return ring;
#endif
  return std::make_unique<ThreadEngine>(file, requests);
}

}  // namespace

SpillFile::SpillFile(const std::string& directory, uint64_t bytes, int requests, Way way) : directory_(directory) {
  const auto fail = [&](const std::string& what) {
    throw_io("cannot " + what + " in " + directory + ": " + std::strerror(errno) +
             "; activation_offload disk needs that much room under run_dir");
  };
  const std::string path = directory + "/activations." + std::to_string(::getpid()) + ".XXXXXX";
  std::vector<char> name(path.begin(), path.end());
  name.push_back('\0');
  file_ = Descriptor(::mkostemp(name.data(), O_CLOEXEC));
  if (!file_) fail("make a file for " + mebibytes(bytes) + " of activations");
  ::unlink(name.data());
  // Not every file system can (tmpfs could not until Linux 6.5), and pages of the cache will do.
  direct_ = ::fcntl(file_.get(), F_SETFL, ::fcntl(file_.get(), F_GETFL) | O_DIRECT) == 0;
  if (bytes > 0 && ::fallocate(file_.get(), 0, 0, static_cast<off_t>(bytes)) != 0 &&
      (errno != EOPNOTSUPP || ::ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0))
    fail("take " + mebibytes(bytes) + " for activations");
  engine_ = make_engine(file_.get(), requests, way);
}

SpillFile::~SpillFile() = default;

void SpillFile::start(int request, bool write, void* memory, size_t bytes, uint64_t offset) {
  TW_CHECK(reinterpret_cast<uintptr_t>(memory) % kBlock == 0 && bytes % kBlock == 0 && offset % kBlock == 0,
           "a transfer of ", bytes, " bytes at ", offset);
  Engine::Transfer t;
  t.write = write, t.open = bytes > 0, t.memory = static_cast<char*>(memory), t.left = bytes, t.offset = offset;
  engine_->start(request, t);
}

std::optional<SpillPlace::Clock::time_point> SpillFile::wait(int request, Next) {
  const Engine::Transfer t = engine_->wait(request);
  if (t.error == 0) return t.done;
  throw_io(std::string("cannot ") + (t.write ? "write" : "read back") + " activations in " + directory_ + ": " +
           std::strerror(t.error) + "; the run goes on from its last checkpoint once the disk does");
}

std::string SpillFile::description() const {
  return std::string(engine_->name()) + (direct_ ? ", direct" : ", through the page cache");
}

}  // namespace thinwire
