// Which build this is, as it was when it was configured.
#pragma once

#include <string>

namespace thinwire {
std::string version_string();  // "0.1.0"
// The text of --version: name, version, short git hash ("+" appended for a changed tree), compiler, backends and `isa`
// (the instruction set the ops chose).
std::string version_text(const std::string& program, const std::string& isa);
}  // namespace thinwire
