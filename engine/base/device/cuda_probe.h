// Can this GPU run kernels of this build?
#pragma once

#include <string>

namespace thinwire {

// Runs an empty kernel on the current device; what CUDA says against it, or an empty text.
std::string probe_kernels();
// The architectures of the build, as CMake was given them.
std::string built_architectures();

}  // namespace thinwire
