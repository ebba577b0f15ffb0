// The inner loops of the integer sketch: numbers on a grid, added into three tables.
//
// Elements come in blocks of kSketchLanes; the cells of a block are one row of kSketchLanes cells in each table.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

inline constexpr int64_t kSketchLanes = 16;

struct SketchKernels {
  // table[cells[3 b + j] + lane] += round(x[16 b + lane] * inverse) for j = 0, 1, 2 where the bit is set; mod 2^32.
  // x, bits: of n elements from a multiple of 16; cells: first cell of the rows of each block.
  void (*add)(const float* x, int64_t n, const uint8_t* bits, const uint32_t* cells, float inverse, int32_t* table);
  // x -= round(x * inverse) * step where the bit is set; exact when inverse == 1 / step is a power of two.
  void (*subtract)(float* x, int64_t n, const uint8_t* bits, float inverse, float step);
};
TW_DECLARE_KERNELS(SketchKernels, sketch_kernels)

}  // namespace thinwire
