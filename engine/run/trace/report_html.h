// The report: one self-contained HTML page about a run, several runs one after another, or several runs laid over each
// other.
#pragma once

#include <string>
#include <vector>

#include "engine/run/trace/report_data.h"

namespace thinwire {

// A page with a section per run: facts, key figures, charts, bytes per site, the resolved configuration.
std::string report_page(const std::vector<RunData>& runs);

// One page with all runs in each chart and a table of key figures. Colours follow the order of `runs`.
std::string compare_page(const std::vector<RunData>& runs);

}  // namespace thinwire
