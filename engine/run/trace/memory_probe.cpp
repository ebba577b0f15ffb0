// Reads VmRSS and VmHWM; writing 5 to clear_refs resets VmHWM (proc(5)).
#include "engine/run/trace/memory_probe.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace thinwire {
namespace {

int64_t status_field(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t digits = line.find_first_of("0123456789", key.size());
    return digits == std::string::npos
               ? 0
               : std::stoll(line.substr(digits)) * 1024;  // the kernel writes "kB" and means KiB
  }
  return 0;
}

}  // namespace

int64_t current_rss_bytes() {
  return status_field("VmRSS:");
}
int64_t peak_rss_bytes() {
  return status_field("VmHWM:");
}

bool reset_peak_rss() {
  const int fd = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = ::write(fd, "5", 1) == 1;
  ::close(fd);
  return done;
}

}  // namespace thinwire
