// Ends a job in which nothing moves any more, and says who waits for whom: one thread per rank, asleep nearly always.
//
// Silence is: somebody on this rank waits, or operations are open, and the flight recorder has seen no sign of life for
// `seconds`. Nothing is sent to find the culprit: ranks write what they wait for to <directory>/watchdog/rank<k>.txt,
// after half of the limit and again at each quarter; a file `alarm` makes the others write theirs, and when the limit
// is reached a file `verdict` makes every rank answer that still runs - also one whose main thread is busy elsewhere or
// stuck inside the transport. Ranks that do not answer are stopped, dead or unreachable. The lowest rank that answers
// prints one message, leaves <directory>/watchdog.json, and all end with code 71. Time during which this process itself
// did not run (a suspended job) does not count as silence.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "parallel/wire/flight_recorder.h"
#include "parallel/wire/transport.h"
#include "parallel/wire/wait_report.h"

namespace thinwire {

struct WatchdogOptions {
  double seconds = 600.0;          // > 0
  std::string directory;           // shared by all ranks; empty: each rank says on stderr what it knows
  std::vector<std::string> hosts;  // per world rank, for the message; may be empty
  double answer_seconds = 1.0;     // how long the others have to answer once the limit is reached
  double grace_seconds = 1.0;      // between the message and the end (twice that where nothing is printed)
  // Called once, by the rank that speaks for all, before it prints: leaves the reason where the next life looks for it.
  std::function<void(const std::string& message)> on_verdict;
  // Tests: what ends the job (default: Transport::abort) and what prints (default: stderr and the log file).
  std::function<void(int code)> end;
  std::function<void(const std::string& message)> print;
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
  bool sleep(double seconds);  // false: the destructor wants the thread back
  void look_at_polls();
  WaitReport own_report() const;
  void write_report(const std::string& answers) const;
  void raise(const char* file) const;
  void end_job();
  void end_job_without_directory();
  void finish(const std::string& message);

  Transport* transport_;
  const FlightRecorder* recorder_;
  WatchdogOptions options_;
  std::string folder_, own_file_, host_;
  double silence_s_ = 0.0;  // the thread's, as are:
  uint64_t polls_ = 0;
  std::chrono::steady_clock::time_point polled_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace thinwire
