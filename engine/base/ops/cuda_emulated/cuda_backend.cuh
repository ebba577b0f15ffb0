// Kernels without a GPU: what cuda_kernel.h promises, emulated; the include folder of tests that run them on the CPU.
#pragma once

#include "engine/base/ops/cuda_emulation.h"
