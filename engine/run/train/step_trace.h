// What one rank did and when, as a Chrome / Perfetto trace: compute, every site's operations, and the waits between
// them.
//
// Tracks of `trace.rank<k>.json`: "steps"; "compute" (plan nodes F, B, I, W ... with micro-batch and chunk); "waiting"
// (the compute thread stood still for an operation: what is exposed, and the pipeline's bubble); and per site as many
// lanes as it has operations at once; "disk" (what activation_offload=disk writes and reads; the copies of
// activation_offload=host are not timed). Times are microseconds since the origin that all ranks agreed on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "engine/run/config/run_config.h"
#include "model/token_store.h"
#include "parallel/schedule/plan.h"
#include "parallel/wire/progress.h"

namespace thinwire {

class StepTrace final : public OperationSink, public SpillSink {
 public:
  using Clock = std::chrono::steady_clock;

  // All memory for `capacity` events (about 80 bytes each) is taken here: recording allocates nothing. Events beyond it
  // are counted and left out, and the file says so.
  StepTrace(int rank, size_t capacity = kDefaultCapacity);

  // Recording; thread-safe. Names are static text.
  void step(int64_t number, Clock::time_point from, Clock::time_point to);
  void compute(const char* name, int micro, int chunk, Clock::time_point from, Clock::time_point to);
  void node(const PlanNode& node, Clock::time_point from, Clock::time_point to);
  void operation(const OperationNote& note, Clock::time_point issued, Clock::time_point done) override {
    add(Kind::kOperation, note, issued, done);
  }
  void waited(const OperationNote& note, Clock::time_point from, Clock::time_point to) override {
    add(Kind::kWait, note, from, to);
  }
  void spilled(const char* verb, int64_t bytes, Clock::time_point from, Clock::time_point to) override {
    add(Kind::kSpill, verb, bytes, from, to);
  }
  void waited_for_spill(const char* verb, int64_t bytes, Clock::time_point from, Clock::time_point to) override {
    add(Kind::kSpillWait, verb, bytes, from, to);
  }

  // Times in the file are `steady clock + offset_ns - origin_ns`. clock_note: a sentence about how good that is, kept
  // in the file.
  void align(int64_t origin_ns, int64_t offset_ns, const std::string& clock_note);
  // What the process is called: "rank 3: stage 1, data 0, tensor 1".
  void describe(const std::string& text) { description_ = text; }

  // Writes everything recorded so far (atomically). Throws Error(kIo). Nothing may be recorded meanwhile by this
  // thread; others wait.
  void write(const std::string& path) const;
  std::string json() const;

  static constexpr size_t kDefaultCapacity = 400000;

 private:
  enum class Kind : uint8_t { kStep, kCompute, kOperation, kWait, kSpill, kSpillWait };
  struct Event {
    Kind kind = Kind::kCompute;
    Site site = Site::kControl;
    const char* name = "";
    int micro = -1, chunk = 0;  // compute
    int group = 0, peer = -1;   // operations and waits
    int64_t number = 0;         // step, or sequence of an operation
    int64_t bytes = 0;
    int64_t from = 0, to = 0;  // ns of the steady clock
  };
  struct Tracks;
  void add(Event event, Clock::time_point from, Clock::time_point to);
  void add(Kind kind, const char* verb, int64_t bytes, Clock::time_point from, Clock::time_point to);
  void add(Kind kind, const OperationNote& note, Clock::time_point from, Clock::time_point to);
  // The event, on the next free lane of its track.
  std::string event_json(const Event& event, Tracks& tracks) const;
  std::string track_names_json(const Tracks& tracks) const;

  int rank_;
  std::string description_, clock_note_ = "times are this machine's steady clock";
  int64_t origin_ = 0, offset_ = 0;
  mutable std::mutex mutex_;
  std::vector<Event> events_;
  size_t used_ = 0;
  int64_t dropped_ = 0;
};

// Whether a trace shows step `step` (from 1) in a job of the run whose first step is `first_step`.
bool traces_step(const LayoutConfig& layout, int64_t step, int64_t first_step);

// Aligns the clocks of all ranks; all call it together. barrier() lets ranks go on at about the same moment;
// from_first hands everybody rank 0's text. On one machine the steady clock is shared and the offset is 0; otherwise it
// is the median over several barriers of (rank 0's time - mine), good to about the latency of a message.
struct ClockAlignment {
  int64_t origin_ns = 0, offset_ns = 0;
  std::string note;
};
ClockAlignment align_clocks(bool one_machine, const std::function<void()>& barrier,
                            const std::function<std::string(const std::string&)>& from_first);

}  // namespace thinwire
