// From what was written to what it means: defaults, derived values, and the checks that need several keys.
#pragma once

#include <string>

#include "engine/run/config/load_config.h"

namespace thinwire {

// Fills every used key. Violations are appended to reader.problems(); the result is meaningful only if there are none.
// `stem` names the default run directory.
ResolvedConfig resolve(SettingsReader& reader, const std::string& stem, const ConfigOptions& options);

// The plain mapping from final values to the struct that the engine reads. All used keys must be present.
RunConfig to_run_config(const std::map<std::string, nlohmann::json>& values);

}  // namespace thinwire
