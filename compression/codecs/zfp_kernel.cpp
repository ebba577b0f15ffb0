// Block coding of codec zfp with one block per vector lane: lift, bit planes by table, packing.
#include "compression/codecs/zfp_kernel.h"

#include "compression/codecs/block_simd.h"

namespace thinwire::TW_ISA {
namespace {

constexpr int kMaxWords = 4;                 // 32-bit words of a block at rate 32
constexpr int kRunBytes = kLanes * 128 / 8;  // the most that one vector of blocks takes
constexpr uint32_t kNegabinary = 0xaaaaaaaau;

typedef uint32_t Loose32 __attribute__((aligned(1), may_alias));
typedef uint64_t Loose64 __attribute__((aligned(1), may_alias));

// One bit plane of a block: bit i belongs to coefficient i, the first n of which are already significant. The first n
// bits travel as they are; the others as runs: a 1 while some bit is left, then bits up to and with the next set one
// (that of the last coefficient goes without saying), and a 0 once none is left.
struct PlaneCode {
  uint32_t bits = 0, length = 0, n = 0;
};
constexpr PlaneCode code_of(uint32_t n, uint32_t plane) {
  PlaneCode c{plane & ((1u << n) - 1u), n, n};
  uint32_t left = plane >> n;
  while (c.n < 4) {
    const bool more = left != 0;
    c.bits |= static_cast<uint32_t>(more) << c.length++;
    if (!more) break;
    while (c.n < 3) {
      const uint32_t bit = left & 1u;
      c.bits |= bit << c.length++;
      if (bit) break;
      left >>= 1;
      ++c.n;
    }
    left >>= 1;
    ++c.n;
  }
  return c;
}

// Encoding: [16 n + plane] -> bits | length << 7 | new n << 10. Decoding: the run part of a plane whose first test bit
// is 1, from up to 6 following bits r of which 6 - 2 n count: [64 >> 2n | r] -> plane | length << 4 | new n << 7, where
// the length is without the n raw bits and the test bit.
template <typename Entry>
struct Tables {
  alignas(64) Entry encode[80] = {};
  alignas(64) Entry decode[128] = {};
};
template <typename Entry>
constexpr Tables<Entry> make_tables() {
  Tables<Entry> t;
  for (uint32_t n = 0; n <= 4; ++n)
    for (uint32_t plane = 0; plane < 16; ++plane) {
      const PlaneCode c = code_of(n, plane);
      t.encode[16 * n + plane] = static_cast<Entry>(c.bits | c.length << 7 | c.n << 10);
      if (n == 4 || plane >> n == 0 || (plane & ((1u << n) - 1u)) != 0) continue;
      const uint32_t run = c.bits >> (n + 1), length = c.length - n - 1, width = 6 - 2 * n;
      for (uint32_t rest = 0; rest < 1u << (width - length); ++rest)
        t.decode[64u >> 2 * n | run | rest << length] = static_cast<Entry>(plane | length << 4 | c.n << 7);
    }
  return t;
}

TW_INLINE VecU shl(VecU a, VecU n) {
  return (VecU)TW_V(sllv_epi32)((NativeI)a, (NativeI)n);
}
TW_INLINE VecU shr(VecU a, VecU n) {
  return (VecU)TW_V(srlv_epi32)((NativeI)a, (NativeI)n);
}
TW_INLINE VecI truncate(VecF v) {
  return (VecI)TW_V(cvttps_epi32)((NativeF)v);
}
TW_INLINE void transpose(VecF v[4]) {
  const NativeF a = TW_V(unpacklo_ps)((NativeF)v[0], (NativeF)v[1]),
                b = TW_V(unpackhi_ps)((NativeF)v[0], (NativeF)v[1]);
  const NativeF c = TW_V(unpacklo_ps)((NativeF)v[2], (NativeF)v[3]),
                d = TW_V(unpackhi_ps)((NativeF)v[2], (NativeF)v[3]);
  v[0] = (VecF)TW_V(unpacklo_pd)((NativeD)a, (NativeD)c);
  v[1] = (VecF)TW_V(unpackhi_pd)((NativeD)a, (NativeD)c);
  v[2] = (VecF)TW_V(unpacklo_pd)((NativeD)b, (NativeD)d);
  v[3] = (VecF)TW_V(unpackhi_pd)((NativeD)b, (NativeD)d);
}

// position 4 l + i of a transposed vector holds block kLanes / 4 * i + l
#ifdef __AVX512F__
alignas(64) constexpr Tables<uint16_t> kTables = make_tables<uint16_t>();
alignas(64) constexpr uint32_t kToBlocks[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
alignas(64) constexpr uint32_t kToLanes[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};

TW_INLINE VecU permute(VecU v, const uint32_t* index) {
  return (VecU)_mm512_permutexvar_epi32(_mm512_load_si512(index), (__m512i)v);
}
struct EncodeTable {
  __m512i low, high;
  TW_INLINE EncodeTable() : low(_mm512_load_si512(kTables.encode)), high(_mm512_load_si512(kTables.encode + 32)) {}
  TW_INLINE VecU at(VecU n16, VecU plane) const {
    const __m512i found = _mm512_permutex2var_epi16(low, (__m512i)(n16 | plane), high);
    const __m512i all = _mm512_or_si512((__m512i)plane, _mm512_set1_epi32(4 << 7 | 4 << 10));
    const __mmask16 raw = _mm512_test_epi32_mask((__m512i)n16, _mm512_set1_epi32(64));
    return (VecU)_mm512_mask_blend_epi32(raw, found, all);
  }
};
struct DecodeTable {
  __m512i part[4];
  TW_INLINE DecodeTable() {
    for (int i = 0; i < 4; ++i) part[i] = _mm512_load_si512(kTables.decode + 32 * i);
  }
  TW_INLINE VecU at(VecU index) const {
    const __m512i low = _mm512_permutex2var_epi16(part[0], (__m512i)index, part[1]);
    const __m512i high = _mm512_permutex2var_epi16(part[2], (__m512i)index, part[3]);
    const __mmask16 upper = _mm512_test_epi32_mask((__m512i)index, _mm512_set1_epi32(64));
    return (VecU)_mm512_mask_blend_epi32(upper, low, high);
  }
};
#else
alignas(64) constexpr Tables<uint32_t> kTables = make_tables<uint32_t>();
alignas(64) constexpr uint32_t kToBlocks[8] = {0, 4, 1, 5, 2, 6, 3, 7};
alignas(64) constexpr uint32_t kToLanes[8] = {0, 2, 4, 6, 1, 3, 5, 7};

TW_INLINE VecU permute(VecU v, const uint32_t* index) {
  return (VecU)_mm256_permutevar8x32_epi32((__m256i)v, _mm256_load_si256((const __m256i*)index));
}
struct EncodeTable {
  TW_INLINE VecU at(VecU n16, VecU plane) const {
    return (VecU)_mm256_i32gather_epi32((const int*)kTables.encode, (__m256i)(n16 | plane), 4);
  }
};
struct DecodeTable {
  TW_INLINE VecU at(VecU index) const {
    return (VecU)_mm256_i32gather_epi32((const int*)kTables.decode, (__m256i)index, 4);
  }
};
#endif

TW_INLINE VecU splat_u(uint32_t v) {
  return VecU{} + v;
}

// Eight planes of four coefficients, one byte each, as eight nibbles, and back.
TW_INLINE VecU spread(VecU byte) {
  byte = (byte | byte << 12) & 0x000f000fu;
  byte = (byte | byte << 6) & 0x03030303u;
  return (byte | byte << 3) & 0x11111111u;
}
TW_INLINE VecU gather_bits(VecU nibbles) {
  VecU t = nibbles & 0x11111111u;
  t = (t | t >> 3) & 0x03030303u;
  t = (t | t >> 6) & 0x000f000fu;
  return (t | t >> 12) & 0xffu;
}

// Blocks of kLanes lanes to words[w][block]; bits behind maxbits are zero. Returns whether all are below 2^126.
template <int kWords>
TW_INLINE bool encode_lanes(const float* x, int maxbits, const EncodeTable& table, uint32_t (*words)[kLanes]) {
  VecF v[4] = {load(x), load(x + kLanes), load(x + 2 * kLanes), load(x + 3 * kLanes)};
  transpose(v);
  VecI top{};
  for (const VecF& c : v) {
    const VecI magnitude = (VecI)c & 0x7fffffff;
    top = magnitude > top ? magnitude : top;
  }
  const VecI field = top >> 23;  // exponent e of the block is field - 126
  const VecI live = field > splat_i(28), bad = field == splat_i(255);
  const VecF scale = (VecF)((splat_i(283) - field) << 23 & live);  // 2^(30 - e), or 0
  VecI q[4];
  for (int i = 0; i < 4; ++i) q[i] = bad ? VecI{} : truncate(v[i] * scale);
  VecI a = q[0], b = q[1], c = q[2], d = q[3];
  a += d, a >>= 1, d -= a;
  c += b, c >>= 1, b -= c;
  a += c, a >>= 1, c -= a;
  d += b, d >>= 1, b -= d;
  d += b >> 1, b -= d >> 1;
  // (2^30, 0, 0, 0) with the largest exponent decodes to four times infinity.
  a = bad ? splat_i(1 << 30) : a;
  const VecI exponent = bad ? field : field + 1;
  const VecU u[4] = {((VecU)a + kNegabinary) ^ kNegabinary, ((VecU)b + kNegabinary) ^ kNegabinary,
                     ((VecU)c + kNegabinary) ^ kNegabinary, ((VecU)d + kNegabinary) ^ kNegabinary};

  VecU acc[kWords] = {};
  acc[0] = (VecU)((exponent * 2 + 1) & live);
  VecU position = splat_u(9), n16{};
  for (int group = 0; group < 4; ++group) {
    const int down = 24 - 8 * group;
    const VecU nibbles = spread(u[0] >> down & 0xffu) | spread(u[1] >> down & 0xffu) << 1 |
                         spread(u[2] >> down & 0xffu) << 2 | spread(u[3] >> down & 0xffu) << 3;
    bool full = false;
    for (int j = 28; j >= 0; j -= 4) {
      const VecU entry = table.at(n16, nibbles >> j & 0xfu);
      const VecU bits = entry & 0x7fu;
      acc[0] |= shl(bits, position);
      for (int w = 1; w < kWords; ++w) acc[w] |= shl(bits, position - 32u * w) | shr(bits, splat_u(32u * w) - position);
      position += entry >> 7 & 7u;
      n16 = entry >> 6 & 0x70u;
      full = !any(splat_i(maxbits) > (VecI)position);
      if (full) break;
    }
    if (full) break;
  }
  const int rest = maxbits - 32 * (kWords - 1);
  if (rest < 32) acc[kWords - 1] &= (1u << rest) - 1u;
  for (int w = 0; w < kWords; ++w) store_u(words[w], permute(acc[w], kToBlocks));
  return !any(field > splat_i(252));
}

// The words of kLanes blocks as a run of kLanes * maxbits bits.
template <int kWords>
TW_INLINE void pack(const uint32_t (*words)[kLanes], int maxbits, std::byte* out) {
  if (maxbits == 32 * kWords) {
    Loose32* to = (Loose32*)out;
    for (int block = 0; block < kLanes; ++block)
      for (int w = 0; w < kWords; ++w) to[kWords * block + w] = words[w][block];
    return;
  }
  const int rest = maxbits - 32 * (kWords - 1);
  uint64_t hold = 0;
  int held = 0;
  for (int block = 0; block < kLanes; ++block)
    for (int w = 0; w < kWords; ++w) {
      hold |= static_cast<uint64_t>(words[w][block]) << held;
      held += w + 1 < kWords ? 32 : rest;
      if (held < 32) continue;
      *(Loose32*)out = static_cast<uint32_t>(hold);
      out += 4;
      hold >>= 32;
      held -= 32;
    }
  for (; held > 0; held -= 8, hold >>= 8) *out++ = static_cast<std::byte>(hold);
}

template <int kWords>
bool encode_run(const float* x, int64_t blocks, int maxbits, std::byte* out) {
  const EncodeTable table;
  alignas(64) uint32_t words[kWords][kLanes];
  bool finite = true;
  int64_t block = 0;
  for (; block + kLanes <= blocks; block += kLanes) {
    finite &= encode_lanes<kWords>(x + 4 * block, maxbits, table, words);
    pack<kWords>(words, maxbits, out);
    out += kLanes * maxbits / 8;
  }
  if (block < blocks) {
    alignas(64) float rest[4 * kLanes] = {};
    std::byte packed[kRunBytes];
    for (int64_t i = 0; i < 4 * (blocks - block); ++i) rest[i] = x[4 * block + i];
    finite &= encode_lanes<kWords>(rest, maxbits, table, words);
    pack<kWords>(words, maxbits, packed);
    for (int64_t i = 0; i < ((blocks - block) * maxbits + 7) / 8; ++i) out[i] = packed[i];
  }
  return finite;
}

// `in` is readable for 8 bytes behind the run.
template <int kWords>
TW_INLINE void unpack(const std::byte* in, int maxbits, uint32_t (*words)[kLanes]) {
  const int rest = maxbits - 32 * (kWords - 1);
  const uint32_t mask = rest == 32 ? 0xffffffffu : (1u << rest) - 1u;
  for (int block = 0; block < kLanes; ++block)
    for (int w = 0; w < kWords; ++w) {
      const int bit = block * maxbits + 32 * w;
      const uint32_t word = static_cast<uint32_t>(*(const Loose64*)(in + bit / 8) >> bit % 8);
      words[w][block] = w + 1 < kWords ? word : word & mask;
    }
}

struct PlaneOf {
  VecU plane, length, n;
};
// bits: at least 7 bits of the stream from the plane's first one on, zeros behind its end.
TW_INLINE PlaneOf decode_plane(const DecodeTable& table, VecU bits, VecU n) {
  const VecU after = shr(bits, n);
  const VecI raw = (VecI)n == splat_i(4);
  const VecI run = ((VecI)(after & 1u) == splat_i(1)) & ~raw;
  const VecU width = n + n;
  const VecU entry = table.at((after >> 1 & shr(splat_u(63), width)) | shr(splat_u(64), width)) & (VecU)run;
  // raw is all ones where there is no test bit
  return {(bits & ~shl(splat_u(0xffffffffu), n)) | (entry & 15u), n + 1u + (VecU)raw + (entry >> 4 & 7u),
          run ? entry >> 7 & 7u : n};
}

template <int kWords>
TW_INLINE void decode_lanes(const uint32_t (*words)[kLanes], int maxbits, const DecodeTable& table, VecF v[4]) {
  VecU word[kWords];
  for (int w = 0; w < kWords; ++w) word[w] = permute(load_u(words[w]), kToLanes);
  const VecI live = -(VecI)(word[0] & 1u);
  const VecI exponent = (VecI)(word[0] >> 1 & 0xffu);  // e + 127
  VecU u[4] = {}, position = splat_u(9), n{};
  for (int group = 0; group < 4; ++group) {
    VecU nibbles{};
    bool full = false;
    for (int j = 28; j >= 0; j -= 4) {
      VecU bits = shr(word[0], position);
      for (int w = 1; w < kWords; ++w)
        bits |= shr(word[w], position - 32u * w) | shl(word[w], splat_u(32u * w) - position);
      bits &= 0x7fu;
      PlaneOf got = decode_plane(table, bits, n);
      // The end of the block inside of a run: the coefficient where it stopped has the bit, which a 1 behind the end
      // says; zeros there would give it to the last one.
      const VecI left = splat_i(maxbits) - (VecI)position;
      const VecI cut = ((VecI)got.length > left) & -(VecI)(got.plane >> 3);
      if (any(cut)) {
        const PlaneOf again = decode_plane(table, bits | shl(splat_u(1), (VecU)left), n);
        got.plane = cut ? again.plane : got.plane;
      }
      nibbles |= got.plane << j;
      position += got.length;
      n = got.n;
      full = !any(splat_i(maxbits) > (VecI)position);
      if (full) break;
    }
    const int up = 24 - 8 * group;
    for (int i = 0; i < 4; ++i) u[i] |= gather_bits(nibbles >> i) << up;
    if (full) break;
  }
  // Unsigned, so that hostile coefficients wrap.
  VecU q[4];
  for (int i = 0; i < 4; ++i) q[i] = (u[i] ^ kNegabinary) - kNegabinary;
  VecU a = q[0], b = q[1], c = q[2], d = q[3];
  b += (VecU)((VecI)d >> 1), d -= (VecU)((VecI)b >> 1);
  b += d, d <<= 1, d -= b;
  c += a, a <<= 1, a -= c;
  b += c, c <<= 1, c -= b;
  d += a, a <<= 1, a -= d;
  // 2^(e - 30); subnormal and at last zero for exponents that only other encoders write.
  const VecI small = splat_i(31) > exponent;
  const VecU subnormal = shl(splat_u(1), (VecU)(exponent - 8));
  const VecF scale = (VecF)((small ? subnormal : (VecU)(exponent - 30) << 23) & (VecU)live);
  v[0] = __builtin_convertvector((VecI)a, VecF) * scale;
  v[1] = __builtin_convertvector((VecI)b, VecF) * scale;
  v[2] = __builtin_convertvector((VecI)c, VecF) * scale;
  v[3] = __builtin_convertvector((VecI)d, VecF) * scale;
  for (int i = 0; i < 4; ++i) v[i] = live ? v[i] : VecF{};  // and not -0
  transpose(v);
}

template <int kWords>
void decode_run(const std::byte* in, int64_t blocks, int maxbits, float* x, bool accumulate) {
  const DecodeTable table;
  alignas(64) uint32_t words[kWords][kLanes];
  const int64_t bytes = (blocks * maxbits + 7) / 8, step = kLanes * maxbits / 8;
  int64_t block = 0;
  for (int64_t at = 0; block < blocks; block += kLanes, at += step) {
    if (at + step + 8 <= bytes) {
      unpack<kWords>(in + at, maxbits, words);
    } else {
      alignas(64) std::byte rest[kRunBytes + 8] = {};
      for (int64_t i = 0; i < bytes - at && i < step; ++i) rest[i] = in[at + i];
      unpack<kWords>(rest, maxbits, words);
    }
    VecF v[4];
    decode_lanes<kWords>(words, maxbits, table, v);
    float* to = x + 4 * block;
    if (blocks - block >= kLanes) {
      for (int i = 0; i < 4; ++i, to += kLanes) store(to, accumulate ? load(to) + v[i] : v[i]);
    } else {
      alignas(64) float all[4 * kLanes];
      for (int i = 0; i < 4; ++i) store(all + i * kLanes, v[i]);
      for (int64_t i = 0; i < 4 * (blocks - block); ++i) to[i] = accumulate ? to[i] + all[i] : all[i];
    }
  }
}

bool encode(const float* x, int64_t blocks, int maxbits, std::byte* out) {
  return maxbits <= 32   ? encode_run<1>(x, blocks, maxbits, out)
         : maxbits <= 64 ? encode_run<2>(x, blocks, maxbits, out)
         : maxbits <= 96 ? encode_run<3>(x, blocks, maxbits, out)
                         : encode_run<kMaxWords>(x, blocks, maxbits, out);
}

void decode(const std::byte* in, int64_t blocks, int maxbits, float* x, bool accumulate) {
  return maxbits <= 32   ? decode_run<1>(in, blocks, maxbits, x, accumulate)
         : maxbits <= 64 ? decode_run<2>(in, blocks, maxbits, x, accumulate)
         : maxbits <= 96 ? decode_run<3>(in, blocks, maxbits, x, accumulate)
                         : decode_run<kMaxWords>(in, blocks, maxbits, x, accumulate);
}

}  // namespace

constinit const ZfpKernels zfp_kernels = {encode, decode};

}  // namespace thinwire::TW_ISA
