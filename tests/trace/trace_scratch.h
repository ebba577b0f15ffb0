// A directory of its own for a test, removed afterwards.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace thinwire {

class TraceScratch {
 public:
  TraceScratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "thinwire-trace-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary directory");
    path_ = pattern;
  }
  ~TraceScratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TraceScratch(const TraceScratch&) = delete;
  TraceScratch& operator=(const TraceScratch&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline void spill(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

}  // namespace thinwire
