// Path joining for run_files.h.
#include "engine/run/trace/run_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"

namespace thinwire {
namespace {

std::string join(const std::string& dir, const char* name) {
  if (dir.empty()) return name;
  return dir.back() == '/' ? dir + name : dir + "/" + name;
}

}  // namespace

std::string resolved_config_path(const std::string& run_dir) {
  return join(run_dir, "config.resolved.json");
}
std::string metrics_path(const std::string& run_dir) {
  return join(run_dir, "metrics.jsonl");
}
std::string tensorboard_dir(const std::string& run_dir) {
  return join(run_dir, "tensorboard");
}
std::string checkpoints_dir(const std::string& run_dir) {
  return join(run_dir, "checkpoints");
}
std::string revisions_path(const std::string& run_dir) {
  return join(run_dir, "revisions.jsonl");
}
std::string status_path(const std::string& run_dir) {
  return join(run_dir, "status.json");
}
std::string log_path(const std::string& run_dir) {
  return join(run_dir, "log.txt");
}
std::string report_path(const std::string& run_dir) {
  return join(run_dir, "report.html");
}

std::string trace_path(const std::string& run_dir, int rank) {
  return join(run_dir, ("trace.rank" + std::to_string(rank) + ".json").c_str());
}

std::string run_name(const std::string& run_dir) {
  std::error_code ignored;
  std::filesystem::path path = std::filesystem::absolute(run_dir.empty() ? "." : run_dir, ignored).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.has_filename() ? path.filename().string() : path.string();
}

void create_run_directory(const std::string& run_dir, bool with_checkpoints) {
  make_directories(run_dir);
  make_directories(tensorboard_dir(run_dir));
  if (with_checkpoints) make_directories(checkpoints_dir(run_dir));
  if (::access(run_dir.c_str(), W_OK) != 0) {
    throw_busy(run_dir + ": run directory is not writable: " + std::strerror(errno) +
               "; choose another with run_dir=DIR");
  }
}

}  // namespace thinwire
