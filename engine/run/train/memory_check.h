// Whether a configuration fits into the memory of this node, and what to say where it did not after all.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/device/device.h"
#include "engine/run/config/run_config.h"
#include "engine/run/trace/status_file.h"

namespace thinwire {

// Memory is taken lazily by the system: without this a model that is too large would be killed in the middle of a step.
// Throws kBadConfig where `ranks_here` ranks of this node need more than they may have (memory_limit), or a rank more
// than its part of the device, which `sharers` ranks share. Returns what was planned and what it was held against, for
// out_of_memory. saves: without a device what a save copies counts, too.
std::string refuse_what_does_not_fit(const RunConfig& run, int ranks_here, const Device& device, bool saves = true,
                                     int sharers = 1);

// The message for std::bad_alloc. planned: of refuse_what_does_not_fit, empty before.
std::string out_of_memory(const std::string& planned);

// The message for a rank that was killed for want of memory, with so many bytes in use.
std::string killed_for_memory(const std::string& planned, int64_t peak);

// What the start of a run before this one was killed for, in words, if that was want of memory: by what its keeper
// wrote down, or by the kernel's count since. Else empty.
std::string last_killed_for_memory(const RunStatus& last);

}  // namespace thinwire
