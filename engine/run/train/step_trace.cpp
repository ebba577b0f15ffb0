// Records events into memory taken beforehand, and writes them as trace JSON.
#include "engine/run/train/step_trace.h"

#include <algorithm>
#include <cinttypes>
#include <sstream>

#include "engine/base/core/file.h"
#include "engine/base/core/text.h"

namespace thinwire {
namespace {

// Numbers of the tracks. Waits, each site and the disk have kLanes of them, for what overlaps in time.
constexpr int kLanes = 64;
constexpr int kStepTrack = 1, kComputeTrack = 2, kWaitTrack = 3, kSiteTrack = 80;
constexpr int kSpillTrack = kSiteTrack + kLanes * static_cast<int>(kSiteNames.size());
static_assert(kWaitTrack + kLanes <= kSiteTrack);

int site_track(size_t site, int lane) {
  return kSiteTrack + kLanes * static_cast<int>(site) + lane;
}

int64_t nanoseconds(StepTrace::Clock::time_point t) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(t.time_since_epoch()).count();
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

// Nanoseconds as microseconds with three decimals, exactly.
std::string microseconds(int64_t ns) {
  const uint64_t n = ns < 0 ? 0 - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  return printed("%s%" PRIu64 ".%03" PRIu64, ns < 0 ? "-" : "", n / 1000, n % 1000);
}

const char* name_of(NodeKind kind) {
  constexpr const char* names[] = {"F", "B", "I", "W", "exchange", "reduce", "control", "optimizer", "gather"};
  return names[static_cast<size_t>(kind)];
}

// Puts each interval (in order of start) on the first lane that is free again.
class Lanes {
 public:
  int place(int64_t from, int64_t to) {
    for (size_t i = 0; i < free_from_.size(); ++i) {
      if (free_from_[i] > from) continue;
      free_from_[i] = to;
      return static_cast<int>(i);
    }
    // All lanes are taken: what is left shares the last one.
    if (free_from_.size() == static_cast<size_t>(kLanes)) return kLanes - 1;
    free_from_.push_back(to);
    return static_cast<int>(free_from_.size()) - 1;
  }
  int count() const { return static_cast<int>(free_from_.size()); }

 private:
  std::vector<int64_t> free_from_;
};

}  // namespace

StepTrace::StepTrace(int rank, size_t capacity) : rank_(rank), events_(capacity) {}

void StepTrace::add(Event event, Clock::time_point from, Clock::time_point to) {
  event.from = nanoseconds(from), event.to = nanoseconds(to);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (used_ == events_.size()) {
    ++dropped_;
    return;
  }
  events_[used_++] = event;
}

void StepTrace::step(int64_t number, Clock::time_point from, Clock::time_point to) {
  add({.kind = Kind::kStep, .name = "step", .number = number}, from, to);
}

void StepTrace::compute(const char* name, int micro, int chunk, Clock::time_point from, Clock::time_point to) {
  add({.kind = Kind::kCompute, .name = name, .micro = micro, .chunk = chunk}, from, to);
}

void StepTrace::node(const PlanNode& node, Clock::time_point from, Clock::time_point to) {
  compute(name_of(node.kind), node.micro, node.chunk, from, to);
}

void StepTrace::add(Kind kind, const OperationNote& note, Clock::time_point from, Clock::time_point to) {
  add({.kind = kind,
       .site = static_cast<Site>(note.label.number),
       .name = note.verb,
       .group = note.group,
       .peer = note.peer,
       .number = note.sequence,
       .bytes = note.bytes},
      from, to);
}

void StepTrace::add(Kind kind, const char* verb, int64_t bytes, Clock::time_point from, Clock::time_point to) {
  add({.kind = kind, .name = verb, .bytes = bytes}, from, to);
}

void StepTrace::align(int64_t origin_ns, int64_t offset_ns, const std::string& clock_note) {
  origin_ = origin_ns, offset_ = offset_ns, clock_note_ = clock_note;
}

// The lanes that the events so far have taken.
struct StepTrace::Tracks {
  Lanes waits, spills, sites[kSiteNames.size()];
};

std::string StepTrace::event_json(const Event& e, Tracks& tracks) const {
  const int64_t to = std::max(e.from, e.to);
  int track = kStepTrack;
  std::string name, category, arguments;
  switch (e.kind) {
    case Kind::kStep:
      name = "step " + std::to_string(e.number), category = "step";
      break;
    case Kind::kCompute:
      track = kComputeTrack, category = "compute";
      name = e.name + (e.micro >= 0 ? std::to_string(e.micro) : std::string());
      if (e.chunk > 0) name += "." + std::to_string(e.chunk);
      arguments = "\"micro\":" + std::to_string(e.micro) + ",\"chunk\":" + std::to_string(e.chunk);
      break;
    case Kind::kSpill:
      track = kSpillTrack + tracks.spills.place(e.from, to), category = "offload", name = e.name;
      arguments = "\"bytes\":" + std::to_string(e.bytes);
      break;
    case Kind::kSpillWait:
      track = kWaitTrack + tracks.waits.place(e.from, to), category = "exposed";
      name = std::string("wait disk ") + e.name;
      arguments = "\"bytes\":" + std::to_string(e.bytes);
      break;
    case Kind::kOperation:
    case Kind::kWait: {
      const bool wait = e.kind == Kind::kWait;
      const bool pipeline = e.site == Site::kPpForward || e.site == Site::kPpBackward;
      const auto site = static_cast<size_t>(e.site);
      category = !wait ? "communication" : pipeline ? "bubble" : "exposed";
      name = wait ? "wait " + std::string(thinwire::name_of(e.site)) : std::string(e.name);
      track =
          wait ? kWaitTrack + tracks.waits.place(e.from, to) : site_track(site, tracks.sites[site].place(e.from, to));
      arguments = "\"verb\":\"" + escaped(e.name) + "\",\"bytes\":" + std::to_string(e.bytes) +
                  ",\"group\":" + std::to_string(e.group) + ",\"sequence\":" + std::to_string(e.number);
      if (e.peer >= 0) arguments += ",\"peer\":" + std::to_string(e.peer);
      break;
    }
  }
  return ",\n{\"ph\":\"X\",\"pid\":" + std::to_string(rank_) + ",\"tid\":" + std::to_string(track) +
         ",\"ts\":" + microseconds(e.from + offset_ - origin_) + ",\"dur\":" + microseconds(to - e.from) +
         ",\"name\":\"" + escaped(name) + "\",\"cat\":\"" + category + "\"" +
         (arguments.empty() ? "" : ",\"args\":{" + arguments + "}") + "}";
}

std::string StepTrace::track_names_json(const Tracks& tracks) const {
  const auto meta = [&](const char* what, int track, const std::string& arguments) {
    return ",\n{\"ph\":\"M\",\"pid\":" + std::to_string(rank_) + ",\"tid\":" + std::to_string(track) + ",\"name\":\"" +
           what + "\",\"args\":{" + arguments + "}}";
  };
  const auto track_name = [&](int track, const std::string& name) {
    return meta("thread_name", track, "\"name\":\"" + escaped(name) + "\"") +
           meta("thread_sort_index", track, "\"sort_index\":" + std::to_string(track));
  };
  const std::string process = description_.empty() ? "rank " + std::to_string(rank_) : description_;
  std::string text = meta("process_name", 0, "\"name\":\"" + escaped(process) + "\"").substr(2);
  text += meta("process_sort_index", 0, "\"sort_index\":" + std::to_string(rank_));
  text += track_name(kStepTrack, "steps") + track_name(kComputeTrack, "compute");
  for (int lane = 0; lane < std::max(1, tracks.waits.count()); ++lane) text += track_name(kWaitTrack + lane, "waiting");
  for (int lane = 0; lane < tracks.spills.count(); ++lane) text += track_name(kSpillTrack + lane, "disk");
  for (size_t site = 0; site < kSiteNames.size(); ++site) {
    for (int lane = 0; lane < tracks.sites[site].count(); ++lane) {
      const std::string name(kSiteNames[site]);
      text += track_name(site_track(site, lane), lane == 0 ? name : name + " +" + std::to_string(lane));
    }
  }
  return text;
}

std::string StepTrace::json() const {
  std::vector<Event> events;
  int64_t dropped = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    events.assign(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(used_));
    dropped = dropped_;
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.from != b.from ? a.from < b.from : a.to > b.to;  // what encloses comes first
  });
  Tracks tracks;
  std::string body;
  body.reserve(events.size() * 180 + 4096);
  for (const Event& e : events) body += event_json(e, tracks);
  return "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"rank\":" + std::to_string(rank_) + ",\"clock\":\"" +
         escaped(clock_note_) + "\",\"dropped_events\":" + std::to_string(dropped) + "},\n\"traceEvents\":[\n" +
         track_names_json(tracks) + body + "\n]}\n";
}

void StepTrace::write(const std::string& path) const {
  write_file_atomic(path, json(), false);
}

bool traces_step(const LayoutConfig& layout, int64_t step, int64_t first_step) {
  if (!layout.trace) return false;
  const int64_t first = layout.trace_first > 0 ? layout.trace_first : first_step;
  return step >= first && step - first < layout.trace_steps;
}

ClockAlignment align_clocks(bool one_machine, const std::function<void()>& barrier,
                            const std::function<std::string(const std::string&)>& from_first) {
  constexpr int kRounds = 9;
  std::vector<int64_t> mine;
  for (int i = 0; i < kRounds; ++i) {
    barrier();
    mine.push_back(nanoseconds(StepTrace::Clock::now()));
  }
  std::string text;
  for (const int64_t t : mine) text += std::to_string(t) + " ";
  std::istringstream first(from_first(text));
  std::vector<int64_t> theirs, offsets;
  for (int64_t t = 0; first >> t;) theirs.push_back(t);
  ClockAlignment result;
  if (theirs.empty()) return result;
  result.origin_ns = theirs.front();
  if (one_machine) {
    result.note = "all ranks share one machine's steady clock";
    return result;
  }
  for (size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i) offsets.push_back(theirs[i] - mine[i]);
  std::sort(offsets.begin(), offsets.end());
  result.offset_ns = offsets[offsets.size() / 2];
  result.note = "clocks of several machines, aligned at the start by the median of " + std::to_string(offsets.size()) +
                " barriers (these spread over " + microseconds(offsets.back() - offsets.front()) +
                " us); drift is not corrected";
  return result;
}

}  // namespace thinwire
