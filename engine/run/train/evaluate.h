// Evaluation: the mean token loss over a run of global batches of a split, without touching any training state.
#pragma once

#include <functional>
#include <optional>

#include "data/batch_loader.h"
#include "engine/run/train/traffic_counts.h"
#include "parallel/sites/control.h"

namespace thinwire {

struct Evaluation {
  double loss = 0.0;        // as a step's, over all batches
  double perplexity = 0.0;  // exp(loss)
  int64_t tokens = 0;
  double ms = 0.0;
  std::vector<double> by_position;  // PositionLosses::means() over all batches and ranks
  TrafficCounts traffic;
};

// One micro-batch through this rank's chunks, without dropout; what arrives from other stages is waited for, what
// leaves for them is under way in `leaving`. `at_the_head` replaces the loss on the last chunk, if given. begin() of
// the traffic is the caller's.
using AtTheHead = std::function<void(Stage& stage, const MicroBatch& micro)>;
void run_micro_batch(Replica& replica, const Batch& batch, Ticket& leaving, const AtTheHead& at_the_head = {});

// Reads `iters` global batches of `split` from sample `first` on. All ranks vote between two micro-batches, about every
// five seconds, whether one of them wishes to stop: then there is no result.
std::optional<Evaluation> evaluate(Replica& replica, const SampleStream& stream, Split split, int64_t first,
                                   int64_t iters, Control& control, const std::function<bool()>& wishes_to_stop);

}  // namespace thinwire
