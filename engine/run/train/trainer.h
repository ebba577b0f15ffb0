// A training run from start to end: data, steps, evaluation, metrics, checkpoints, signals, and the code it leaves
// with.
#pragma once

#include "engine/base/core/error.h"
#include "engine/run/config/load_config.h"

namespace thinwire {

// Throws kBadConfig for layouts, thread counts and batches that this version or this machine cannot run.
void refuse_what_is_not_here(const RunConfig& run);

// Trains as configured, resuming from the run directory where it holds a valid checkpoint with the same model and data
// keys. Returns kFinished or kPreempted; throws Error for everything else (status.json is written in all cases once the
// run directory is ours).
ExitCode train(const ResolvedConfig& config, bool allow_faults);

}  // namespace thinwire
