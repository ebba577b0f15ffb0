// Lets the tests of the CPU ops test another backend: included in front of a test by the compiler's command line, it
// gives that backend's table to whoever asks for the CPU's.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

// The table under test; it runs on the CPU device, whose memory the tests read and write.
const OpTable& tested_ops();

}  // namespace thinwire

#define cpu_ops tested_ops
