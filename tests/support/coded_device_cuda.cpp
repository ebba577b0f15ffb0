// Device coders under test run on a GPU.
#include "tests/support/coded_device.h"
#include "tests/support/cuda_test_support.h"

namespace thinwire::test {

const std::string& why_no_coded_device() {
  return why_no_gpu();
}
std::unique_ptr<Device> coded_device() {
  return make_cuda_device(0);
}
const OpTable& coded_ops() {
  return cuda_ops();
}
std::unique_ptr<Device> strict_device() {
  return nullptr;
}

}  // namespace thinwire::test
