// How a kernel family is declared once and defined per instruction set: the pattern is written down in
// engine/base/ops/CMakeLists.txt.
#pragma once

#include "engine/base/ops/isa.h"

// In name_kernel.h, inside namespace thinwire: declares the family's table in the namespace of each instruction set.
#define TW_DECLARE_KERNELS(Table, name) \
  namespace isa_avx2 {                  \
  extern const Table name;              \
  }                                     \
  namespace isa_avx512 {                \
  extern const Table name;              \
  }

// The same for a family whose source uses instructions of avx512_bf16.
#define TW_DECLARE_BF16_KERNELS(Table, name) \
  TW_DECLARE_KERNELS(Table, name)            \
  namespace isa_avx512_bf16 {                \
  extern const Table name;                   \
  }

// In name_cpu.cpp, inside namespace thinwire: the table for this machine.
#define TW_PICK_KERNELS(name) \
  ::thinwire::pick_kernels(::thinwire::isa_avx2::name, ::thinwire::isa_avx512::name, ::thinwire::isa_avx512::name)
#define TW_PICK_BF16_KERNELS(name) \
  ::thinwire::pick_kernels(::thinwire::isa_avx2::name, ::thinwire::isa_avx512::name, ::thinwire::isa_avx512_bf16::name)
