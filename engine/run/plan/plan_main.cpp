// The program `plan`: predicts a step of a configuration on a cluster, or looks for the fastest configuration.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/program.h"
#include "engine/base/core/shipped.h"
#include "engine/base/ops/ops.h"
#include "engine/run/config/load_config.h"
#include "engine/run/config/named_shapes.h"
#include "engine/run/config/presets.h"
#include "engine/run/plan/plan_text.h"
#include "engine/run/plan/prediction.h"
#include "engine/run/plan/search.h"

namespace {

using namespace thinwire;

struct PlanOptions {
  std::vector<std::string> configs, overrides;
  std::vector<std::string> presets = {"none", "bf16_wire", "thinwire"};
  std::string shape, cluster, html, trace;
  int64_t ranks = 0;
  bool json = false, search = false;
};

// Overrides on top of the configuration or the shape; `more` on top of all.
RunConfig load(const PlanOptions& o, const Cluster& cluster, const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides;
  if (!o.shape.empty()) {
    overrides = shape_overrides(o.shape);
    if (overrides.empty()) throw_usage("plan: no shape \"" + o.shape + "\" (known: " + shape_names() + ")");
  }
  overrides.insert(overrides.end(), o.overrides.begin(), o.overrides.end());
  overrides.insert(overrides.end(), more.begin(), more.end());
  ConfigOptions options;
  options.ranks = o.ranks > 0 ? o.ranks : cluster.ranks();
  options.found_ranks_per_node = cluster.ranks_per_node;
  options.dry_run = true;
  return load_config(o.configs, overrides, options).run;
}

std::string command_of(int argc, char** argv) {
  std::string command = "build/plan";
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  return command;
}

int run_search(const PlanOptions& o, const Cluster& cluster, const std::string& command) {
  if (!o.trace.empty()) throw_usage("plan: --trace is of one plan: leave out --search");
  std::vector<ConfigProblem> problems;
  for (const std::string& preset : o.presets) read_preset(preset, problems);
  if (!problems.empty()) throw_problems(std::move(problems));
  const auto config_of = [&](const std::vector<std::string>& more) { return load(o, cluster, more); };
  const SearchResult result = search(config_of, cluster, o.presets);
  // Looks for rates between nodes with dozens of simulations.
  const bool told = !o.json || !o.html.empty() || result.best.empty();
  const std::string text = told ? search_text(result, config_of, cluster) : "";
  if (!o.html.empty()) write_file_atomic(o.html, plan_page("Search on " + cluster.name, text), false);
  if (!o.json) std::fputs(text.c_str(), stdout);
  if (o.json && result.best.empty()) std::fputs(text.c_str(), stderr);
  if (o.json) std::fputs(search_json(result, cluster, command).c_str(), stdout);
  return static_cast<int>(result.best.empty() ? ExitCode::kBadConfig : ExitCode::kFinished);
}

int run_plan(const PlanOptions& o, const std::string& command) {
  if (o.configs.empty() == o.shape.empty())
    throw_usage("plan: say what to plan: --config C.json or --shape NAME (known: " + shape_names() + ")");
  if (o.cluster.empty())
    throw_usage("plan: say where: --cluster F.json (docs/planner.md; shipped ones: configs/clusters)");
  std::vector<std::string> files = o.configs;
  files.push_back(o.cluster);
  for (const std::string& name : files)
    if (const std::string found = shipped_file(name); !found.empty())
      std::fprintf(stderr, "note: %s: %s\n", name.c_str(), shipped_note(found).c_str());
  const std::string shipped = shipped_file(o.cluster);
  const Cluster cluster = read_cluster(shipped.empty() ? o.cluster : shipped);
  if (o.ranks > cluster.ranks())
    throw_bad_config(o.cluster + ": --ranks " + std::to_string(o.ranks) + ", and the cluster has " +
                     std::to_string(cluster.ranks()) + ": more nodes in the file, or fewer ranks");
  if (o.search) return run_search(o, cluster, command);
  const RunConfig config = load(o, cluster);
  const Prediction prediction = predict(config, cluster, {.spans = true});
  if (!o.trace.empty()) write_file_atomic(o.trace, prediction_trace(cluster, prediction), false);
  const std::string text = prediction_text(config, cluster, prediction);
  if (!o.html.empty()) write_file_atomic(o.html, plan_page("Plan on " + cluster.name, text), false);
  if (!o.json) std::fputs(text.c_str(), stdout);
  if (o.json) std::printf("%s\n", prediction_json(cluster, prediction, command).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("plan", [&]() -> int {
    CLI::App app{
        "Predicts a training step on a cluster: plan --config C.json [key=value ...] --cluster F.json [--ranks N]. "
        "Costs no cluster: the step's own code is rehearsed, and what it computes and sends is simulated."};
    PlanOptions o;
    add_version(app, "plan", [] { return cpu_ops().isa(); });
    app.add_option("--config", o.configs, "configuration file; several: later ones win")->allow_extra_args(false);
    app.add_option("--shape", o.shape, "a shape of bench step instead: " + shape_names());
    app.add_option("overrides", o.overrides, "configuration overrides, e.g. model_parallel_size=2");
    app.add_option("--cluster", o.cluster, "cluster file");
    app.add_option("--ranks", o.ranks, "ranks that run (default: all of the cluster)")->check(CLI::Range(1, 1 << 20));
    app.add_option("--trace", o.trace, "write the simulated step as a Chrome trace");
    app.add_option("--html", o.html, "write what is printed as a page");
    auto* const search = app.add_flag(
        "--search", o.search, "look for the fastest layout, schedule, micro-batch and preset under the memory limit");
    app.add_option("--presets", o.presets, "compression presets that --search tries")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->needs(search);
    app.add_flag("--json", o.json, "print one JSON line in place of the text; --search: one per candidate before it");
    if (const auto code = parse_command_line(app, "plan", argc, argv)) return *code;
    const int code = run_plan(o, command_of(argc, argv));
    finish_printing("plan");
    return code;
  });
}
