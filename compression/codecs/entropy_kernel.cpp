// Splitting floats, counting, and Huffman streams of codec entropy.
#include "compression/codecs/entropy_kernel.h"

#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

constexpr uint32_t kTable = 1u << kEntropyBits;
typedef uint16_t Loose16 __attribute__((aligned(1), may_alias));
typedef uint32_t Loose32 __attribute__((aligned(1), may_alias));
typedef uint64_t Loose64 __attribute__((aligned(1), may_alias));

void split(const std::byte* in, DType dtype, int64_t n, uint8_t* __restrict symbols, std::byte* __restrict rest_bytes) {
  uint8_t* __restrict rest = (uint8_t*)rest_bytes;
  if (dtype == DType::f32) {
    const Loose32* x = (const Loose32*)in;
    Loose16* __restrict low = (Loose16*)(rest + n);
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t w = x[i];
      symbols[i] = (uint8_t)(w >> 23);
      rest[i] = (uint8_t)((w >> 16 & 0x7fu) | (w >> 24 & 0x80u));
      low[i] = (uint16_t)w;
    }
    return;
  }
  const Loose16* x = (const Loose16*)in;
  if (dtype == DType::bf16) {
    for (int64_t i = 0; i < n; ++i) {
      const uint16_t h = x[i];
      symbols[i] = (uint8_t)(h >> 7);
      rest[i] = (uint8_t)((h & 0x7f) | (h >> 8 & 0x80));
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const uint16_t h = x[i];
      symbols[i] = (uint8_t)(h >> 8);
      rest[i] = (uint8_t)h;
    }
  }
}

TW_INLINE uint16_t half_of(uint8_t symbol, uint8_t rest) {
  return (uint16_t)((rest & 0x80) << 8 | symbol << 7 | (rest & 0x7f));
}

void merge(const uint8_t* __restrict symbols, const std::byte* __restrict rest_bytes, DType dtype, int64_t n,
           std::byte* __restrict out) {
  const uint8_t* rest = (const uint8_t*)rest_bytes;
  if (dtype == DType::f32) {
    const Loose16* low = (const Loose16*)(rest + n);
    Loose32* y = (Loose32*)out;
    for (int64_t i = 0; i < n; ++i) y[i] = (uint32_t)half_of(symbols[i], rest[i]) << 16 | low[i];
    return;
  }
  Loose16* y = (Loose16*)out;
  if (dtype == DType::bf16) {
    for (int64_t i = 0; i < n; ++i) y[i] = half_of(symbols[i], rest[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = (uint16_t)(symbols[i] << 8 | rest[i]);
  }
}

void merge_wide(const uint8_t* symbols, const std::byte* rest, DType dtype, int64_t n, float* out, bool accumulate) {
  constexpr int64_t kPart = 256;
  alignas(64) uint8_t narrow[2 * kPart];
  alignas(64) float wide[kPart];
  for (int64_t at = 0; at < n; at += kPart) {
    const int64_t m = n - at < kPart ? n - at : kPart;
    if (dtype == DType::f32) {
      const uint8_t* upper = (const uint8_t*)rest + at;
      const Loose16* low = (const Loose16*)((const uint8_t*)rest + n) + at;
      for (int64_t i = 0; i < m; ++i)
        ((uint32_t __attribute__((may_alias))*)wide)[i] = (uint32_t)half_of(symbols[at + i], upper[i]) << 16 | low[i];
    } else {
      merge(symbols + at, rest + at, dtype, m, (std::byte*)narrow);
      for_vectors(m, [&](auto part, int64_t i, int64_t count) TW_INLINE_LAMBDA {
        const VecF v = dtype == DType::bf16 ? load_at(part, (const Bf16*)narrow + i, count)
                                            : load_at(part, (const Fp16*)narrow + i, count);
        store_at(part, wide + i, v, count);
      });
    }
    for (int64_t i = 0; i < m; ++i) out[at + i] = accumulate ? out[at + i] + wide[i] : wide[i];
  }
}

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
TW_INLINE void put(Writer& w, uint32_t code) {
  w.hold |= (uint64_t)(code & 0xffffu) << w.held;
  w.held += code >> 16;
}
TW_INLINE void flush8(Writer& w) {
  *(Loose64*)w.to = w.hold;
  w.to += w.held >> 3;
  w.hold >>= w.held & 56u;
  w.held &= 7u;
}

void encode(const uint8_t* symbols, int64_t n, const uint32_t* codes, std::byte* const* out, const size_t* bytes) {
  const int64_t size = (n + 3) / 4, common = n - 3 * size;
  Writer w[4];
  for (int q = 0; q < 4; ++q) w[q] = {out[q], out[q] + bytes[q], 0, 0};
  int64_t i = 0;
  {
    // In registers. 5 codes and 7 bits left over fit in 64; the store of 8 bytes must stay inside of the quarter.
    Writer a = w[0], b = w[1], c = w[2], d = w[3];
    const uint8_t *s0 = symbols, *s1 = s0 + size, *s2 = s1 + size, *s3 = s2 + size;
    while (i + 5 <= common && a.end - a.to >= 8 && b.end - b.to >= 8 && c.end - c.to >= 8 && d.end - d.to >= 8) {
#pragma GCC unroll 5
      for (int k = 0; k < 5; ++k, ++i) {
        put(a, codes[s0[i]]);
        put(b, codes[s1[i]]);
        put(c, codes[s2[i]]);
        put(d, codes[s3[i]]);
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
      put(w[q], codes[symbols[q * size + j]]);
      for (; w[q].held >= 8; w[q].held -= 8, w[q].hold >>= 8) *w[q].to++ = (std::byte)w[q].hold;
    }
    if (w[q].held > 0) *w[q].to = (std::byte)w[q].hold;
  }
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
  return length_in(both) <= (uint32_t)kEntropyBits ? both : a;
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

constinit const EntropyKernels entropy_kernels = {split, merge, merge_wide, count, encode, decode};

}  // namespace thinwire::TW_ISA
