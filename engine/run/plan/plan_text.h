// What the program `plan` prints: a prediction as text, and as one JSON line.
#pragma once

#include <string>

#include "engine/run/plan/prediction.h"

namespace thinwire {

std::string prediction_text(const RunConfig& config, const Cluster& cluster, const Prediction& prediction);
// The line that --json ends with; `command` repeats it.
std::string prediction_json(const Cluster& cluster, const Prediction& prediction, const std::string& command);
// The simulated step as a Chrome trace (chrome://tracing, Perfetto): a process per simulated rank. Needs spans and
// tapes.
std::string prediction_trace(const Cluster& cluster, const Prediction& prediction);
// A page of its own around what is printed.
std::string plan_page(const std::string& title, const std::string& text);
std::string milliseconds(double ms);  // "9.87 ms", "98.7 ms", "1234 ms"

}  // namespace thinwire
