// The backend of tests that run CUDA kernels on the CPU, thread by thread.
#include "tests/emulation/cuda_emulation.h"
#include "tests/support/tested_ops.h"

namespace thinwire {

const OpTable& tested_ops() {
  return emulated_cuda_ops();
}

}  // namespace thinwire
