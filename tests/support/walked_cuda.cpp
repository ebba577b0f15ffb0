// The table walk of CUDA builds visits the real table; it needs no GPU.
#include "tests/support/walked_table.h"

namespace thinwire {

const OpTable& walked_table() {
  return cuda_ops();
}

}  // namespace thinwire
