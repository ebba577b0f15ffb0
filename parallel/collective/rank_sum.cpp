// Loops over contributions: an accumulator of one block stays in the first-level cache while the ranks pass by.
#include "parallel/collective/rank_sum.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

constexpr int64_t kBlock = 1024;  // elements

// Without branches, so that it becomes vector code; same rounding as to_bf16.
inline Bf16 round_to(float v, Bf16) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t nan = (u >> 16) | 0x40u;
  return {static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}
inline Fp16 round_to(float v, Fp16) {
  return to_fp16(v);
}
template <typename T>
T round_to(T v, T) {
  return v;
}

template <typename T>
auto widen(T v) {
  if constexpr (std::is_same_v<T, Bf16> || std::is_same_v<T, Fp16>) {
    return to_float(v);
  } else {
    return v;
  }
}

template <typename T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

// NaN wins: if a is NaN it is kept, if b is NaN the comparison fails and b is taken.
template <typename T>
T larger(T a, T b) {
  return (a > b) | (a != a) ? a : b;
}
template <typename T>
T either(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(a | b);
  } else {
    return a;
  }
}

template <typename In, typename Out, typename Combine>
void combine(const void* const* sources, int n, void* out_memory, int64_t count, bool accumulate, Combine op) {
  using Wide = decltype(widen(In{}));
  Out* const out = static_cast<Out*>(out_memory);
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t m = std::min(kBlock, count - first);
    Wide sum[kBlock];
    const In* s = static_cast<const In*>(sources[0]) + first;
    for (int64_t i = 0; i < m; ++i) sum[i] = widen(s[i]);
    for (int r = 1; r < n; ++r) {
      s = static_cast<const In*>(sources[r]) + first;
      for (int64_t i = 0; i < m; ++i) sum[i] = op(sum[i], widen(s[i]));
    }
    Out* const o = out + first;
    if (accumulate) {
      for (int64_t i = 0; i < m; ++i) o[i] = round_to(op(static_cast<Wide>(widen(o[i])), sum[i]), Out{});
    } else {
      for (int64_t i = 0; i < m; ++i) o[i] = round_to(sum[i], Out{});
    }
  }
}

template <typename In, typename Out>
void combine_kind(ReduceKind kind, const void* const* sources, int n, void* out, int64_t count, bool accumulate) {
  using Wide = decltype(widen(In{}));
  switch (kind) {
    case ReduceKind::kSum:
      return combine<In, Out>(sources, n, out, count, accumulate, [](Wide a, Wide b) { return add(a, b); });
    case ReduceKind::kMax:
      return combine<In, Out>(sources, n, out, count, accumulate, [](Wide a, Wide b) { return larger(a, b); });
    case ReduceKind::kOr:
      return combine<In, Out>(sources, n, out, count, accumulate, [](Wide a, Wide b) { return either(a, b); });
  }
}

}  // namespace

bool can_reduce(DType dtype, ReduceKind kind) {
  const bool integer = dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8;
  if (dtype == DType::u16) return false;
  if (kind == ReduceKind::kOr) return integer;
  return kind != ReduceKind::kSum || dtype != DType::u8;
}

void combine_in_rank_order(ReduceKind kind, DType dtype, const void* const* sources, int n, DType out_type, void* out,
                           int64_t count, bool accumulate) {
  TW_CHECK(can_reduce(dtype, kind), "no such reduction of ", name_of(dtype));
  TW_CHECK(!accumulate || kind == ReduceKind::kSum);
  const bool same = dtype == out_type;
  TW_CHECK(same || (out_type == DType::f32 && (dtype == DType::bf16 || dtype == DType::f16)), name_of(dtype), " into ",
           name_of(out_type));
  switch (dtype) {
    case DType::f32:
      return combine_kind<float, float>(kind, sources, n, out, count, accumulate);
    case DType::f64:
      return combine_kind<double, double>(kind, sources, n, out, count, accumulate);
    case DType::bf16:
      return same ? combine_kind<Bf16, Bf16>(kind, sources, n, out, count, accumulate)
                  : combine_kind<Bf16, float>(kind, sources, n, out, count, accumulate);
    case DType::f16:
      return same ? combine_kind<Fp16, Fp16>(kind, sources, n, out, count, accumulate)
                  : combine_kind<Fp16, float>(kind, sources, n, out, count, accumulate);
    case DType::i32:
      return combine_kind<int32_t, int32_t>(kind, sources, n, out, count, accumulate);
    case DType::i64:
      return combine_kind<int64_t, int64_t>(kind, sources, n, out, count, accumulate);
    case DType::u8:
      return combine_kind<uint8_t, uint8_t>(kind, sources, n, out, count, accumulate);
    case DType::u16:
      return;
  }
}

}  // namespace thinwire
