// The table walk of every build visits the emulated CUDA table.
#include "tests/emulation/cuda_emulation.h"
#include "tests/support/walked_table.h"

namespace thinwire {

const OpTable& walked_table() {
  return emulated_cuda_ops();
}

}  // namespace thinwire
