// The instruction sets that CPU kernels are compiled for, and the choice among them at run time.
#pragma once

#include <string>

namespace thinwire {

enum class Isa { kAvx2, kAvx512, kAvx512Bf16 };

// The best set that this machine has and THINWIRE_ISA allows; decided once. Throws Error(kBadConfig) below AVX2 + FMA +
// F16C.
Isa active_isa();
std::string isa_name(Isa isa);  // "avx2" | "avx512" | "avx512_bf16"

// A kernel family compiled once per instruction set: `Table` is a struct of plain function pointers, and each entry is
// defined by the same source file compiled with different flags (see engine/base/ops/CMakeLists.txt).
template <typename Table>
const Table& pick_kernels(const Table& avx2, const Table& avx512, const Table& avx512_bf16) {
  switch (active_isa()) {
    case Isa::kAvx512Bf16:
      return avx512_bf16;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx2:
      break;
  }
  return avx2;
}

}  // namespace thinwire
