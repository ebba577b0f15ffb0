// Turns a failed CHECK into an Error of kind kInternal.
#include "engine/base/core/check.h"

#include "engine/base/core/error.h"

namespace thinwire {

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
  std::string where(file);
  const auto slash = where.rfind('/');
  if (slash != std::string::npos) where.erase(0, slash + 1);
  throw Error(ExitCode::kInternal, "internal error at " + where + ":" + std::to_string(line) + ": " + condition +
                                       (detail.empty() ? "" : " (" + detail + ")") +
                                       "; this is a fault of thinwire, please report it");
}

}  // namespace thinwire
