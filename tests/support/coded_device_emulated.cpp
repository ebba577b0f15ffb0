// Device coders under test run on the emulation of their kernels.
#include "tests/emulation/cuda_emulation.h"
#include "tests/support/coded_device.h"
#include "tests/support/fake_gpu.h"

namespace thinwire::test {

const std::string& why_no_coded_device() {
  static const std::string none;
  return none;
}
std::unique_ptr<Device> coded_device() {
  return make_cpu_device();
}
const OpTable& coded_ops() {
  return emulated_cuda_ops();
}
std::unique_ptr<Device> strict_device() {
  return std::make_unique<FakeGpu>();
}

}  // namespace thinwire::test
