// Which build this is: version and git hash, as they were when it was configured.
#pragma once

#include <string>

namespace thinwire {
std::string version_string();  // "0.1.0"
std::string git_hash();        // short hash, "+" appended for a changed tree; "unknown" outside git
// The text of --version: name, version, hash, compiler, backends and `isa` (the instruction set the ops chose).
std::string version_text(const std::string& program, const std::string& isa);
}  // namespace thinwire
