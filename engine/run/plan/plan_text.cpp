// Predictions in words, in JSON, and as a trace.
#include "engine/run/plan/plan_text.h"

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/core/text.h"
#include "engine/run/trace/report_parts.h"
#include "parallel/schedule/plan.h"

namespace thinwire {
namespace {

using PlanJson = nlohmann::ordered_json;

std::string machine_words(const Machine& machine) {
  return machine.ranking_only ? "ranking only: the machine is not calibrated, so compare its predictions with each "
                                "other, not with a clock"
                              : "calibrated: " + (machine.source.empty() ? machine.name : machine.source);
}

// What a part of the critical path is, e.g. "wire dp.gradient".
std::string part_name(const Prediction& p, const PathPart& part) {
  constexpr const char* names[] = {"compute", "packing and sending", "moving messages", "until the next poll", "wire"};
  static_assert(std::size(names) == static_cast<size_t>(PathKind::kCount));
  std::string name = names[static_cast<size_t>(part.kind)];
  if (part.kind != PathKind::kWire) return name;
  const Tape& tape = p.tapes[static_cast<size_t>(part.actor)];
  return name + " " + std::string(name_of(tape.operations[static_cast<size_t>(part.operation)].site));
}

// Milliseconds of the critical path by what it is, the longest first.
std::vector<std::pair<std::string, double>> path_by_kind(const Prediction& p) {
  std::map<std::string, double> sums;
  for (const PathPart& part : p.simulation.critical) sums[part_name(p, part)] += 1e3 * (part.to - part.from);
  std::vector<std::pair<std::string, double>> kinds(sums.begin(), sums.end());
  std::ranges::stable_sort(kinds, std::greater<>(), &std::pair<std::string, double>::second);
  return kinds;
}

}  // namespace

std::string milliseconds(double ms) {
  ms = std::max(0.0, ms);  // differences round to -0.00
  return printed(ms < 10.0 ? "%.2f ms" : ms < 1000.0 ? "%.1f ms" : "%.0f ms", ms);
}

std::string plan_page(const std::string& title, const std::string& text) {
  return report::page(
      title, "<h1>" + html_escape(title) + "</h1><pre style=\"white-space:pre-wrap\">" + html_escape(text) + "</pre>",
      "");
}

std::string prediction_text(const RunConfig& config, const Cluster& cluster, const Prediction& p) {
  std::string text = "cluster: " + cluster.name + ", " + std::to_string(cluster.nodes) + " nodes of " +
                     std::to_string(cluster.ranks_per_node) + " ranks (" + machine_words(cluster.machine) + ")\n";
  text += "layout: " + p.layout + "\n";
  text += "step: " + milliseconds(p.step_ms) + ", " + printed("%.0f", p.tokens_per_s) + " tokens/s, memory per rank " +
          printed("%.1f", p.memory_bytes / 1048576.0) + " MiB";
  if (cluster.memory_per_rank > 0.0 && p.memory_bytes > cluster.memory_per_rank)
    text += ", which is more than the " + printed("%.1f", cluster.memory_per_rank / 1048576.0) + " MiB that it has";
  text += "\nwhere a rank's time goes (mean): compute " + milliseconds(p.compute_ms) + ", slower beside others " +
          milliseconds(p.contention_ms) + ", packing and sending " + milliseconds(p.issue_ms) + ", waiting " +
          milliseconds(p.wait_ms) + "\n";
  std::string path;
  for (const auto& [name, ms] : path_by_kind(p)) path += (path.empty() ? "" : ", ") + name + " " + milliseconds(ms);
  if (!path.empty()) text += "critical path: " + path + "\n";
  if (config.layout.pipeline > 1) text += "pipeline bubble: " + printed("%.1f", 100.0 * p.bubble) + " % of the step\n";
  for (size_t site = 0; site < kSiteNames.size(); ++site) {
    const SitePrediction& s = p.sites[site];
    if (s.wire_bytes_total == 0) continue;
    text += "  " + std::string(kSiteNames[site]) +
            std::string(16 - std::min<size_t>(15, kSiteNames[site].size()), ' ') +
            printed("%10.3f", static_cast<double>(s.wire_bytes) / 1048576.0) + " MiB of rank 0, exposed " +
            milliseconds(s.exposed_ms) + " (mean of all ranks " + milliseconds(s.exposed_ms_mean) + ")\n";
  }
  text += p.folded ? "simulated: one rank of each stage, for all\n"
                   : "simulated: " + std::to_string(p.ranks) + (p.ranks == 1 ? " rank\n" : " ranks\n");
  return text;
}

std::string prediction_json(const Cluster& cluster, const Prediction& p, const std::string& command) {
  PlanJson line = {{"plan", "prediction"},
                   {"cluster", cluster.name},
                   {"ranking_only", cluster.machine.ranking_only},
                   {"ranks", p.ranks},
                   {"layout", p.layout},
                   {"step_ms", p.step_ms},
                   {"tokens_per_s", p.tokens_per_s},
                   {"memory_bytes", static_cast<int64_t>(p.memory_bytes)},
                   {"bubble", p.bubble},
                   {"compute_ms", p.compute_ms},
                   {"contention_ms", p.contention_ms},
                   {"issue_ms", p.issue_ms},
                   {"wait_ms", p.wait_ms},
                   {"folded", p.folded},
                   {"bytes_exact", p.bytes_exact},
                   {"comm", PlanJson::object()}};
  for (size_t site = 0; site < kSiteNames.size(); ++site) {
    const SitePrediction& s = p.sites[site];
    if (s.wire_bytes_total == 0) continue;
    line["comm"][std::string(kSiteNames[site])] = {{"wire_bytes", s.wire_bytes},
                                                   {"wire_bytes_total", s.wire_bytes_total},
                                                   {"exposed_ms", s.exposed_ms},
                                                   {"exposed_ms_mean", s.exposed_ms_mean}};
  }
  for (const auto& [name, ms] : path_by_kind(p)) line["critical_ms"][name] = ms;
  line["command"] = command;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string prediction_trace(const Cluster& cluster, const Prediction& p) {
  PlanJson events = PlanJson::array();
  for (size_t a = 0; a < p.tapes.size(); ++a) {
    const int pid = p.tapes[a].rank;
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", pid},
                      {"args", {{"name", "simulated rank " + std::to_string(pid) + " on " + cluster.name}}}});
  }
  for (const SimSpan& s : p.simulation.spans) {
    const Tape& tape = p.tapes[static_cast<size_t>(s.actor)];
    std::string name = s.kind == SpanKind::kWork ? to_string(PlanNode{.kind = s.node, .micro = s.micro}, false) : "";
    if (s.node == NodeKind::kExchange && s.kind == SpanKind::kWork) name = "exchange";
    if (s.operation >= 0) {
      const TapeOperation& operation = tape.operations[static_cast<size_t>(s.operation)];
      name = std::string(name_of(operation.site)) + " " + operation.verb;
    }
    constexpr const char* lanes[] = {"compute", "waits", "operations"};
    constexpr const char* categories[] = {"compute", "exposed", "communication"};
    const int lane = static_cast<int>(s.kind);
    PlanJson event = {{"ph", lane == 2 ? "b" : "X"}, {"name", name},      {"cat", categories[lane]}, {"pid", tape.rank},
                      {"tid", lanes[lane]},          {"ts", s.from * 1e6}};
    if (lane != 2) {
      event["dur"] = (s.to - s.from) * 1e6;
      events.push_back(event);
      continue;
    }
    event["id"] = std::to_string(tape.rank) + "." + std::to_string(s.operation);
    events.push_back(event);
    event["ph"] = "e", event["ts"] = s.to * 1e6;
    events.push_back(event);
  }
  for (const PathPart& part : p.simulation.critical)
    events.push_back({{"ph", "X"},
                      {"name", part_name(p, part)},
                      {"cat", "critical"},
                      {"pid", p.tapes[static_cast<size_t>(part.actor)].rank},
                      {"tid", "critical path"},
                      {"ts", part.from * 1e6},
                      {"dur", (part.to - part.from) * 1e6}});
  return PlanJson{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump(-1, ' ', false,
                                                                           nlohmann::json::error_handler_t::replace);
}

}  // namespace thinwire
