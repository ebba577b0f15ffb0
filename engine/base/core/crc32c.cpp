// Eight bytes per instruction with SSE 4.2, three runs of bytes at a time; one byte per look-up elsewhere.
#include "engine/base/core/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace thinwire {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t r = i;
    for (int bit = 0; bit < 8; ++bit) r = (r & 1u) ? (r >> 1) ^ 0x82F63B78u : r >> 1;
    table[i] = r;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
constexpr int kRunBits = 9;
constexpr size_t kRun = size_t{1} << kRunBits;  // bytes

// What a sum becomes behind kRun bytes of zeros: linear in its bits, so by look-up of each of its bytes.
struct Shift {
  std::array<std::array<uint32_t, 256>, 4> by_byte{};
  constexpr Shift() {
    std::array<uint32_t, 32> image{};  // of each bit, behind one byte; then behind twice as many, and so on
    for (size_t i = 0; i < 32; ++i) {
      const uint32_t one = uint32_t{1} << i;
      image[i] = kTable[one & 0xFFu] ^ (one >> 8);
    }
    for (int doubled = 0; doubled < kRunBits; ++doubled) {
      const std::array<uint32_t, 32> half = image;
      for (size_t i = 0; i < 32; ++i) image[i] = apply(half, half[i]);
    }
    for (size_t byte = 0; byte < 4; ++byte)
      for (uint32_t v = 0; v < 256; ++v) by_byte[byte][v] = apply(image, v << (8 * byte));
  }
  static constexpr uint32_t apply(const std::array<uint32_t, 32>& image, uint32_t v) {
    uint32_t sum = 0;
    for (size_t i = 0; i < 32; ++i)
      if ((v >> i & 1u) != 0) sum ^= image[i];
    return sum;
  }
  uint32_t operator()(uint64_t v) const {
    return by_byte[0][v & 0xFFu] ^ by_byte[1][v >> 8 & 0xFFu] ^ by_byte[2][v >> 16 & 0xFFu] ^ by_byte[3][v >> 24];
  }
};
constexpr Shift kShift;

__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(std::span<const std::byte> bytes) {
  uint64_t crc = 0xFFFFFFFFu;
  const std::byte* p = bytes.data();
  size_t left = bytes.size();
  const auto word_at = [](const std::byte* at) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    return word;
  };
  // An instruction waits three cycles for the one before, and three of them do not wait for each other.
  for (; left >= 3 * kRun; left -= 3 * kRun, p += 3 * kRun) {
    uint64_t second = 0, third = 0;
    for (const std::byte* const end = p + kRun; p < end; p += 8) {
      crc = _mm_crc32_u64(crc, word_at(p));
      second = _mm_crc32_u64(second, word_at(p + kRun));
      third = _mm_crc32_u64(third, word_at(p + 2 * kRun));
    }
    p -= kRun;
    crc = kShift(kShift(crc) ^ second) ^ third;
  }
  for (; left >= 8; left -= 8, p += 8) crc = _mm_crc32_u64(crc, word_at(p));
  uint32_t rest = static_cast<uint32_t>(crc);
  for (; left > 0; --left, ++p) rest = _mm_crc32_u8(rest, static_cast<unsigned char>(*p));
  return ~rest;
}
#endif

}  // namespace

uint32_t crc32c_table(std::span<const std::byte> bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  for (std::byte b : bytes) crc = kTable[(crc ^ static_cast<uint32_t>(b)) & 0xFFu] ^ (crc >> 8);
  return ~crc;
}

uint32_t crc32c(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_sse42(bytes);
#endif
  return crc32c_table(bytes);
}

}  // namespace thinwire
