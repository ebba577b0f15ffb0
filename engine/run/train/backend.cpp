// Opens a device by its name.
#include "engine/run/train/backend.h"

#include "engine/base/core/error.h"

namespace thinwire {

Backend open_backend(const std::string& device, int local_rank) {
  if (device == "cpu") return {make_cpu_device(), &cpu_ops()};
  if (device != "cuda") throw_bad_config("device: \"" + device + "\" is unknown (cpu or cuda)");
  Backend backend{make_cuda_device(local_rank), nullptr};  // first: it says what is missing
  backend.ops = &cuda_ops();
  return backend;
}

}  // namespace thinwire
