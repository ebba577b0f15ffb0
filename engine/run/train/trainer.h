// A training run from start to end: data, steps, evaluation, metrics, checkpoints, signals, and the code it leaves
// with.
#pragma once

#include "engine/base/core/error.h"
#include "engine/run/config/load_config.h"
#include "engine/run/train/job.h"

namespace thinwire {

// Throws kBadConfig for thread counts and batches that this version or this machine cannot run.
void refuse_what_is_not_here(const RunConfig& run);

// Trains as configured on all ranks of the job, resuming from the run directory where it holds a valid checkpoint with
// the same model and data keys. Returns kFinished or kPreempted; throws Error for everything else: an AgreedError where
// all ranks leave together, otherwise the caller ends the others (status.json is written in all cases once the run
// directory is ours).
ExitCode train(const ResolvedConfig& config, bool allow_faults, Job& job);

}  // namespace thinwire
