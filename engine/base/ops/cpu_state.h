// What the CPU backend keeps between calls of one Exec: scratch memory for any op, and the cached matrix products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/ops/ops.h"
#include "engine/base/ops/tiled_product.h"

namespace thinwire {

class CpuOpState : public OpState {
 public:
  // Scratch for the op that is running: one buffer, valid until the next call of scratch() on this Exec, so an op asks
  // once and cuts it up itself. Not initialised. matmul_cpu does not touch it: an op may call products while it holds
  // scratch.
  std::span<std::byte> scratch(size_t bytes) { return scratch_.take(bytes); }

  // For matmul_cpu alone.
  std::span<std::byte> product_scratch(size_t bytes) { return product_scratch_.take(bytes); }
  TiledProducts& products() { return products_; }

 private:
  ScratchBuffer scratch_;
  ScratchBuffer product_scratch_;
  TiledProducts products_;
};

// The state of an Exec that was made by make_exec(cpu_ops(), ...); CHECKs that it is one.
CpuOpState& cpu_state(Exec& exec);

// Bytes of scratch that attention takes from the Exec; grows with the number of threads, at most linearly with kv_len.
int64_t attention_forward_scratch(const AttentionForward& op, int threads);
int64_t attention_backward_scratch(const AttentionBackward& op, int threads);

}  // namespace thinwire
