// Reports as text and back, and the verdict on who is to blame.
#include "parallel/wire/wait_report.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <set>
#include <sstream>

#include "engine/base/core/text.h"

namespace thinwire {
namespace {

constexpr const char* kHeading = "thinwire watchdog report";

std::string describe(const FlightEntry& e) {
  std::string text = std::string(e.label) + " " + (e.verb != nullptr ? e.verb : "operation");
  if (e.peer >= 0) text += " with rank " + std::to_string(e.peer);
  return text + " #" + std::to_string(e.sequence) + " (group " + std::to_string(e.group) + ", " +
         std::to_string(e.bytes) + " bytes)";
}

std::string numbers(const std::vector<int>& list, const char* separator) {
  std::string text;
  for (int value : list) text += (text.empty() ? "" : separator) + std::to_string(value);
  return text;
}

std::string seconds_text(double s) {
  return printed(s < 100.0 ? "%.1f s" : "%.0f s", s);
}

std::string rank_text(const WaitReport& r) {
  return "rank " + std::to_string(r.rank) + (r.host.empty() ? "" : " (host " + r.host + ")");
}

std::string ranks_text(const std::vector<int>& ranks, const std::vector<WaitReport>& reports, size_t most = 8) {
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < most; ++i) {
    text += (i > 0 ? (i + 1 == ranks.size() ? " and " : ", ") : "") + rank_text(reports[static_cast<size_t>(ranks[i])]);
  }
  return ranks.size() > most ? text + " and " + std::to_string(ranks.size() - most) + " more" : text;
}

}  // namespace

WaitReport make_report(int rank, const FlightRecorder& recorder, double silent_s) {
  WaitReport r;
  r.rank = rank;
  r.silent_s = silent_s;
  r.activity = recorder.activity();
  std::replace(r.activity.begin(), r.activity.end(), '\n', ' ');  // the file has one line per fact
  if (recorder.waiting_threads() == 0) {
    r.state = WaitReport::State::kOutside;
    return r;
  }
  r.state = WaitReport::State::kWaiting;
  const uint64_t number = recorder.waited_number();
  std::set<int> of_any;  // open operation
  for (const FlightEntry& e : recorder.read()) {
    if (e.state != FlightEntry::State::kIssued) continue;
    of_any.insert(e.missing.begin(), e.missing.end());
    if (e.number != number) continue;
    r.operation = describe(e);
    r.missing = e.missing;
    if (r.missing.empty() && e.peer >= 0) r.missing = {e.peer};
  }
  // An operation without an open transfer waits for its turn behind others: take whom these miss.
  if (r.missing.empty()) r.missing.assign(of_any.begin(), of_any.end());
  r.missing.erase(std::remove(r.missing.begin(), r.missing.end(), rank), r.missing.end());
  return r;
}

std::string to_text(const WaitReport& r) {
  std::ostringstream out;
  const bool waiting = r.state == WaitReport::State::kWaiting;
  out << kHeading << "\nrank: " << r.rank << "\nhost: " << r.host << "\npid: " << r.pid << "\nanswers: " << r.answers
      << "\nstate: " << (waiting ? "waiting" : "outside") << "\nsilent_s: " << r.silent_s
      << "\nstuck: " << (r.stuck ? 1 : 0) << "\noperation: " << r.operation << "\nmissing: " << numbers(r.missing, " ")
      << "\nactivity: " << r.activity << "\n\n";
  return out.str();
}

std::string to_text(const WaitReport& r, const FlightRecorder& recorder) {
  std::ostringstream out;
  out << to_text(r);
  if (r.state == WaitReport::State::kWaiting) {
    out << "This rank waits in " << (r.operation.empty() ? "an operation that is not recorded" : r.operation);
    if (!r.missing.empty()) out << "; transfers are open with rank " << numbers(r.missing, ", ");
    out << ".\n";
  } else {
    out << "No thread of this rank waits for communication.\n";
  }
  const int64_t now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  out << "\nThe last operations, oldest first (seconds ago):\n";
  for (const FlightEntry& e : recorder.read()) {
    const auto seconds_ago = [now](int64_t ns) { return static_cast<double>(now - ns) * 1e-9; };
    out << printed("%8" PRIu64 "  issued %10.3f  ", e.number, seconds_ago(e.issued_ns));
    if (e.state == FlightEntry::State::kIssued)
      out << "OPEN             ";
    else
      out << printed("%s %10.3f  ", e.state == FlightEntry::State::kDone ? "done" : "FAIL", seconds_ago(e.done_ns));
    out << describe(e);
    if (!e.missing.empty()) out << "  open with rank " << numbers(e.missing, ", ");
    out << "\n";
  }
  return out.str();
}

WaitReport parse_report(const std::string& text) {
  WaitReport r;
  std::istringstream in(text);
  std::string line;
  if (!std::getline(in, line) || line != kHeading) return r;
  bool waiting = false, complete = false;
  while (std::getline(in, line) && !line.empty()) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) return r;
    const std::string key = line.substr(0, colon), value = line.size() > colon + 2 ? line.substr(colon + 2) : "";
    std::istringstream words(value);
    if (key == "rank") words >> r.rank;
    if (key == "host") r.host = value;
    if (key == "pid") words >> r.pid;
    if (key == "answers") r.answers = value;
    if (key == "state") waiting = value == "waiting";
    if (key == "silent_s") words >> r.silent_s;
    if (key == "stuck") r.stuck = value == "1";
    if (key == "operation") r.operation = value;
    if (key == "missing")
      for (int rank = 0; words >> rank;) r.missing.push_back(rank);
    if (key == "activity") r.activity = value, complete = true;
  }
  if (complete) r.state = waiting ? WaitReport::State::kWaiting : WaitReport::State::kOutside;
  return r;
}

Verdict judge(const std::vector<WaitReport>& reports) {
  using State = WaitReport::State;
  Verdict v;
  std::set<int> waited_for;
  std::vector<int> absent, outside;
  for (const WaitReport& r : reports) {
    if (r.state == State::kAbsent) absent.push_back(r.rank);
    if (r.state == State::kOutside) outside.push_back(r.rank);
    if (r.state == State::kWaiting) waited_for.insert(r.missing.begin(), r.missing.end());
  }
  if (!absent.empty()) return {Verdict::Kind::kAbsent, absent};
  if (!outside.empty()) {
    std::vector<int> needed;
    for (int rank : outside) {
      if (waited_for.contains(rank)) needed.push_back(rank);
    }
    return {Verdict::Kind::kOutside, needed.empty() ? outside : needed};
  }
  for (const WaitReport& r : reports) {
    if (r.stuck) v.culprits.push_back(r.rank);
  }
  if (!v.culprits.empty()) return {Verdict::Kind::kStuck, v.culprits};
  // Two ranks that miss each other have no working connection. Where several such pairs share one rank, it is cut off.
  const int size = static_cast<int>(reports.size());
  std::vector<std::vector<int>> missed;  // of thousands of ranks, each may miss hundreds
  for (const WaitReport& r : reports) {
    missed.push_back(r.missing);
    std::sort(missed.back().begin(), missed.back().end());
  }
  std::vector<std::pair<int, int>> pairs;
  for (int a = 0; a < size; ++a) {
    for (const int b : missed[static_cast<size_t>(a)]) {
      if (b <= a || b >= size) continue;
      const std::vector<int>& back = missed[static_cast<size_t>(b)];
      if (std::binary_search(back.begin(), back.end(), a)) pairs.emplace_back(a, b);
    }
  }
  for (int rank = 0; pairs.size() > 1 && rank < size; ++rank) {
    if (std::all_of(pairs.begin(), pairs.end(), [&](auto p) { return p.first == rank || p.second == rank; }))
      return {Verdict::Kind::kCutOff, {rank}};
  }
  // All wait. Whoever starts to follow "waits for" ends in a cycle, or at a rank that does not know for whom; or where
  // somebody before has passed, who has found no cycle.
  std::vector<int> passed(reports.size(), -1);  // by whose start
  for (int start = 0; start < size; ++start) {
    std::vector<int> path;
    for (int at = start; passed[static_cast<size_t>(at)] < 0 || passed[static_cast<size_t>(at)] == start;) {
      if (passed[static_cast<size_t>(at)] == start) {
        v = {Verdict::Kind::kCycle, std::vector<int>(std::find(path.begin(), path.end(), at), path.end())};
        std::sort(v.culprits.begin(), v.culprits.end());
        return v;
      }
      passed[static_cast<size_t>(at)] = start;
      path.push_back(at);
      const std::vector<int>& next = reports[static_cast<size_t>(at)].missing;
      if (next.empty() || next.front() < 0 || next.front() >= size) break;
      at = next.front();
    }
  }
  for (int rank = 0; rank < size; ++rank) {
    if (reports[static_cast<size_t>(rank)].missing.empty()) v.culprits.push_back(rank);
  }
  return v;
}

std::string wait_text(const WaitReport& r) {
  std::string text = rank_text(r);
  if (r.state == WaitReport::State::kWaiting) {
    text += " waits";
    if (!r.missing.empty()) text += " for rank " + some_of(r.missing);
    if (!r.operation.empty()) text += " in " + r.operation;
    text += ", silent for " + seconds_text(r.silent_s);
  } else {
    text += " is outside communication, last seen there " + seconds_text(r.silent_s) + " ago";
  }
  return r.activity.empty() ? text : text + " [" + r.activity + "]";
}

std::string verdict_text(const Verdict& verdict, const std::vector<WaitReport>& reports, double seconds,
                         const std::string& directory) {
  std::ostringstream out;
  out << "watchdog: nothing moved between ranks for " << seconds_text(seconds) << "; ending all ranks with code 71.\n";
  const std::string who = ranks_text(verdict.culprits, reports);
  const bool one = verdict.culprits.size() == 1;
  bool same_operation = true;
  for (int rank : verdict.culprits) {
    const std::string& mine = reports[static_cast<size_t>(rank)].operation;
    same_operation = same_operation && mine == reports[static_cast<size_t>(verdict.culprits.front())].operation;
  }
  switch (verdict.kind) {
    case Verdict::Kind::kAbsent:
      out << "  Culprit: " << who << (one ? " gives" : " give")
          << " no sign of life: stopped, dead, or cut off from the shared directory.\n";
      break;
    case Verdict::Kind::kOutside:
      out << "  Culprit: " << who << (one ? " waits" : " wait")
          << " for nobody, busy outside communication while others wait.\n";
      break;
    case Verdict::Kind::kStuck:
      out << "  Culprit: " << who << (one ? " hangs" : " hang") << " inside the transport (MPI, network driver).\n";
      break;
    case Verdict::Kind::kCycle:
      out << "  Culprit: " << who << " wait for each other, "
          << (same_operation ? "in the same operation: the connection between them carries nothing.\n"
                             : "in different operations: the connection between them carries nothing, or they do not "
                               "agree on the order.\n");
      break;
    case Verdict::Kind::kCutOff:
      out << "  Culprit: " << who << ": none of its connections carries anything.\n";
      break;
    case Verdict::Kind::kUnknown:
      out << "  Culprit: unknown; " << who << (one ? " waits" : " wait") << " for no rank in particular.\n";
      break;
  }
  int lines = 0, left = 0;
  for (const WaitReport& r : reports) {
    if (r.state == WaitReport::State::kAbsent) continue;
    if (++lines > 8) {
      ++left;
      continue;
    }
    out << "  " << wait_text(r) << "\n";
  }
  if (left > 0) out << "  ... and " << left << " more ranks\n";
  switch (verdict.kind) {
    case Verdict::Kind::kAbsent:
      out << "  What to do: look at " << (one ? "that process and its host" : "those processes and their hosts")
          << " (stopped? out of memory? node down?), then start again: the run resumes from its last checkpoint.\n";
      break;
    case Verdict::Kind::kStuck:
    case Verdict::Kind::kCutOff:
      out << "  What to do: look at the network of " << (one ? "that host" : "those hosts")
          << ", then start again: the run resumes from its last checkpoint.\n";
      break;
    case Verdict::Kind::kOutside:
      out << "  What to do: see what " << (one ? "that rank" : "those ranks")
          << " did (slow storage, a debugger?); if such a delay is normal here, raise the watchdog's limit.\n";
      break;
    case Verdict::Kind::kCycle:
    case Verdict::Kind::kUnknown:
      out << "  What to do: check the network between those hosts"
          << (same_operation ? "" : "; if it is sound, report this as a bug")
          << ", then start again: the run resumes from its last checkpoint.\n";
      break;
  }
  if (!directory.empty()) out << "  Details of every rank: " << directory << "/watchdog/rank<k>.txt\n";
  return out.str();
}

}  // namespace thinwire
