// A file for memory that waits: blocks go out and come back behind the computation. It has no name, so that nothing is
// left of it whatever happens, and its room on the disk is taken at once.
#pragma once

#include <memory>
#include <string>

#include "engine/base/core/file.h"
#include "engine/base/device/spill_place.h"

namespace thinwire {

class SpillFile final : public SpillPlace {
 public:
  enum class Way { kBest, kThread };

  // `bytes` of room in `directory`, for transfers numbered 0 ... requests - 1. kBest: io_uring, where the build and the
  // system have it; else a thread with pread and pwrite. Past the page cache, where the file system lets us. Throws
  // Error(kIo) naming the directory and the room where there is not enough, or no file can be made.
  SpillFile(const std::string& directory, uint64_t bytes, int requests, Way way = Way::kBest);
  ~SpillFile() override;
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  void used(int) override {}  // the memory is the host's, where work is done when it is queued
  // Nobody touches the memory until wait() has returned.
  void start(int request, bool write, void* memory, size_t bytes, uint64_t offset) override;
  // Blocks until it is done, whoever comes next.
  std::optional<Clock::time_point> wait(int request, Next next) override;
  std::string description() const override;

  class Engine;  // how bytes move

 private:
  std::string directory_;
  Descriptor file_;
  bool direct_ = false;
  std::unique_ptr<Engine> engine_;  // works on the file, and so goes first
};

}  // namespace thinwire
