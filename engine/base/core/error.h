// The one exception type that users see, and the exit code that each kind of failure leaves the process with.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace thinwire {

// Exit codes of every program (docs/programs.md lists them for users). Do not change: batch scripts read them.
enum class ExitCode : int {
  kFinished = 0,
  kUsage = 64,      // wrong command line
  kBadData = 65,    // corrupt or hostile data, tokenizer or checkpoint
  kInternal = 70,   // a CHECK failed: our fault
  kHungPeer = 71,   // watchdog; requeue
  kBusy = 73,       // run directory locked by another job, or not writable
  kIo = 74,         // I/O error, disk full
  kPreempted = 75,  // saved after a signal; requeue
  kDiverged = 76,   // non-finite budget spent; do not requeue
  kBadConfig = 78,  // bad configuration or impossible layout
};

// Begins the message of an uncorrectable GPU error, which status.json keeps when other ranks report a lost peer.
inline constexpr char kGpuFault[] = "a fault of this machine's GPU";

// A failure with one message for a person: what, where, how to mend it. Libraries throw it, only `main` turns it into
// an exit.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// An Error that all ranks of the job have agreed on: every one of them leaves with its code, rank 0 prints it.
class AgreedError : public Error {
 public:
  using Error::Error;
};

[[noreturn]] inline void throw_usage(const std::string& m) {
  throw Error(ExitCode::kUsage, m);
}
[[noreturn]] inline void throw_bad_data(const std::string& m) {
  throw Error(ExitCode::kBadData, m);
}
[[noreturn]] inline void throw_io(const std::string& m) {
  throw Error(ExitCode::kIo, m);
}
[[noreturn]] inline void throw_busy(const std::string& m) {
  throw Error(ExitCode::kBusy, m);
}
[[noreturn]] inline void throw_bad_config(const std::string& m) {
  throw Error(ExitCode::kBadConfig, m);
}

}  // namespace thinwire
