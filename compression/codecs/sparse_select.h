// What the selecting codecs share: which elements are kept, how their indices are written, how their values travel.
//
// Selection is exact and does not depend on threads or instruction set: the k largest |x|, of equal ones those with the
// lower index; NaN counts as larger than infinity. A sample of x brackets the threshold, one pass counts the elements
// above and inside the bracket, and the threshold is then found among those inside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "compression/codec_table.h"
#include "compression/codecs/sparse_kernel.h"

namespace thinwire {

// Elements that a thread takes together; a multiple of 16, so that no byte of a bitmap is written by two threads.
inline constexpr int64_t kSparseBlock = 1 << 14;

const SparseKernels& sparse_table();

// Elements of n that a share `density` keeps: max(1, round(density n)), at most n; 0 of 0. Halves round away from 0.
int64_t kept_of(int64_t n, double density);

// The threshold of the k largest |x|. x: [n], 1 <= k <= n.
Threshold find_threshold(const float* x, int64_t n, int64_t k, int threads);

inline int64_t bit_bytes(int64_t bits) {
  return (bits + 7) / 8;
}
// How many bits of so many bytes are set.
int64_t count_bits(const uint8_t* bits, int64_t bytes);

// ---- indices -------------------------------------------------------------------------------------------------------
// How k ascending indices below n are written; n and k alone decide the number of bytes. Either a bitmap (index i is
// bit i % 8 of byte i / 8), or Elias-Fano: the low `low_bits` bits of all indices, packed (least significant first),
// then a bit string in which the i-th index sets bit (index >> low_bits) + i. The shorter one is taken; of equally long
// ones the bitmap, then the fewer low bits. `dense`: the bitmap in any case, since it is several times as fast.
struct IndexCode {
  bool bitmap = true;
  int low_bits = 0;
  int64_t low_bytes = 0, high_bytes = 0;  // of Elias-Fano
  int64_t bytes = 0;
};
IndexCode index_code(int64_t n, int64_t k, bool dense);
// Selectors pass `dense` from this density on: there Elias-Fano would save 0.15 bits an element at most.
inline constexpr double kDenseDensity = 0.2;

// Appends fields of up to 32 bits, least significant bit first. finish() pads the last byte with zeros.
class BitWriter {
 public:
  explicit BitWriter(std::byte* out) : out_(out) {}
  void put(uint32_t value, int bits) {
    buffer_ |= static_cast<uint64_t>(value) << used_;
    used_ += bits;
    if (used_ < 32) return;
    std::memcpy(out_, &buffer_, 4);
    out_ += 4;
    buffer_ >>= 32;
    used_ -= 32;
  }
  void finish() {
    for (; used_ > 0; used_ -= 8, buffer_ >>= 8) *out_++ = static_cast<std::byte>(buffer_);
    used_ = 0;
  }

 private:
  std::byte* out_;
  uint64_t buffer_ = 0;
  int used_ = 0;
};
class BitReader {
 public:
  explicit BitReader(const std::byte* in) : in_(in) {}
  uint32_t get(int bits) {
    for (; used_ < bits; used_ += 8) buffer_ |= static_cast<uint64_t>(*in_++) << used_;
    const uint32_t value = static_cast<uint32_t>(buffer_ & ((uint64_t{1} << bits) - 1));
    buffer_ >>= bits;
    used_ -= bits;
    return value;
  }
  bool padding_is_zero() const { return buffer_ == 0; }  // after the last field

 private:
  const std::byte* in_;
  uint64_t buffer_ = 0;
  int used_ = 0;
};

// ---- values --------------------------------------------------------------------------------------------------------
// fp32, bf16 (nearest even, finite values saturate) or fp16. A header byte e stands in front of fp16: values are fp16
// numbers times 2^e, e = max(-126, min(112, floor(log2 max|v|) - 14)), so the narrow range of fp16 does not matter.
inline constexpr int kMinValueExponent = -126, kMaxValueExponent = 112;
enum class ValueFormat : uint8_t { kFp32, kBf16, kFp16, kTwoBits };
// The parameter `format`. kTwoBits is "2bit", which chunked_top_k alone reads and writes.
CodecParameter value_format_parameter(bool two_bits);
ValueFormat value_format(const CodecSpec& spec);
const char* name_of(ValueFormat format);
inline int64_t value_bytes(ValueFormat format) {
  return format == ValueFormat::kFp32 ? 4 : 2;
}
inline int64_t value_header(ValueFormat format) {
  return format == ValueFormat::kFp16 ? 1 : 0;
}
// e of a group of values whose largest key is max_key; 0 where that is not finite, and unless fp16.
int value_exponent(ValueFormat format, uint32_t max_key);
// The values without the header. `out` and `in` need no alignment.
void write_values(ValueFormat format, int exponent, const float* values, int64_t count, std::byte* out);
void read_values(ValueFormat format, int exponent, const std::byte* in, int64_t count, float* values);
// The header, where the format has one. read_header throws Error(kBadData) for an exponent that no encoder writes.
void write_header(ValueFormat format, int exponent, std::byte* out);
int read_header(ValueFormat format, const std::byte* in);

}  // namespace thinwire
