// Shipped files are found from the place of the running program, so that a prefix may be moved; the build says how the
// folders of an installed tree lie to each other.
#include "engine/base/core/shipped.h"

#include <cstdlib>
#include <filesystem>

namespace thinwire {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code none;
  return fs::exists(path, none);
}

}  // namespace

std::string programs_folder() {
  std::error_code none;
  const fs::path here = fs::read_symlink("/proc/self/exe", none).parent_path();
  const fs::path beside = (here / TW_PROGRAMS_FROM_BIN).lexically_normal();
  return is_there(beside / "train") ? beside : here;
}

std::string share_folder() {
  const fs::path programs = programs_folder();
  const char* told = std::getenv("THINWIRE_SHARE");
  for (const fs::path& folder : {programs / TW_SHARE_FROM_PROGRAMS, programs / "..", fs::path(told ? told : "")}) {
    const fs::path share = folder.lexically_normal();
    if (!is_there(share / "configs/quickstart.json")) continue;
    return share.has_filename() ? share : share.parent_path();  // without a / at the end
  }
  return "";
}

std::string command_name(const std::string& program) {
  return is_there(fs::path(programs_folder()) / TW_SHARE_FROM_PROGRAMS / "configs") ? "thinwire " + program : program;
}

std::string shipped_file(const std::string& path, const std::string& suffix) {
  if (path.empty() || path.front() == '/' || is_there(path + suffix)) return "";
  const std::string share = share_folder();
  if (share.empty()) return "";
  for (const char* folder : {"/", "/configs/", "/configs/compression/", "/configs/clusters/"})
    if (is_there(share + folder + path + suffix)) return share + folder + path;
  return "";
}

std::string shipped_note(const std::string& found) {
  return "not here; the one that ships with Thinwire is read: " + found;
}

}  // namespace thinwire
