// The arithmetic of reductions: contributions combined in rank order.
#pragma once

#include <cstdint>

#include "engine/base/core/dtype.h"

namespace thinwire {

enum class ReduceKind : uint8_t { kSum, kMax, kOr };  // kOr: integers

// kSum: fp32, bf16, fp16, fp64, i32, i64; kMax: these and u8; kOr: i32, i64, u8.
bool can_reduce(DType dtype, ReduceKind kind);

// out[i] = sources[0][i] (kind) sources[1][i] ... in this order, or out[i] += that (accumulate, kSum only), rounded
// once. Sums of fp32, bf16 and fp16 are taken in fp32, of fp64 in fp64; integers wrap. A NaN among the contributions
// gives NaN for every kind. `out_type` may be fp32 where `dtype` is bf16 or fp16, otherwise it is `dtype`. `out` may be
// one of the sources. One thread.
void combine_in_rank_order(ReduceKind kind, DType dtype, const void* const* sources, int count_of_sources,
                           DType out_type, void* out, int64_t count, bool accumulate);

}  // namespace thinwire
