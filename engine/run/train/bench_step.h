// bench step: times the real training step of a model shape on random tokens.
#pragma once

#include <string>
#include <vector>

#include "engine/run/train/job.h"

namespace thinwire {

// Overrides that describe a named shape (char, tiny, 30m, 124m, 350m, llama_1b); empty if there is none of that name.
std::vector<std::string> shape_overrides(const std::string& name);
std::string shape_names();

// Runs the shape with `overrides` on top; on all ranks of the job; rank 0 prints progress as text, and as its last line
// one JSON object when `json`. `profile` adds the time of each op (and costs a stopwatch per call).
int bench_step(const std::string& shape, const std::vector<std::string>& overrides, bool json, bool profile, Job& job);

}  // namespace thinwire
