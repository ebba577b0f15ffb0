// The run directory of run_files.h: its paths, and making it.
#include "engine/run/trace/run_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"

namespace thinwire {

std::string path_in_run(const std::string& run_dir, const std::string& name) {
  return (std::filesystem::path(run_dir) / name).string();
}

std::string run_name(const std::string& run_dir) {
  std::error_code ignored;
  std::filesystem::path path = std::filesystem::absolute(run_dir.empty() ? "." : run_dir, ignored).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.has_filename() ? path.filename().string() : path.string();
}

void create_run_directory(const std::string& run_dir) {
  make_directories(run_dir);
  make_directories(tensorboard_dir(run_dir));
  make_directories(checkpoints_dir(run_dir));
  if (::access(run_dir.c_str(), W_OK) != 0) {
    throw_busy(run_dir + ": run directory is not writable: " + std::strerror(errno) +
               "; choose another with run_dir=DIR");
  }
}

}  // namespace thinwire
