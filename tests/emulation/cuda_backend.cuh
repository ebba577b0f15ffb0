// Kernels without a GPU: what cuda_kernel.h promises, emulated; the include folder of tests that run them on the CPU.
#pragma once

#include "tests/emulation/cuda_emulation.h"
