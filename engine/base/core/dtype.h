// Element types of tensors, and the exact conversions between them and float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace thinwire {

enum class DType : uint8_t { f32, bf16, f16, i32, i64, u8, u16, f64 };

constexpr size_t size_of(DType t) {
  constexpr size_t bytes[] = {4, 2, 2, 4, 8, 1, 2, 8};
  return bytes[static_cast<int>(t)];
}

constexpr std::string_view name_of(DType t) {
  constexpr std::string_view names[] = {"fp32", "bf16", "fp16", "int32", "int64", "uint8", "uint16", "fp64"};
  return names[static_cast<int>(t)];
}

// Storage types: a bare 16-bit pattern with a name, so that a kernel cannot mix them up.
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

// Machine epsilon of the type (distance from 1 to the next number); tolerances are derived from it.
constexpr double epsilon_of(DType t) {
  return t == DType::f64    ? 0x1p-52
         : t == DType::f32  ? 0x1p-23
         : t == DType::f16  ? 0x1p-10
         : t == DType::bf16 ? 0x1p-7
                            : 0.0;
}

inline float to_float(Bf16 v) {
  return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16);
}

// Nearest, ties to even; NaN stays NaN (quiet), overflow becomes infinity.
inline Bf16 to_bf16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

float to_float(Fp16 v);
Fp16 to_fp16(float v);  // nearest, ties to even; subnormals kept, overflow becomes infinity
inline float to_float(float v) {
  return v;
}

// DTypeOf<float>::value is DType::f32, and so on; it does not compile for other types.
template <DType t>
using ConstantDType = std::integral_constant<DType, t>;
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> : ConstantDType<DType::f32> {};
template <>
struct DTypeOf<double> : ConstantDType<DType::f64> {};
template <>
struct DTypeOf<Bf16> : ConstantDType<DType::bf16> {};
template <>
struct DTypeOf<Fp16> : ConstantDType<DType::f16> {};
template <>
struct DTypeOf<int32_t> : ConstantDType<DType::i32> {};
template <>
struct DTypeOf<int64_t> : ConstantDType<DType::i64> {};
template <>
struct DTypeOf<uint8_t> : ConstantDType<DType::u8> {};
template <>
struct DTypeOf<uint16_t> : ConstantDType<DType::u16> {};

template <typename T>
T from_float(float v) {
  if constexpr (std::is_same_v<T, Bf16>)
    return to_bf16(v);
  else if constexpr (std::is_same_v<T, Fp16>)
    return to_fp16(v);
  else
    return static_cast<T>(v);
}

}  // namespace thinwire
