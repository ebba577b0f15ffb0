// Reading back the files of a checkpoint, or a rank's share of them.
#pragma once

#include <string>

#include "engine/run/checkpoint/agreement.h"
#include "engine/run/checkpoint/manifest.h"

namespace thinwire {

// Every ranks-th file of the manifest, from number `rank` on: size and XXH3-128 of each, each a valid safetensors file
// that holds exactly the tensors of the manifest with their types and sizes. got_on: told of what was read, every MiB.
// Throws Error(kBadData) at the first fault, naming file, expected and found.
void verify_files(const std::string& checkpoint_dir, const Manifest& manifest, int rank, int ranks,
                  const GotOn& got_on);

}  // namespace thinwire
