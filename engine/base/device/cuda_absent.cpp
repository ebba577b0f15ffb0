// Stands in for the CUDA device in builds without CUDA: it only says so.
#include "engine/base/core/error.h"
#include "engine/base/device/device.h"

namespace thinwire {

std::unique_ptr<Device> make_cuda_device(int) {
  throw_bad_config(
      "device: cuda is not built into this program; configure with the preset `cuda`, or set \"device\": \"cpu\"");
}

bool cuda_is_built() {
  return false;
}

}  // namespace thinwire
