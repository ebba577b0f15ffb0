// The CUDA table whose entries the table walk visits: the real one where it is built, else the emulated one.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

const OpTable& walked_table();

}  // namespace thinwire
