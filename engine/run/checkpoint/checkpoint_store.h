// The writer's side of a directory of checkpoints: copy, write behind, commit (checkpoint.md says how), prune; and
// finding the newest good one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "engine/base/core/program.h"
#include "engine/run/checkpoint/checkpoint_reader.h"
#include "engine/run/checkpoint/rank_parts.h"
#include "engine/run/checkpoint/run_lock.h"
#include "engine/run/checkpoint/staged_state.h"

namespace thinwire {

// The points of a save at which a fault can be injected, in order (tests and the key `faults`). Rank 0 passes all of
// them. Other ranks pass those up to save.after_manifest: their manifest says that their part is complete.
inline constexpr std::string_view kSavePoints[] = {
    "save.begin",         "save.after_copy",      "save.after_mkdir",    "save.before_shard",  "save.mid_shard",
    "save.after_shard",   "save.before_manifest", "save.after_manifest", "save.before_rename", "save.after_rename",
    "save.before_latest", "save.after_latest",    "save.before_prune",   "save.after_prune"};

struct StoreOptions {
  bool async = true;                 // write in the background; false: save() returns when the checkpoint is committed
  int64_t keep_last = 0;             // 0 keeps all; otherwise max(keep_last, 2) checkpoints that verify are kept
  int64_t failed_saves_allowed = 0;  // consecutive failures to write that are only logged
  uint64_t shard_bytes = uint64_t{4} << 30;  // a file takes tensors until it is this large (never splits one)
  LockOptions lock;                          // job id, heartbeat
  double peer_seconds = 600;                 // how long rank 0 waits for the other ranks' parts once its own is written
  CopyBytes copy;                            // state out of device memory; default memcpy
  std::function<void(std::string_view point)>
      fault;  // called at every save point, mostly on the writing thread; may throw Error
};

struct SaveStats {
  int64_t step = -1;
  std::string path;  // of the committed checkpoint; empty while writing or after a failure
  bool failed = false;
};

// Not thread-safe: one thread saves and waits.
//
// With a Control of several ranks, the constructor, save(), wait() and newest() are collectives: every
// rank calls them, in the same order, on the thread that may use `control` (which outlives the store). The writing
// threads do not communicate. What fails on one rank is the same AgreedError on all, and the policy of failed saves
// counts alike on all.
class CheckpointStore {
 public:
  // Rank 0 takes the lock (Error(kBusy)) and removes what interrupted saves left behind; Error(kIo) when the directory
  // of another rank is not the one that rank 0 sees.
  explicit CheckpointStore(const std::string& directory, StoreOptions options = {}, Control& control = one_rank());
  // Waits for the writer, without communication; a failure is logged.
  ~CheckpointStore();

  // Shows a copying visitor to `state`, then commits a checkpoint. Each rank shows the tensor slices that it is to
  // write: those of all ranks together must cover each tensor exactly once (a CHECK); integers, reals and texts are
  // taken from rank 0. `info` (rank 0's) is stored as it is (model, data, layout, hashes). Errors of this or an earlier
  // save that was written behind surface here and in wait(): Error(kIo) when a save could not be written (after
  // failed_saves_allowed in a row), Error(kBusy) at once when the directory was taken over.
  void save(int64_t step, const VisitState& state, const nlohmann::json& info);
  // Returns when nothing is being written. `must_succeed`: a last save that failed throws whatever is allowed (end of a
  // run).
  void wait(bool must_succeed = false);
  const SaveStats& last_save() const { return stats_; }  // path and failed are known after wait()

  // The newest checkpoint that verifies completely (each rank reads a share of its files); why newer ones were refused
  // is logged. nullopt: there are none at all. Error(kBadData) listing every reason when there are some
  // and none verifies: never a silent start from scratch.
  std::optional<VerifiedCheckpoint> newest();

  const std::string& directory() const { return directory_; }
  const RunLock& lock() const { return *lock_; }  // rank 0 only

 private:
  // How a write fared; travels between ranks as text.
  struct Outcome : Failure {
    std::string path;
    std::string to_text() const;
    static Outcome from_text(const std::string& text);
  };
  enum class Pending { kNone, kWriting, kFailed };

  void point(std::string_view name);
  void remove_leftovers();
  void require_shared_directory();
  Outcome attempt(const std::function<std::string()>& action) const;
  std::string make_temporary(int64_t step);
  void write(int64_t step, const nlohmann::json& info);
  std::string write_part(int64_t step);
  void read_back(const Manifest& part);
  std::string commit(int64_t step, const nlohmann::json& info);
  void prune();
  bool written_or_got_on(uint64_t& seen);
  Outcome join();
  void settle();

  std::string directory_;
  StoreOptions options_;
  Control& control_;
  int rank_, ranks_;
  std::optional<RunLock> lock_;
  StagedState staged_;
  SaveStats stats_;
  int64_t next_sequence_ = 0;
  std::set<std::string> verified_;  // checkpoints that were read back, here or by all ranks
  Pending pending_ = Pending::kNone;
  std::string temporary_;  // directory of the save at hand
  std::optional<RankParts> parts_;
  std::thread writer_;
  std::atomic<uint64_t> signs_ = 0;  // grows while the writing thread makes progress
  std::mutex mutex_;
  std::condition_variable written_news_;
  bool written_ = true;  // the writing thread has nothing more to do
  Outcome outcome_;      // the writing thread's, read after join
  int64_t failures_in_a_row_ = 0;
};

// For readers that hold no lock (generate, checkpoint verify). `path` as in resolve_checkpoint_path; the newest
// checkpoint that verifies, or Error(kBadData) listing every reason. With `control` a collective: rank 0 lists which
// there are, all verify.
VerifiedCheckpoint find_newest_valid(const std::string& path, Control& control = one_rank());

}  // namespace thinwire
