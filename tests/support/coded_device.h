// Where the tests of device coders run: on the emulation of kernels, or in CUDA builds on a GPU.
#pragma once

#include <memory>
#include <string>

#include "engine/base/device/device.h"
#include "engine/base/ops/ops.h"

namespace thinwire::test {

const std::string& why_no_coded_device();  // empty where there is one
std::unique_ptr<Device> coded_device();
const OpTable& coded_ops();
// One whose memory the host cannot touch, and whose work happens when somebody waits; nullptr on a GPU.
std::unique_ptr<Device> strict_device();

}  // namespace thinwire::test
