// Order as plain data: the nodes a rank executes in one step. The trainer walks them; nothing else decides order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace thinwire {

enum class NodeKind : uint8_t {
  kForward,         // one micro-batch through one chunk of this rank's layers; behind the last chunk the loss too
  kBackward,        // input and weight gradients of one micro-batch of a chunk, block by block
  kBackwardInput,   // input gradients only (zero-bubble schedules)
  kBackwardWeight,  // the weight gradients that kBackwardInput left behind
  kExchange,        // sends and receives that are started together
  kReduce,          // gradients of all units are complete: finish their reductions
  kControl,         // agree on norm, loss and non-finite flags
  kOptimizer,       // step the weights that only this rank computes with, or skip
  kGather,          // step the other weights unit by unit, and start their parameter all-gathers
};

// It makes gradients of its chunk's input.
inline bool is_backward(NodeKind kind) {
  return kind == NodeKind::kBackward || kind == NodeKind::kBackwardInput;
}

enum class ScheduleKind : uint8_t { kGpipe, k1f1b, kInterleaved, kZbH1 };

// One activation or gradient between neighbours in the chain of virtual stages (chunk * stages + stage). The edge has
// the number of its upper end: edge e joins virtual stages e and e + 1. Both ends name a message alike.
struct Message {
  bool send = false;
  bool forward = true;  // activation down, or gradient up
  int edge = 0;
  int micro = 0;
  int peer = 0;  // stage of the other end
  int slot = 0;  // of this rank's chunk, where the data lies
  int chunk = 0;
  bool operator==(const Message&) const = default;
};

struct PlanNode {
  NodeKind kind;
  int micro = -1;     // micro-batch, -1 where it has no meaning
  int chunk = 0;      // virtual chunk of this rank
  int slot = 0;       // activations of this chunk that the micro-batch lives in, from its forward (or its receive) on
  bool last = false;  // backward (or its weight half): the chunk's last one of the step, unit gradients are then final
  std::vector<Message> messages;  // kExchange
  bool operator==(const PlanNode&) const = default;
};

struct Plan {
  std::vector<PlanNode> nodes;
  std::vector<int> slots;  // per chunk: micro-batches whose activations are alive at once
  int weight_halves = 0;   // micro-batches whose weight half is outstanding at once, over all chunks (0: never split)
  bool operator==(const Plan&) const = default;
};

struct PipelineShape {
  ScheduleKind kind = ScheduleKind::k1f1b;
  int stages = 1, chunks = 1, micro_batches = 1;
};

// The plan of `stage`, or of all stages. Any number of micro-batches, fewer than stages too; with one stage and one
// chunk every schedule is F0 B0 F1 B1. chunks > 1 only with kInterleaved (Error(kBadConfig)); with one stage such
// chunks send to their own rank, both ends of a message in one exchange node.
//
// How an exchange is executed: all its messages are issued, nothing is waited for. Each message has a ticket of its
// own. A receive's is waited for where its data is used (forward; backward or backward_input), a send's before its
// buffer is written again (the slot's output by the next forward in it, its input gradient by the next backward). Sends
// stand directly behind their making where the order of messages permits, receives before the work during which they
// arrive.
//
// Slots: in a chunk, a micro-batch has its slot from its forward's receive (first virtual stage: from its forward)
// until its backward, weight half included, is done and its gradient was sent in an earlier node. As few as the order
// of works permits, as the schedule's authors bound it; never more than with more micro-batches.
Plan make_plan(const PipelineShape& shape, int stage);
std::vector<Plan> make_plans(const PipelineShape& shape);

// Runs the plans of all stages in the strictest model: every rank has one queue, an exchange blocks until all its
// messages have met their partners (rendezvous). Returns the first fault as text, empty if there is none: deadlock,
// unmatched or differently ordered messages, a use before its receive, a slot used by two micro-batches at once, more
// slots or weight halves alive than the plan says, a micro-batch forgotten, `last` not on the last one.
std::string validate(const std::vector<Plan>& plans, const PipelineShape& shape);

// Durations in milliseconds; backward = backward_input + backward_weight.
struct NodeCosts {
  std::vector<double> forward, backward_input, backward_weight;  // per virtual stage (chunk * stages + stage)
  double transfer = 0.0;
};
// Messages are numbered from 0 on: every edge, micro-batch and direction of a step.
inline size_t message_number(const PipelineShape& shape, bool forward, int edge, int micro) {
  return static_cast<size_t>((edge * shape.micro_batches + micro) * 2 + (forward ? 1 : 0));
}
struct PlanEvent {
  int stage = 0;
  size_t node = 0;
  int64_t waits[2] = {-1, -1};  // messages that it waited for: its input, what left its buffer before; -1: none
};
struct PlanTimes {
  double total = 0.0;                           // of the pipelined part
  std::vector<double> idle;                     // per stage: 1 - busy / total
  std::vector<std::vector<double>> start, end;  // per stage and node
  std::vector<PlanEvent> events;                // all nodes, each behind what it waits for
  std::vector<double> arrival;                  // per number of a message: when it is over
};
// Events of the asynchronous runtime: works in order on every rank, a message takes `transfer` from when both ends are
// issued, tickets are waited for as make_plan says. Messages do not slow each other down. The closing nodes take no
// time and start at `total`. CHECKs that the plans can be executed.
PlanTimes simulate(const std::vector<Plan>& plans, const PipelineShape& shape, const NodeCosts& costs);
// The published bubble of the schedule with equal stages: idle share of the pipelined part, durations per virtual
// stage. What simulate() gives with transfer 0: exactly for GPipe and 1F1B with any number of micro-batches, for
// interleaved and ZB-H1 under the conditions in docs/schedules.md.
double bubble_formula(const PipelineShape& shape, double forward, double backward_input, double backward_weight);

// One line per rank: "F0 F1 B0 ... R C O G", letters F B I W (backward, its input half, its weight half), chunks as
// "F0.1" when there are several. with_messages: exchanges as "[>f3 <b1]": activation of micro-batch 3 sent, gradient of
// micro-batch 1 received; the chunk named is this rank's.
std::string to_string(const Plan& plan, bool with_messages = false);
std::string to_string(const PlanNode& node, bool with_chunk);

}  // namespace thinwire
