// What a rank writes when nothing moves, and who is to blame when all such reports lie side by side.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/wire/flight_recorder.h"

namespace thinwire {

// What a rank says of itself.
struct WaitReport {
  enum class State : uint8_t { kAbsent, kWaiting, kOutside };  // kOutside: its threads wait for nobody
  int rank = 0;
  State state = State::kAbsent;
  std::string host;
  int64_t pid = 0;
  std::string answers;  // the verdict that this report answers; empty: none
  double silent_s = 0.0;
  bool stuck = false;        // it waits, but has not come back from the transport for a while
  std::string operation;     // "dp.gradient all_reduce #57 (group 3, 4194304 bytes)"; equal on ranks in the same one
  std::vector<int> missing;  // ranks it waits for
  std::string activity;      // what the rank does outside communication
};
// What the recorder knows of this rank now; host, pid and answers are the caller's.
WaitReport make_report(int rank, const FlightRecorder& recorder, double silent_s);
// `key: value` lines, as parse_report reads them.
std::string to_text(const WaitReport& report);
// The file: the same, then every open operation and the last ones for a person to read.
std::string to_text(const WaitReport& report, const FlightRecorder& recorder);
WaitReport parse_report(const std::string& text);  // kAbsent for what is not a report

// Who is to blame, and why. reports[k] is rank k's; kAbsent ones did not answer.
struct Verdict {
  enum class Kind : uint8_t {
    kAbsent,   // they give no sign of life
    kOutside,  // they wait for nobody, and others wait for them
    kStuck,    // their thread does not come back from the transport
    kCutOff,   // several ranks and it miss each other: none of its connections carries anything
    kCycle,    // they wait for each other
    kUnknown   // all wait, nobody knows for whom
  };
  Kind kind = Kind::kUnknown;
  std::vector<int> culprits;
};
Verdict judge(const std::vector<WaitReport>& reports);
// One line: "rank 0 (host a) waits for rank 2 in dp.gradient all_reduce #57 (...), silent for 5.0 s [step 12]".
std::string wait_text(const WaitReport& report);
// The message for a person.
std::string verdict_text(const Verdict& verdict, const std::vector<WaitReport>& reports, double seconds,
                         const std::string& directory);

}  // namespace thinwire
