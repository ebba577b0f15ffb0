// What a configuration will cost, without doing it: parameters, memory by category, FLOPs, bytes per site, pipeline
// bubble.
#pragma once

#include <string>
#include <vector>

#include "engine/base/device/arena.h"
#include "engine/run/config/run_config.h"

namespace thinwire {

// Bytes a process of ours holds before and beside the arenas: program, libraries, oneDNN's code and scratch, data
// queue, order of samples; on a GPU, in its memory: context, workspaces of products and attention.
size_t process_overhead(const RunConfig& config);

// Arena bytes of one rank of this layout (the largest stage), by the same set-up code that a run uses.
MemoryPlan plan_memory(const RunConfig& config);

// Bytes of host memory that a save takes beside that (the largest stage): it copies weights (where their all-gather is
// coded, also what that made of them), optimizer state, residuals and warm starts at once and writes the copy behind
// the steps. Every run saves, at its end if nowhere else. Of so many ranks of one node together: of replicas one saves
// weights and optimizer state, all of them save residuals.
size_t save_bytes(const RunConfig& config, int ranks = 1);

// Why attention runs on our own kernels, which are slower, on a GPU in 16 bits; empty where it does not, or precision
// leaves no choice.
std::string why_own_attention(const RunConfig& config);

// How long gathered weights stay where the configuration leaves it open: for the whole step where a pipeline would
// gather them again for every micro-batch and `ranks_here` ranks would then need less than half of `memory_here` bytes.
Hold choose_hold(const RunConfig& config, int ranks_here, double memory_here);

// The text that --dry-run prints. Allocates nothing large and touches no accelerator.
std::string dry_run_text(const RunConfig& config);

}  // namespace thinwire
