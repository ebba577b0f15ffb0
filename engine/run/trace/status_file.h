// status.json: what batch scripts and people ask a run directory: is it running, how did it end, may it be requeued.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/core/error.h"

namespace thinwire {

// Keys of status.json, in this order. Times are UTC, "2025-01-31T12:00:00Z".
struct RunStatus {
  std::string state = "running";   // running | finished | preempted | failed
  std::optional<int> code;         // exit code; null while running
  std::string reason = "running";  // word for the code ("bad_data"), "running" before
  std::string message;             // the one message printed for a person, empty when all is well
  int64_t step = 0;                // last completed step
  int64_t total_steps = 0;         // train_iters, 0 when not known
  bool requeue = false;            // the same command, started again, goes on: codes 71 and 75
  std::string host;
  int64_t pid = 0;
  std::string first_started;  // when the run's first job started
  std::string started, updated;
  std::string spike;                    // the last loss that jumped, in words; empty: none
  std::vector<std::string> stragglers;  // text_of() of those that are named now
  // For who finds a run that has ended without a word: what was planned of whose memory, and kills by file, from before
  // it (MemoryKills) for the group and for the machine.
  std::string planned_memory;
  std::map<std::string, int64_t> oom_kills;
};

// Part of the message of a rank that the kernel has killed so, wherever that message comes from.
inline constexpr char kKilledForMemory[] = "killed by the kernel for want of memory";

// Throws Error(kBadData) when the file is missing or is not such a JSON object.
RunStatus read_status(const std::string& path);

// Writes status.json atomically. A write that fails is one warning in the log, never the end of a run.
class StatusFile {
 public:
  // Fills host, pid, started and, from the file of the job before, first_started; writes nothing yet. `min_interval`:
  // `running` rewrites the file at most this often.
  StatusFile(std::string path, int64_t total_steps,
             std::chrono::milliseconds min_interval = std::chrono::milliseconds(1000));
  // State running, after `step` completed steps. The first call writes, whatever min_interval is; none does once
  // another rank has written the end.
  void running(int64_t step);
  // For the next call of running(), which then writes in any case.
  void spike(const std::string& text);
  void stragglers(std::vector<std::string> lines);
  // For who writes the end in place of the job's first rank, another rank or a keeper: keeps what the file says of the
  // job, unless that began before `since` (UTC), as the job before this one did.
  void adopt(const std::string& since);
  // Instead of what the constructor was told.
  void plans_steps(int64_t total_steps) { status_.total_steps = total_steps; }
  // Of refuse_what_does_not_fit. Writes.
  void plans_memory(const std::string& planned);
  // The end, flushed to disk: state finished (0), preempted (75) or failed (all others). A lost peer (71) does not take
  // the place of what that peer has just failed of.
  void ended(ExitCode code, int64_t step, const std::string& message = "");
  // Whether somebody else has written the file since this object did: another rank the end, or another job.
  bool others_wrote() const;
  const RunStatus& status() const { return status_; }
  // As the run's job before this one left it; nullopt: this is the first.
  const std::optional<RunStatus>& last() const { return last_; }
  // Since the run's first start, the time between its jobs included. Within a job by the monotonic clock.
  double wall_seconds() const;

 private:
  void write(bool durable);
  bool failed_just_now() const;

  std::string path_;
  RunStatus status_;
  std::optional<RunStatus> last_;
  std::chrono::milliseconds min_interval_;
  std::optional<std::chrono::steady_clock::time_point> last_write_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double before_ = 0.0;  // seconds from first_started to the start of this job
  std::string known_;    // the file as this object found it, or wrote it last
  bool warned_ = false;
};

}  // namespace thinwire
