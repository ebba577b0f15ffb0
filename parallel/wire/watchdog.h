// Ends a job in which nothing moves any more, and says who waits for whom: one thread per rank, asleep nearly always.
//
// Silence is: somebody on this rank waits, or operations are open, and the flight recorder has seen no sign of life for
// `seconds`. Nothing that others can hold up lies between that and the end: no lock of theirs, no MPI, no file. Files
// are touched by a lane of its own (file_lane.h) that the watchdog waits for only so long; the process is ended by its
// keeper (keeper.h) where it cannot end itself, and also where this thread does not get on.
//
// To find the culprit ranks ask each other for what they wait for, over connections of their own (watch_net.h) that the
// engine of communication has no part in; also whoever is busy elsewhere or stuck inside the transport answers. Ranks
// that do not answer are stopped, dead or unreachable. The lowest rank that answers prints one message, leaves
// <directory>/watchdog.json, and all end with code 71.
//
// Files are the last resort, for ranks between which no such connection works, and for people: ranks write what they
// wait for to <directory>/watchdog/rank<k>.txt, after half of the limit and again at each quarter; a file `alarm` makes
// the others write theirs, and a file `verdict` makes every rank answer that still runs. Time during which this process
// itself did not run (a suspended job) does not count as silence.
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
  WatchNet* net = nullptr;         // joined, and outlives the watchdog; without both, a rank says what it knows itself
  std::vector<std::string> hosts;  // per world rank, for the message; may be empty
  double answer_seconds = 1.0;     // how long the others have to answer once the limit is reached
  double grace_seconds = 1.0;      // between the message and the end (twice that where nothing is printed)
  // Called once, by the rank that speaks for all: leaves the reason where the next life looks for it. A keeper does so
  // by itself.
  std::function<void(const std::string& message)> on_verdict;
  Keeper* keeper = nullptr;  // outlives the watchdog, too
  Keeper::Note note = Keeper::Note::kRunning;
  // Tests: what ends the job (default: Transport::abort), what prints (default: stderr and the log file), and what it
  // is all measured by (default: the system's clock); the clock outlives the watchdog.
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
  bool sleep(double seconds, bool until_news = false);  // false: the destructor wants the thread back
  bool asked() const { return options_.net != nullptr && options_.net->lowest_asker() < transport_->size(); }
  void look_at_polls();
  WaitReport own_report() const;
  // True: the task is over. It waits for nothing where files hang.
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
  double silence_s_ = 0.0;  // the thread's, as are:
  uint64_t polls_ = 0;
  WatchClock::Time polled_;
  Descriptor wake_;  // can be read when the thread is to end
  std::thread thread_;
};

}  // namespace thinwire
