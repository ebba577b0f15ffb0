// The names inside a run directory; every program finds the files of a run through these.
#pragma once

#include <string>

namespace thinwire {

// All functions join paths and touch no disk, except create_run_directory.
std::string path_in_run(const std::string& run_dir, const std::string& name);
inline std::string resolved_config_path(const std::string& run_dir) {
  return path_in_run(run_dir, "config.resolved.json");
}
inline std::string metrics_path(const std::string& run_dir) {
  return path_in_run(run_dir, "metrics.jsonl");
}
inline std::string tensorboard_dir(const std::string& run_dir) {
  return path_in_run(run_dir, "tensorboard");
}
inline std::string checkpoints_dir(const std::string& run_dir) {
  return path_in_run(run_dir, "checkpoints");
}
inline std::string revisions_path(const std::string& run_dir) {
  return path_in_run(run_dir, "revisions.jsonl");
}
inline std::string prediction_path(const std::string& run_dir) {
  return path_in_run(run_dir, "prediction.json");
}
inline std::string status_path(const std::string& run_dir) {
  return path_in_run(run_dir, "status.json");
}
inline std::string log_path(const std::string& run_dir) {
  return path_in_run(run_dir, "log.txt");
}
inline std::string report_path(const std::string& run_dir) {
  return path_in_run(run_dir, "report.html");
}
inline std::string trace_path(const std::string& run_dir, int rank) {
  return path_in_run(run_dir, "trace.rank" + std::to_string(rank) + ".json");
}

// Last part of the path, for titles: "runs/a/" gives "a", "." gives the name of the current directory.
std::string run_name(const std::string& run_dir);

// Makes the run directory with tensorboard/ and checkpoints/ in it (checkpoints may live elsewhere:
// `with_checkpoints`). Existing ones are kept. Throws Error(kBusy) when it cannot be made or written.
void create_run_directory(const std::string& run_dir, bool with_checkpoints = true);

}  // namespace thinwire
