// The device of a run and the op table that goes with it: the one place that knows which devices there are.
#pragma once

#include <memory>
#include <string>

#include "engine/base/core/error.h"
#include "engine/base/device/device.h"
#include "engine/base/ops/ops.h"

namespace thinwire {

struct Backend {
  std::unique_ptr<Device> device;
  const OpTable* ops = nullptr;
};

// device: "cpu" or "cuda", as the configuration key says. local_rank: of this rank on its machine; ranks share GPUs
// where there are fewer. Throws Error(kBadConfig) where the device is not to be had.
inline Backend open_backend(const std::string& device, int local_rank) {
  if (device == "cpu") return {make_cpu_device(), &cpu_ops()};
  if (device != "cuda") throw_bad_config("device: \"" + device + "\" is unknown (cpu or cuda)");
  Backend backend{make_cuda_device(local_rank), nullptr};  // first: it says what is missing
  backend.ops = &cuda_ops();
  return backend;
}

}  // namespace thinwire
