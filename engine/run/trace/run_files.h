// The names inside a run directory; every program finds the files of a run through these.
#pragma once

#include <string>

namespace thinwire {

// All functions join paths and touch no disk, except create_run_directory.
std::string path_in_run(const std::string& run_dir, const std::string& name);
// Called with the run directory.
struct RunFile {
  const char* name;
  std::string operator()(const std::string& run_dir) const { return path_in_run(run_dir, name); }
};
inline constexpr RunFile resolved_config_path{"config.resolved.json"};
inline constexpr RunFile metrics_path{"metrics.jsonl"};
inline constexpr RunFile tensorboard_dir{"tensorboard"};
inline constexpr RunFile checkpoints_dir{"checkpoints"};
inline constexpr RunFile revisions_path{"revisions.jsonl"};
inline constexpr RunFile prediction_path{"prediction.json"};
inline constexpr RunFile status_path{"status.json"};
inline constexpr RunFile log_path{"log.txt"};
inline constexpr RunFile report_path{"report.html"};
inline std::string trace_path(const std::string& run_dir, int rank) {
  return path_in_run(run_dir, "trace.rank" + std::to_string(rank) + ".json");
}

// Last part of the path, for titles: "runs/a/" gives "a", "." gives the name of the current directory.
std::string run_name(const std::string& run_dir);

// Makes the run directory with tensorboard/ and checkpoints/ in it. Existing ones are kept. Throws Error(kBusy) when it
// cannot be made or written.
void create_run_directory(const std::string& run_dir);

}  // namespace thinwire
