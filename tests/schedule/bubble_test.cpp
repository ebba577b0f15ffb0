// Idle share of each schedule on four ranks that execute real plans with real messages, work being a timed sleep, so
// that idle stages lend nobody their core.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>

#include "parallel/sites/pp_boundary.h"
#include "tests/comm/local_group.h"
#include "tests/schedule/plan_shapes.h"

namespace thinwire::bubble_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration;

constexpr int kStages = 4, kMicroBatches = 8, kElements = 512, kWindows = 5;
constexpr double kUnit = 0.012;  // seconds of a forward, an input half and a weight half of a whole stage
constexpr double kLatency =
    0.001;  // what one message may take until its receiver goes on: a poll at the longest back-off

struct Span {
  double busy = 0.0, end = 0.0;  // seconds; end: since the common start
  double asked = 0.0;            // busy as it was to be
  int works = 0;
};

Channel channel_of(Progress& progress, int stages, int number, Site site) {
  return Channel(std::make_unique<Communicator>(progress, all_ranks(stages), number, site, nullptr));
}

// One rank of the pipeline: buffers per chunk and slot, tickets as the contract of plans says.
class StageRank {
 public:
  StageRank(Progress& progress, const PipelineShape& shape, const Plan& plan)
      : shape_(shape),
        plan_(plan),
        pp_(channel_of(progress, shape.stages, 1, Site::kPpForward),
            channel_of(progress, shape.stages, 2, Site::kPpBackward)) {
    for (int slots : plan.slots) slots_.emplace_back(static_cast<size_t>(slots));
  }

  Span run(Clock::time_point start) {
    Span span;
    for (const PlanNode& node : plan_.nodes) {
      if (node.kind > NodeKind::kExchange) break;
      if (node.kind == NodeKind::kExchange) {
        for (const Message& m : node.messages) issue(m);
        continue;
      }
      Slot& slot = slots_[static_cast<size_t>(node.chunk)][static_cast<size_t>(node.slot)];
      const int vs = node.chunk * shape_.stages + pp_.stage();
      if (node.kind == NodeKind::kForward) {
        slot.tickets[kIn].wait(stream_);
        slot.tickets[kOut].wait(stream_);
        if (vs > 0) expect(slot, kIn, vs - 1, node.micro);
      } else if (node.kind != NodeKind::kBackwardWeight) {
        slot.tickets[kGradientIn].wait(stream_);
        slot.tickets[kGradientOut].wait(stream_);
        if (vs + 1 < shape_.stages * shape_.chunks) expect(slot, kGradientIn, vs, node.micro);
      }
      const double work = (node.kind == NodeKind::kBackward ? 2 : 1) * kUnit / shape_.chunks;
      span.asked += work, ++span.works;
      const auto from = Clock::now();
      std::this_thread::sleep_for(duration<double>(work));
      const auto to = Clock::now();
      span.busy += duration<double>(to - from).count();
      span.end = duration<double>(to - start).count();
      if (node.kind == NodeKind::kForward) fill(slot, kOut, vs, node.micro);
      if (node.kind == NodeKind::kBackward || node.kind == NodeKind::kBackwardInput)
        fill(slot, kGradientOut, vs - 1, node.micro);
    }
    for (auto& chunk : slots_)
      for (Slot& slot : chunk)
        for (Ticket& ticket : slot.tickets) ticket.wait(stream_);
    return span;
  }

  int wrong() const { return wrong_; }

 private:
  enum Place { kIn, kOut, kGradientIn, kGradientOut, kPlaces };
  struct Slot {
    Buffer buffers[kPlaces] = {
        {DType::f32, kElements}, {DType::f32, kElements}, {DType::f32, kElements}, {DType::f32, kElements}};
    Ticket tickets[kPlaces];
  };

  static double value_of(Place place, int edge, int micro) {
    return (edge * kMicroBatches + micro) * 2 + (place == kGradientIn || place == kGradientOut ? 1 : 0);
  }
  static void fill(Slot& slot, Place place, int edge, int micro) {
    for (int i = 0; i < kElements; ++i) slot.buffers[place].set(i, value_of(place, edge, micro));
  }
  void expect(const Slot& slot, Place place, int edge, int micro) {
    for (int i : {0, kElements - 1})
      if (slot.buffers[place].get(i) != value_of(place, edge, micro)) ++wrong_;
  }

  void issue(const Message& m) {
    Slot& slot = slots_[static_cast<size_t>(m.chunk)][static_cast<size_t>(m.slot)];
    const Place place = m.forward ? (m.send ? kOut : kIn) : (m.send ? kGradientOut : kGradientIn);
    const View data = slot.buffers[place].view();
    Ticket& ticket = slot.tickets[place];
    if (m.forward)
      ticket = m.send ? pp_.send_forward(data, stream_) : pp_.receive_forward(data, stream_);
    else
      ticket = m.send ? pp_.send_backward(data, stream_) : pp_.receive_backward(data, stream_);
  }

  const PipelineShape& shape_;
  const Plan& plan_;
  HostStream stream_;
  PpBoundary pp_;
  std::vector<std::vector<Slot>> slots_;
  int wrong_ = 0;
};

// One run of a plan. stretch: how much longer works took than they were to; wake: how much too late a sleep of this run
// was over, on average, which is what waking up took on this machine then.
struct Window {
  double total = 0.0, idle = 0.0, stretch = 0.0, wake = 0.0;
};

Window measure(const PipelineShape& shape) {
  const std::vector<Plan> plans = make_plans(shape);
  std::vector<Span> spans(static_cast<size_t>(shape.stages));
  std::barrier<> gate(shape.stages);
  Clock::time_point start;
  std::mutex mutex;
  run_ranks(shape.stages, [&](Progress& progress) {
    const size_t rank = static_cast<size_t>(progress.transport().rank());
    StageRank stage(progress, shape, plans[rank]);
    gate.arrive_and_wait();
    if (rank == 0) start = Clock::now();
    gate.arrive_and_wait();
    const Span span = stage.run(start);
    std::lock_guard<std::mutex> lock(mutex);
    spans[rank] = span;
    EXPECT_EQ(stage.wrong(), 0) << "data of another micro-batch, " << text_of(shape);
  });
  Window w;
  double busy = 0.0, asked = 0.0;
  int works = 0;
  for (const Span& span : spans) w.total = std::max(w.total, span.end);
  for (const Span& span : spans) {
    w.idle += (1.0 - span.busy / w.total) / shape.stages;
    busy += span.busy, asked += span.asked, works += span.works;
  }
  w.stretch = busy / asked;
  w.wake = std::max(0.0, busy - asked) / works;
  return w;
}

// The middle one of `windows` by what `of` says of them.
template <typename F>
double median(const std::vector<Window>& windows, const F& of) {
  std::vector<double> values;
  for (const Window& w : windows) values.push_back(of(w));
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// With work of equal length the schedules have no slack: in the worst case the longest chain of dependent works crosses
// a stage boundary at each of its works, and each crossing adds the latency of a message: a poll at the longest
// back-off, and two threads that wake up. The chain of an ideal plan has total / shortest work of them.
double idle_tolerance(const PipelineShape& shape, double ideal_total, double wake) {
  const double crossings = ideal_total / (kUnit / shape.chunks), latency = kLatency + 2 * wake;
  return crossings * latency / (ideal_total + crossings * latency);
}

// Judged are medians, in the time that works really took: whatever else the machine does stretches works and waking up.
TEST(Bubble, MeasuredIdleShareIsThatOfTheFormula) {
  const auto idle = [](const Window& w) { return w.idle; };
  const auto total = [](const Window& w) { return w.total / w.stretch; };
  std::vector<Window> plain, zero;
  for (const PipelineShape& shape : {PipelineShape{ScheduleKind::kGpipe, kStages, 1, kMicroBatches},
                                     PipelineShape{ScheduleKind::k1f1b, kStages, 1, kMicroBatches},
                                     PipelineShape{ScheduleKind::kInterleaved, kStages, 2, kMicroBatches},
                                     PipelineShape{ScheduleKind::kZbH1, kStages, 1, kMicroBatches}}) {
    const double formula = bubble_formula(shape, kUnit, kUnit, kUnit);
    const double ideal = 3 * kUnit * kMicroBatches / (1.0 - formula);
    std::vector<Window> windows;
    for (int i = 0; i < kWindows; ++i) windows.push_back(measure(shape));
    const auto excess = [&](const Window& w) { return (w.idle - formula) / idle_tolerance(shape, ideal, w.wake); };
    std::printf(
        "%-48s idle %5.2f %% formula %5.2f %% (%.2f of the tolerance), total %.1f ms ideal %.1f ms, wake-ups %.2f ms\n",
        text_of(shape).c_str(), 100 * median(windows, idle), 100 * formula, median(windows, excess),
        1000 * median(windows, total), 1000 * ideal, 1000 * median(windows, [](const Window& w) { return w.wake; }));
    EXPECT_LE(median(windows, excess), 1.0) << text_of(shape);
    // Below only as far as sleeps overrun: busy time then grows with the total.
    EXPECT_GE(median(windows, excess), -1.0) << text_of(shape);
    if (shape.kind == ScheduleKind::k1f1b) plain = windows;
    if (shape.kind == ScheduleKind::kZbH1) zero = windows;
  }
  // In the same memory (plan_test), ZB-H1 saves (p - 1) of the two halves; at least half of that is seen.
  EXPECT_LT(median(zero, idle), median(plain, idle));
  EXPECT_LT(median(zero, total), median(plain, total) - kUnit * (kStages - 1));
}

// Every shape with messages that are checked: other sizes, fewer micro-batches than stages, wraps.
TEST(Bubble, AllSchedulesDeliverTheRightData) {
  for (const PipelineShape& shape :
       {PipelineShape{ScheduleKind::kInterleaved, 2, 3, 5}, PipelineShape{ScheduleKind::kInterleaved, 3, 2, 4},
        PipelineShape{ScheduleKind::kZbH1, 4, 1, 2}, PipelineShape{ScheduleKind::k1f1b, 3, 1, 1},
        PipelineShape{ScheduleKind::kGpipe, 2, 1, 6}})
    measure(shape);
}

}  // namespace
}  // namespace thinwire::bubble_test
