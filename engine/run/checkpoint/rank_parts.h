// What each of several ranks writes of one checkpoint, and how rank 0 learns of it: through files alone, because the
// writing threads do not communicate.
//
// In the temporary directory: shard files rank<k>-<n>.safetensors, then rank<k>.done.json (a manifest of this rank's
// files and slices, flushed, renamed into place) or rank<k>.failed ("code message").
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/run/checkpoint/manifest.h"
#include "engine/run/checkpoint/staged_state.h"

namespace thinwire {

// Names of one rank's shard files up to their number: "shard_" when it is the only one, "rank<k>-".
std::string shard_stem(int rank, int ranks);

// Writes the tensors into new files below `dir`, each until it holds `shard_bytes`, and lists files and slices in
// `manifest`. At least one file is written, even without tensors. `point` is called before, in and after each file.
// Throws Error(kIo).
void write_shards(const std::string& dir, const std::string& stem, const StagedState& state, uint64_t shard_bytes,
                  const std::function<void(std::string_view)>& point, Manifest& manifest);

// This rank's part is complete. Throws Error(kIo).
void write_done(const std::string& dir, int rank, const Manifest& part);
// This rank will not complete it. Best effort: the disk may be full, then rank 0 learns it at the next settling.
void write_failed(const std::string& dir, int rank, int code, const std::string& message) noexcept;

// How rank 0 collects the parts of the other ranks during one save. Its writing thread waits in gather(); its calling
// thread may tell it that the others have ended, or that it should not wait much longer.
class RankParts {
 public:
  // The calling thread: every other writer has ended, with failures[k] ("" = none, "code message" else).
  void all_ended(std::vector<std::string> failures);
  // The calling thread leaves: wait no longer than `seconds` from now.
  void hurry(double seconds);

  // The writing thread: adds files and slices of ranks 1 to ranks - 1 to `manifest`, removes their notes and holds the
  // sizes of their files against what they say. Polls with back-off, between 1 ms and 1/4 s. Throws Error: the failure
  // of a rank; kIo naming all ranks whose part is missing after `seconds`; kIo when a file is not there as its rank
  // wrote it.
  void gather(const std::string& dir, int ranks, double seconds, Manifest& manifest);

 private:
  bool poll(const std::string& dir, int ranks, int64_t step, std::vector<Manifest>& parts, std::vector<bool>& have);

  std::mutex mutex_;
  std::condition_variable news_;
  bool ended_ = false;
  std::vector<std::string> failures_;
  double hurry_seconds_ = -1;
};

}  // namespace thinwire
