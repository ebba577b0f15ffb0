// Counts that were implied before they were written down, see older_checkpoint.h.
#include "engine/run/train/older_checkpoint.h"

#include <string>

namespace thinwire {

void supply_moment_updates(const Manifest& manifest, LoadOptions& options, Optimizer& optimizer) {
  const auto stored = [&](const std::string& name) {
    const auto found = manifest.integers.find(name);
    return found == manifest.integers.end() ? int64_t{0} : found->second;
  };
  if (manifest.integers.contains("adam_m/updates")) return;
  const int64_t updates = stored("progress/updates"), frozen_at = stored("momentum/frozen_at");
  optimizer.moment_updates() = {updates, frozen_at > 0 ? frozen_at : updates};
  options.unwanted_prefixes.insert(options.unwanted_prefixes.end(), {"adam_m/updates", "adam_v/updates"});
}

}  // namespace thinwire
