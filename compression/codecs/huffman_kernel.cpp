// Counting symbols, writing and reading Huffman streams: four side by side, several symbols per table look-up.
#include "compression/codecs/huffman_kernel.h"

#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

constexpr uint32_t kTable = 1u << kHuffmanBits;
typedef uint32_t Loose32 __attribute__((aligned(1), may_alias));
typedef uint64_t Loose64 __attribute__((aligned(1), may_alias));

void count(const uint8_t* symbols, int64_t n, uint32_t (*counts)[256]) {
  const int64_t size = (n + 3) / 4;
  for (int q = 0; q < 4; ++q)
    for (int s = 0; s < 256; ++s) counts[q][s] = 0;
  // Quarters side by side: neighbouring symbols are often equal, and a counter must not wait for itself.
  const int64_t shared = n - 3 * size > 0 ? n - 3 * size : 0;
  for (int64_t i = 0; i < shared; ++i)
    for (int q = 0; q < 4; ++q) ++counts[q][symbols[q * size + i]];
  for (int q = 0; q < 4; ++q)
    for (int64_t i = shared; i < size && q * size + i < n; ++i) ++counts[q][symbols[q * size + i]];
}

struct Writer {
  std::byte *to, *end;
  uint64_t hold;
  uint32_t held;  // bits; below 8 between symbols
};
// A code's length is above its Shift lowest bits.
template <int Shift>
TW_INLINE void put(Writer& w, uint32_t code) {
  w.hold |= (uint64_t)(code & ((1u << Shift) - 1u)) << w.held;
  w.held += code >> Shift;
}
TW_INLINE void flush8(Writer& w) {
  *(Loose64*)w.to = w.hold;
  w.to += w.held >> 3;
  w.hold >>= w.held & 56u;
  w.held &= 7u;
}

// Batch codes and 7 bits left over fit in 64.
template <int Shift, int Batch>
TW_INLINE void encode_by(const uint8_t* symbols, int64_t n, const uint32_t* codes, std::byte* const* out,
                         const size_t* bytes) {
  const int64_t size = (n + 3) / 4, common = n - 3 * size;
  Writer w[4];
  for (int q = 0; q < 4; ++q) w[q] = {out[q], out[q] + bytes[q], 0, 0};
  int64_t i = 0;
  {
    // In registers. The store of 8 bytes must stay inside of the quarter.
    Writer a = w[0], b = w[1], c = w[2], d = w[3];
    const uint8_t *s0 = symbols, *s1 = s0 + size, *s2 = s1 + size, *s3 = s2 + size;
    while (i + Batch <= common && a.end - a.to >= 8 && b.end - b.to >= 8 && c.end - c.to >= 8 && d.end - d.to >= 8) {
#pragma GCC unroll 5
      for (int k = 0; k < Batch; ++k, ++i) {
        put<Shift>(a, codes[s0[i]]);
        put<Shift>(b, codes[s1[i]]);
        put<Shift>(c, codes[s2[i]]);
        put<Shift>(d, codes[s3[i]]);
      }
      flush8(a);
      flush8(b);
      flush8(c);
      flush8(d);
    }
    w[0] = a, w[1] = b, w[2] = c, w[3] = d;
  }
  for (int q = 0; q < 4; ++q) {
    for (int64_t j = i; j < size && q * size + j < n; ++j) {
      put<Shift>(w[q], codes[symbols[q * size + j]]);
      for (; w[q].held >= 8; w[q].held -= 8, w[q].hold >>= 8) *w[q].to++ = (std::byte)w[q].hold;
    }
    if (w[q].held > 0) *w[q].to = (std::byte)w[q].hold;
  }
}

void encode(const uint8_t* symbols, int64_t n, const uint32_t* codes, std::byte* const* out, const size_t* bytes) {
  encode_by<16, 5>(symbols, n, codes, out, bytes);
}

void pair(const uint8_t* symbols, int64_t n, uint8_t base, uint8_t* pairs) {
  for (int64_t i = 0; i < n / 2; ++i) pairs[i] = (uint8_t)((symbols[2 * i] - base) | (symbols[2 * i + 1] - base) << 4);
}

void unpair(const uint8_t* pairs, int64_t n, uint8_t base, uint8_t* symbols) {
  for (int64_t i = 0; i < n / 2; ++i) {
    symbols[2 * i] = (uint8_t)(base + (pairs[i] & 15));
    symbols[2 * i + 1] = (uint8_t)(base + (pairs[i] >> 4));
  }
}

void encode_pairs(const uint8_t* pairs, int64_t n, const uint32_t* codes, uint32_t longest, std::byte* const* out,
                  const size_t* bytes) {
  if (longest <= 14)
    encode_by<24, 4>(pairs, n, codes, out, bytes);
  else
    encode_by<24, 2>(pairs, n, codes, out, bytes);
}

// Symbols in the lower 32 bits, their total length << 32, their number << 40.
TW_INLINE uint64_t entry_of(uint64_t symbols, uint64_t length, uint64_t number) {
  return symbols | length << 32 | number << 40;
}
TW_INLINE uint32_t length_in(uint64_t entry) {
  return (uint32_t)(entry >> 32) & 0xffu;
}
TW_INLINE uint32_t number_in(uint64_t entry) {
  return (uint32_t)(entry >> 40);
}
// a, followed by what b decodes behind it, if all of b's bits are inside of the index.
TW_INLINE uint64_t join(uint64_t a, uint64_t b) {
  const uint64_t both = entry_of((a & 0xffffffffu) | (b & 0xffffffffu) << 8 * number_in(a), length_in(a) + length_in(b),
                                 number_in(a) + number_in(b));
  return length_in(both) <= (uint32_t)kHuffmanBits ? both : a;
}

// one[i]: the first symbol of the bits i; many[i]: the first one to four.
void make_tables(const uint32_t* codes, uint64_t* one, uint64_t* many) {
  for (uint32_t s = 0; s < 256; ++s) {
    const uint32_t length = codes[s] >> 16;
    if (length == 0) continue;
    for (uint32_t i = codes[s] & 0xffffu; i < kTable; i += 1u << length) one[i] = entry_of(s, length, 1);
  }
  uint64_t two[kTable];
  for (uint32_t i = 0; i < kTable; ++i) two[i] = join(one[i], one[i >> length_in(one[i])]);
  for (uint32_t i = 0; i < kTable; ++i) {
    uint64_t e = two[i];
    e = join(e, two[i >> length_in(e)]);  // two more, or
    if (number_in(e) < 4) e = join(e, one[i >> length_in(e)]);
    many[i] = e;
  }
}

struct Reader {
  const std::byte* from;
  uint64_t bit, last_bit;  // last_bit: where 8 bytes can still be read
  uint8_t *to, *last_to;   // last_to: where five look-ups still fit
};
TW_INLINE bool open(const Reader& r) {
  return r.bit <= r.last_bit && r.to <= r.last_to;
}
TW_INLINE uint64_t fetch(const Reader& r) {
  return *(const Loose64*)(r.from + (r.bit >> 3)) >> (r.bit & 7u);
}
TW_INLINE void look_up(const uint64_t* table, uint64_t& hold, Reader& r) {
  const uint64_t e = table[hold & (kTable - 1u)];
  *(Loose32*)r.to = (uint32_t)e;
  r.to += number_in(e);
  hold >>= length_in(e);
  r.bit += length_in(e);
}

bool decode(const std::byte* const* in, const size_t* bytes, const uint32_t* codes, int64_t n, uint8_t* symbols) {
  alignas(64) uint64_t one[kTable], many[kTable];
  make_tables(codes, one, many);
  const int64_t size = (n + 3) / 4;
  Reader r[4];
  for (int q = 0; q < 4; ++q) {
    const int64_t first = q * size < n ? q * size : n, last = first + size < n ? first + size : n;
    // Where nothing is left to do fast, the bound is below every position.
    const bool fast = bytes[q] >= 8 && last - first >= 20;
    r[q] = {in[q], 0, fast ? 8 * (bytes[q] - 8) : 0, symbols + first, fast ? symbols + last - 20 : symbols + first};
    if (!fast) r[q].bit = 1;
  }
  {
    Reader a = r[0], b = r[1], c = r[2], d = r[3];
    while (open(a) && open(b) && open(c) && open(d)) {
      uint64_t ha = fetch(a), hb = fetch(b), hc = fetch(c), hd = fetch(d);
#pragma GCC unroll 5
      for (int k = 0; k < 5; ++k) {
        look_up(many, ha, a);
        look_up(many, hb, b);
        look_up(many, hc, c);
        look_up(many, hd, d);
      }
    }
    r[0] = a, r[1] = b, r[2] = c, r[3] = d;
  }
  for (int q = 0; q < 4; ++q) {
    Reader& s = r[q];
    const int64_t first = q * size < n ? q * size : n, last = first + size < n ? first + size : n;
    if (!(bytes[q] >= 8 && last - first >= 20)) s.bit = 0;
    while (bytes[q] >= 8 && last - first >= 20 && open(s)) {
      uint64_t hold = fetch(s);
      for (int k = 0; k < 5; ++k) look_up(many, hold, s);
    }
    for (uint8_t* const end = symbols + last; s.to < end; ++s.to) {
      uint64_t hold = 0;
      const uint64_t at = s.bit >> 3;
      for (uint64_t k = 0; k < 3 && at + k < bytes[q]; ++k) hold |= (uint64_t)in[q][at + k] << 8 * k;
      const uint64_t e = one[hold >> (s.bit & 7u) & (kTable - 1u)];
      *s.to = (uint8_t)e;
      s.bit += length_in(e);
      if (s.bit > 8 * bytes[q]) return false;
    }
    if ((s.bit + 7) / 8 != bytes[q]) return false;
  }
  return true;
}

}  // namespace

constinit const HuffmanKernels huffman_kernels = {count, encode, pair, unpair, encode_pairs, decode};

}  // namespace thinwire::TW_ISA
