// Ends a job in which nothing moves any more, and says who waits for whom: one thread per rank, asleep nearly always.
//
// The job ends when a rank was silent for `seconds`: a thread of it waits, or operations are open, and the flight
// recorder has seen no progress. Ending it needs nothing that another thread may hold up: no lock, no MPI, no file.
// Files are written by a thread of their own (file_lane.h), for which the watchdog waits a bounded time. Where the
// process cannot end itself, or this thread itself hangs, its keeper (keeper.h) ends it.
//
// To find the culprit, ranks ask each other what they wait for, over connections of their own (watch_net.h) that
// Progress does not use: a rank that is busy elsewhere or stuck inside MPI still answers. Ranks that do not answer are
// stopped, dead or unreachable. The lowest rank that answers prints one message and leaves <directory>/watchdog.json;
// then all end with code 71.
//
// Files serve people, and ranks between which no such connection works: a silent rank writes what it waits for to
// <directory>/watchdog/rank<k>.txt after half of the limit and again at each quarter; a file `alarm` makes the others
// write theirs, and a file `verdict` makes every rank that still runs answer in its file. Time during which this
// process did not run (a suspended job) does not count as silence.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/core/file.h"
#include "parallel/wire/file_lane.h"
#include "parallel/wire/flight_recorder.h"
#include "parallel/wire/keeper.h"
#include "parallel/wire/transport.h"
#include "parallel/wire/wait_report.h"
#include "parallel/wire/watch_clock.h"
#include "parallel/wire/watch_net.h"

namespace thinwire {

struct WatchdogOptions {
  double seconds = 600.0;          // > 0
  std::string directory;           // shared by all ranks; may be empty
  WatchNet* net = nullptr;         // joined, and outlives the watchdog; without it and `directory`, a rank names only
                                   // what it waits for itself
  std::vector<std::string> hosts;  // per world rank, for the message; may be empty
  double answer_seconds = 1.0;     // how long the others have to answer once the limit is reached
  double grace_seconds = 1.0;      // between the message and the end (twice that where nothing is printed)
  // Called once, on the rank that prints the message: leaves the reason where the next job of the run looks for it.
  // Not called where there is a keeper, which does so itself.
  std::function<void(const std::string& message)> on_verdict;
  Keeper* keeper = nullptr;  // outlives the watchdog, too
  Keeper::Note note = Keeper::Note::kRunning;
  // For tests: what ends the job (default: Transport::abort), what prints (default: stderr), and the clock (default:
  // the system's), which outlives the watchdog.
  std::function<void(int code)> end;
  std::function<void(const std::string& message)> print;
  WatchClock* clock = nullptr;
};

class Watchdog {
 public:
  // `recorder` and `transport` outlive it. Removes what an earlier run left in the directory (own rank's files).
  Watchdog(Transport& transport, const FlightRecorder& recorder, WatchdogOptions options);
  ~Watchdog();  // a clean end leaves no file behind
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void run();
  double since(WatchClock::Time start) const { return std::chrono::duration<double>(clock_->now() - start).count(); }
  // until_news: or until another rank asks or answers. False: the thread is to end.
  bool sleep(double seconds, bool until_news = false);
  bool asked() const { return options_.net != nullptr && options_.net->lowest_asker() < transport_->size(); }
  void look_at_polls();
  WaitReport own_report() const;
  // Runs the task on the thread for files, and waits at most so long; not at all while an earlier one still hangs.
  // True: the task is over.
  bool with_files(double seconds, std::function<void()> task);
  void write_report(const std::string& answers);
  void write_stacks(const std::string& answers);
  void raise(const char* file);
  struct Stamps {
    int64_t alarm = 0, verdict = 0;
  };
  std::optional<Stamps> look_at_files();
  struct Answers;
  void end_job();
  void ask_on(double elapsed, bool speaks);
  void hear(Answers& answers);
  void read_files(Answers& answers);
  void end_job_alone();
  void finish(const std::string& message, const std::string& json, const std::string& answers);

  Transport* transport_;
  const FlightRecorder* recorder_;
  WatchdogOptions options_;
  WatchClock system_clock_, *clock_;
  std::string folder_, own_file_, host_;
  FileLane files_{"tw-reports"};
  Descriptor wake_;  // can be read when the thread is to end
  // Used by the thread alone:
  double silence_s_ = 0.0;
  uint64_t polls_ = 0;       // the recorder's count when it was last read
  WatchClock::Time polled_;  // when that had changed
  std::thread thread_;
};

}  // namespace thinwire
