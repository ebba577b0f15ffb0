// One writer per directory (of a run, of checkpoints): an flock that the kernel drops with the process, and a lease
// that names the holder.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "engine/base/core/file.h"

namespace thinwire {

struct LockOptions {
  std::string job;               // default: SLURM_JOB_ID, LSB_JOBID, PBS_JOBID or "-"
  double heartbeat_seconds = 5;  // 0: the lease is written once and never renewed
  // A lease that was not given back is watched this long (by our own monotonic clock, so that the clocks of two nodes
  // are never compared) before it counts as dead. It is skipped when the holder ran on this host and its process is
  // gone.
  double stale_after_seconds = 15;
};

// What lease.json says.
struct Lease {
  std::string host;
  long pid = 0;
  std::string job;
  std::string token;             // random, one per acquisition
  double heartbeat = 0;          // seconds since 1970 by the holder's clock
  std::string describe() const;  // "host 7 (pid 123, job 9, last heartbeat 3 s ago)"
};

// Whether the lease of the directory, as this process sees it, carries this token: how other ranks know that they and
// the holder mean the same directory.
bool lease_has_token(const std::string& directory, const std::string& token);
// Whether another job than this token's has the lease; false where there is none, or it cannot be read just now.
bool is_taken_from(const std::string& directory, const std::string& token);

// Whether some process holds DIR/.lock now. False where that cannot be told.
bool is_locked(const std::string& directory);

// Holds DIR/.lock and DIR/lease.json from construction to destruction. Busy: Error(kBusy) naming the holder. Where the
// file system has no flock, lease age decides alone, and a warning says so.
class RunLock {
 public:
  explicit RunLock(const std::string& directory, const LockOptions& options = {});
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Fencing: re-reads the token; Error(kBusy) when the lease is no longer ours. Every commit asks first, so that an
  // orphan which lost the directory while it was cut off cannot commit anything.
  void check() const;

  const std::string& token() const { return lease_.token; }
  const std::string& job() const { return lease_.job; }

 private:
  bool acquire_flock();
  void refuse_or_take_over(bool have_flock, double stale_after_seconds);
  void write_lease();
  void beat(double every_seconds);

  std::string directory_;
  Lease lease_;
  Descriptor lock_file_;
  Descriptor lease_file_;  // heartbeats are written in place: after a take-over they reach nobody
  std::mutex mutex_;
  std::condition_variable stop_signal_;
  bool stopping_ = false;
  std::thread heart_;
};

}  // namespace thinwire
