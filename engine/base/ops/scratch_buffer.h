// Memory that only grows: what an op needs while it runs.
#pragma once

#include <cstddef>
#include <span>

namespace thinwire {

// Aligned to 64 bytes at least, not initialised; growing loses the content.
class ScratchBuffer {
 public:
  ScratchBuffer() = default;
  ScratchBuffer(const ScratchBuffer&) = delete;
  ScratchBuffer& operator=(const ScratchBuffer&) = delete;
  ~ScratchBuffer();
  // At least `bytes` bytes, valid until the next take; throws Error(kBadConfig) naming the size when there is not
  // enough memory.
  std::span<std::byte> take(size_t bytes);

 private:
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace thinwire
