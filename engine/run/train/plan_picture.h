// The picture of `train --print-schedule --format svg`.
#pragma once

#include <string>
#include <vector>

#include "parallel/schedule/plan.h"

namespace thinwire {

// An SVG file: one row per stage, works as boxes along the simulated time, then the closing nodes; idle share of each.
std::string plan_picture(const std::vector<Plan>& plans, const PipelineShape& shape, const NodeCosts& costs);

}  // namespace thinwire
