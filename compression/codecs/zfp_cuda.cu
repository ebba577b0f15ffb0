// Codec zfp on a GPU: the stream of zfp_kernel.cpp, bit by bit; a thread codes the blocks of four that it holds.
#include <cmath>

#include "compression/codecs/device_makers.h"
#include "compression/device_kernels.h"

namespace thinwire {
namespace {

constexpr uint32_t kNegabinary = 0xaaaaaaaau;
constexpr int kPlaneCodes = 80;

// What a plane of four bits becomes when its first n coefficients are significant, as in zfp_kernel.cpp:
// bits | length << 7 | new n << 10.
TW_DEVICE uint32_t plane_code(uint32_t n, uint32_t plane) {
  uint32_t bits = plane & ((1u << n) - 1u), length = n, left = plane >> n;
  while (n < 4) {
    const bool more = left != 0;
    bits |= static_cast<uint32_t>(more) << length++;
    if (!more) break;
    while (n < 3) {
      const uint32_t bit = left & 1u;
      bits |= bit << length++;
      if (bit != 0) break;
      left >>= 1;
      ++n;
    }
    left >>= 1;
    ++n;
  }
  return bits | length << 7 | n << 10;
}

// Up to 128 bits of a block, the first ones low.
struct BlockBits {
  uint64_t low = 0, high = 0;
  TW_DEVICE void put(uint32_t bits, int at) {
    const uint64_t wide = bits;
    if (at < 64) low |= wide << at;
    if (at >= 64)
      high |= wide << (at - 64);
    else if (at > 57)
      high |= wide >> (64 - at);
  }
  TW_DEVICE uint32_t get(int at) const {
    if (at >= 64) return static_cast<uint32_t>(high >> (at - 64));
    return static_cast<uint32_t>(at == 0 ? low : low >> at | high << (64 - at));
  }
  TW_DEVICE void cut(int bits) {
    if (bits < 64)
      low &= (uint64_t{1} << bits) - 1, high = 0;
    else if (bits < 128)
      high &= (uint64_t{1} << (bits - 64)) - 1;
  }
};

// Bit i of four numbers as a plane.
TW_DEVICE uint32_t plane_of(const uint32_t (&u)[4], int i) {
  return (u[0] >> i & 1u) | (u[1] >> i & 1u) << 1 | (u[2] >> i & 1u) << 2 | (u[3] >> i & 1u) << 3;
}

// codes: plane_code(n, plane) at 16 n + plane. finite: becomes false for magnitudes from 2^126 on.
TW_DEVICE BlockBits encode_block(const float (&x)[4], int maxbits, const uint32_t* codes, bool& finite) {
  uint32_t top = 0;
  TW_UNROLL
  for (int k = 0; k < 4; ++k) {
    const uint32_t magnitude = bits_of(x[k]) & 0x7fffffffu;
    top = magnitude > top ? magnitude : top;
  }
  const int field = static_cast<int>(top >> 23);  // exponent e of the block is field - 126
  finite = finite && field <= 252;
  BlockBits block;
  if (field <= 28) return block;
  const bool bad = field == 255;
  const float scale = float_of_bits(static_cast<uint32_t>(283 - field) << 23);  // 2^(30 - e)
  int q[4];
  TW_UNROLL
  for (int k = 0; k < 4; ++k) q[k] = bad ? 0 : static_cast<int>(x[k] * scale);
  int a = q[0], b = q[1], c = q[2], d = q[3];
  a += d, a >>= 1, d -= a;
  c += b, c >>= 1, b -= c;
  a += c, a >>= 1, c -= a;
  d += b, d >>= 1, b -= d;
  d += b >> 1, b -= d >> 1;
  if (bad) a = 1 << 30;  // decodes to four times infinity
  const uint32_t u[4] = {
      (static_cast<uint32_t>(a) + kNegabinary) ^ kNegabinary, (static_cast<uint32_t>(b) + kNegabinary) ^ kNegabinary,
      (static_cast<uint32_t>(c) + kNegabinary) ^ kNegabinary, (static_cast<uint32_t>(d) + kNegabinary) ^ kNegabinary};
  block.low = static_cast<uint64_t>((bad ? field : field + 1) * 2 + 1);
  int position = 9;
  uint32_t n = 0;
  for (int i = 31; i >= 0 && position < maxbits; --i) {
    const uint32_t code = codes[16u * n + plane_of(u, i)];
    block.put(code & 0x7fu, position);
    position += static_cast<int>(code >> 7 & 7u);
    n = code >> 10;
  }
  block.cut(maxbits);
  return block;
}

// Bits behind maxbits are zero.
TW_DEVICE void decode_block(const BlockBits& block, int maxbits, float (&x)[4]) {
  TW_UNROLL
  for (int k = 0; k < 4; ++k) x[k] = 0.0f;
  if ((block.low & 1u) == 0) return;
  const int exponent = static_cast<int>(block.low >> 1 & 0xffu);  // e + 127
  uint32_t u[4] = {};
  int position = 9, n = 0;
  for (int i = 31; i >= 0 && position < maxbits; --i) {
    const uint32_t bits = block.get(position);
    const int left = maxbits - position;
    uint32_t plane = bits & ((1u << n) - 1u);
    int length = n;
    while (n < 4) {
      const bool more = (bits >> length & 1u) != 0;
      ++length;
      if (!more) break;
      while (n < 3) {
        // Behind the end of the block inside of a run: the coefficient where it stopped has the bit.
        const bool bit = length >= left || (bits >> length & 1u) != 0;
        ++length;
        if (bit) break;
        ++n;
      }
      plane |= 1u << n;
      ++n;
    }
    position += length;
    TW_UNROLL
    for (int k = 0; k < 4; ++k) u[k] |= (plane >> k & 1u) << i;
  }
  // Unsigned, so that hostile coefficients wrap.
  TW_UNROLL
  for (int k = 0; k < 4; ++k) u[k] = (u[k] ^ kNegabinary) - kNegabinary;
  uint32_t a = u[0], b = u[1], c = u[2], d = u[3];
  b += static_cast<uint32_t>(static_cast<int>(d) >> 1), d -= static_cast<uint32_t>(static_cast<int>(b) >> 1);
  b += d, d <<= 1, d -= b;
  c += a, a <<= 1, a -= c;
  b += c, c <<= 1, c -= b;
  d += a, a <<= 1, a -= d;
  // 2^(e - 30); subnormal and at last zero for exponents that only other encoders write.
  const uint32_t subnormal = exponent >= 8 ? 1u << ((exponent - 8) & 31) : 0u;
  const float scale = float_of_bits(exponent < 31 ? subnormal : static_cast<uint32_t>(exponent - 30) << 23);
  x[0] = static_cast<float>(static_cast<int>(a)) * scale;
  x[1] = static_cast<float>(static_cast<int>(b)) * scale;
  x[2] = static_cast<float>(static_cast<int>(c)) * scale;
  x[3] = static_cast<float>(static_cast<int>(d)) * scale;
}

struct ZfpTiles {
  static constexpr const char *kPack = "pack zfp", *kAbsorb = "absorb zfp";
  int maxbits;

  // The codes of planes, then the tile's stream.
  size_t shared_bytes(int64_t tile) const {
    return (kPlaneCodes + static_cast<size_t>(tile) / 4 * static_cast<size_t>(maxbits) / 32 + 2) * sizeof(uint32_t);
  }
  ZfpTiles for_message(const Msg&) const { return *this; }
  // Padded to whole 64 bits, which matters behind the last tile alone.
  TW_DEVICE int words_of(int n) const { return ((n + 3) / 4 * maxbits + 63) / 64 * 2; }

  TW_DEVICE bool encode(unsigned char* shared, TileValues& v, int n, uint64_t, uint8_t* out, bool decoded) const {
    auto* codes = reinterpret_cast<unsigned*>(shared);
    unsigned* stream = codes + kPlaneCodes;
    const int words = words_of(n);
    if (threadIdx.x < kPlaneCodes) codes[threadIdx.x] = plane_code(threadIdx.x / 16, threadIdx.x % 16);
    for (int w = static_cast<int>(threadIdx.x); w < words; w += kTileThreads) stream[w] = 0;
    __syncthreads();
    bool finite = true;
    for (int s = 0; s < kTileSteps; ++s) {
      const int i = tile_element(s), there = n - i;
      if (there <= 0) continue;
      // A block that the end of the data cuts short: (a,a,a,a), (a,b,b,a), (a,b,c,a).
      if (there == 1) v[s][1] = v[s][0];
      if (there <= 2) v[s][2] = v[s][1];
      if (there <= 3) v[s][3] = v[s][0];
      const BlockBits block = encode_block(v[s], maxbits, codes, finite);
      const int bit = i / 4 * maxbits, off = bit % 32;
      unsigned* to = stream + bit / 32;
      for (int w = 0; w * 32 < maxbits; ++w) {
        const uint32_t part = block.get(32 * w);
        if (part << off != 0) atomic_or(to + w, part << off);
        if (off != 0 && part >> (32 - off) != 0) atomic_or(to + w + 1, part >> (32 - off));
      }
      if (decoded) decode_block(block, maxbits, v[s]);
    }
    __syncthreads();
    for (int w = static_cast<int>(threadIdx.x); w < words; w += kTileThreads)
      store_payload<4>(out + 4 * w, stream[w], 4);
    return !finite;
  }

  TW_DEVICE bool decode(const uint8_t* in, int n, TileValues& v) const {
    const int words = words_of(n);
    for (int s = 0; s < kTileSteps; ++s) {
      const int i = tile_element(s);
      TW_UNROLL
      for (int k = 0; k < 4; ++k) v[s][k] = 0.0f;
      if (i >= n) continue;
      const int bit = i / 4 * maxbits, off = bit % 32;
      BlockBits block;
      uint32_t now = load_payload<4>(in + bit / 32 * 4, 4);
      for (int w = 0; w * 32 < maxbits; ++w) {
        const int place = bit / 32 + w + 1;
        const uint32_t next = place < words ? load_payload<4>(in + 4 * place, 4) : 0u;
        const uint64_t part = off == 0 ? now : now >> off | next << (32 - off);
        (w < 2 ? block.low : block.high) |= part << 32 * (w % 2);
        now = next;
      }
      block.cut(maxbits);
      float x[4];
      decode_block(block, maxbits, x);
      TW_UNROLL
      for (int k = 0; k < 4; ++k) v[s][k] = i + k < n ? x[k] : 0.0f;
    }
    return true;
  }
};

}  // namespace

std::unique_ptr<DeviceCodec> make_zfp_cuda(const CodecSpec& spec) {
  const int maxbits = static_cast<int>(std::floor(4.0 * spec.real("rate") + 0.5));
  return std::make_unique<TileCodec<ZfpTiles>>(ZfpTiles{maxbits});
}

}  // namespace thinwire
