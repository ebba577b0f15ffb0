// A file for memory that waits: blocks go out and come back behind the computation. It has no name, so that nothing is
// left of it whatever happens, and its room on the disk is taken at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace thinwire {

class SpillFile {
 public:
  // Memory, sizes and places are multiples of it: what direct I/O asks for.
  static constexpr size_t kBlock = 4096;
  enum class Way { kBest, kThread };

  // `bytes` of room in `directory`, for transfers numbered 0 ... requests - 1. kBest: io_uring, where the build and the
  // system have it; else a thread with pread and pwrite. Past the page cache, where the file system lets us. Throws
  // Error(kIo) naming the directory and the room where there is not enough, or no file can be made.
  SpillFile(const std::string& directory, uint64_t bytes, int requests, Way way = Way::kBest);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Starts transfer `request`, which is not under way. Nobody touches the memory until wait() has returned.
  void start(int request, bool write, void* memory, size_t bytes, uint64_t offset);
  // Returns when it is done, also where none was started, and when that was (or was noticed). Throws Error(kIo) where
  // it failed.
  std::chrono::steady_clock::time_point wait(int request);
  // "io_uring, direct" and the like, for the log.
  std::string description() const;

  class Engine;  // how bytes move

 private:
  std::string directory_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace thinwire
