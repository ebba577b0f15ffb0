// Growing scratch memory, and the way from an Exec to its CPU state.
#include "engine/base/ops/cpu_state.h"

#include <cstdlib>
#include <string>

#include "engine/base/core/error.h"

namespace thinwire {

ScratchBuffer::~ScratchBuffer() {
  std::free(data_);
}

std::span<std::byte> ScratchBuffer::take(size_t bytes) {
  if (bytes > capacity_) {
    // Half as much again, so that a slowly growing demand does not allocate at every call.
    const size_t wanted = (bytes > capacity_ + capacity_ / 2 ? bytes : capacity_ + capacity_ / 2);
    const size_t rounded = (wanted + 4095) / 4096 * 4096;
    std::free(data_);
    capacity_ = 0;
    data_ = static_cast<std::byte*>(std::aligned_alloc(4096, rounded));
    if (data_ == nullptr) {
      throw_bad_config("out of memory: " + std::to_string(rounded >> 20) +
                       " MiB of scratch for a CPU op; use a smaller micro-batch or sequence length");
    }
    capacity_ = rounded;
  }
  return {data_, bytes};
}

CpuOpState& cpu_state(Exec& exec) {
  auto* state = dynamic_cast<CpuOpState*>(exec.state.get());
  TW_CHECK(state != nullptr, "this Exec was not made by make_exec(cpu_ops(), ...)");
  return *state;
}

}  // namespace thinwire
