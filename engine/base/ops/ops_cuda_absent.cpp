// Stands in for the CUDA table in builds without CUDA. Nobody gets here: there is no CUDA device to run it on.
#include "engine/base/core/error.h"
#include "engine/base/ops/ops.h"

namespace thinwire {

const OpTable& cuda_ops() {
  throw_bad_config(
      "device: cuda is not built into this program; configure with the preset `cuda`, or set \"device\": \"cpu\"");
}

}  // namespace thinwire
