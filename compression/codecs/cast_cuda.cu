// Codec cast on a GPU: the codes of cast_kernel.cpp, bit by bit.
#include "compression/codecs/device_makers.h"
#include "compression/device_kernels.h"

namespace thinwire {
namespace {

struct Bf16Cast {
  static constexpr int kBits = 16;
  static constexpr uint32_t kBadFrom = 0x7f7f8000;  // magnitudes from here on are not finite, or round to what is not
  TW_DEVICE static uint32_t put(float v) { return exact_to_bf16(v); }
  TW_DEVICE static float get(uint32_t code) { return float_of_bits(code << 16); }
};
struct Fp16Cast {
  static constexpr int kBits = 16;
  static constexpr uint32_t kBadFrom = 0x477ff000;
  TW_DEVICE static uint32_t put(float v) { return exact_to_half(v); }
  TW_DEVICE static float get(uint32_t code) { return exact_half(static_cast<uint16_t>(code)); }
};
// As As8Bits of cast_kernel.cpp.
template <uint32_t kCut, uint32_t kBias, uint32_t kMinNormal, uint32_t kStep, uint32_t kLargest, uint32_t kInfinity>
struct ByteCast {
  static constexpr int kBits = 8;
  static constexpr uint32_t kBadFrom = 0x7f800000;
  TW_DEVICE static uint32_t put(float v) {
    const uint32_t bits = bits_of(v), size = bits & 0x7fffffffu;
    uint32_t code = ((size + ((1u << (kCut - 1)) - 1u) + (size >> kCut & 1u)) >> kCut) - kBias;
    if (size < kMinNormal) code = bits_of(float_of_bits(size) + float_of_bits(kStep)) - kStep;
    if (code > kLargest) code = kLargest;
    if (size == 0x7f800000u) code = kInfinity;
    if (size > 0x7f800000u) code = 0x7fu;
    return code | (bits >> 24 & 0x80u);
  }
};
struct E4m3Cast : ByteCast<20, (127 - 7) << 3, (127 - 6) << 23, (127 + 14) << 23, 0x7e, 0x7f> {
  TW_DEVICE static float get(uint32_t code) {
    const uint32_t size = bits_of(exact_half(static_cast<uint16_t>((code & 0x7fu) << 7)) * 256.0f);
    return float_of_bits(((code & 0x7fu) == 0x7fu ? 0x7fc00000u : size) | (code & 0x80u) << 24);
  }
};
struct E5m2Cast : ByteCast<21, (127 - 15) << 2, (127 - 14) << 23, (127 + 7) << 23, 0x7b, 0x7c> {
  TW_DEVICE static float get(uint32_t code) { return exact_half(static_cast<uint16_t>(code << 8)); }
};

template <typename Format>
struct CastTiles {
  static constexpr const char *kPack = "pack cast", *kAbsorb = "absorb cast";
  static constexpr int kBytes = Format::kBits / 8;
  size_t shared_bytes(int64_t) const { return 0; }
  CastTiles for_message(const Msg&) const { return *this; }

  // kWhole: all elements of the tile are there, whatever n says.
  template <bool kWhole>
  TW_DEVICE bool code_tile(TileValues& v, int n, uint8_t* out) const {
    bool bad = false;
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      const int i = tile_element(s);
      uint32_t q[4];
      TW_UNROLL
      for (int k = 0; k < 4; ++k) {
        bad = bad || ((kWhole || i + k < n) && (bits_of(v[s][k]) & 0x7fffffffu) >= Format::kBadFrom);
        q[k] = Format::put(v[s][k]);
        v[s][k] = Format::get(q[k]);
      }
      if constexpr (kWhole && kBytes == 1) {
        store_whole_codes<8>(out + own_codes<8>(), s, q);
      } else if constexpr (kWhole) {
        const uint32_t words[2] = {q[0] | q[1] << 16, q[2] | q[3] << 16};
        store_values<2>(reinterpret_cast<uint32_t*>(out) + i / 2, words);
      } else if constexpr (kBytes == 1) {
        store_codes<8>(out, i, n, q);
      } else {
        TW_UNROLL
        for (int k = 0; k < 4; k += 2) {
          const int left = (n - i - k) * 2;
          if (left > 0) store_payload<4>(out + (i + k) * 2, q[k] | q[k + 1] << 16, left);
        }
      }
    }
    return bad;
  }
  TW_DEVICE bool encode(unsigned char*, TileValues& v, int n, uint64_t, uint8_t* out, bool) const {
    return code_tile<false>(v, n, out);
  }
  TW_DEVICE bool decode(const uint8_t* in, int n, TileValues& v) const {
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      const int i = tile_element(s);
      uint32_t q[4];
      if constexpr (kBytes == 1) {
        load_codes<8>(in, i, n, q);
      } else {
        TW_UNROLL
        for (int k = 0; k < 4; k += 2) {
          const uint32_t word = load_payload<4>(in + (i + k) * 2, (n - i - k) * 2);
          q[k] = word & 0xffffu, q[k + 1] = word >> 16;
        }
      }
      TW_UNROLL
      for (int k = 0; k < 4; ++k) v[s][k] = i + k < n ? Format::get(q[k]) : 0.0f;
    }
    return true;
  }

  // ---- whole tiles
  bool takes_whole() const { return true; }

  TW_DEVICE bool encode_whole(TileValues& v, uint64_t, uint8_t* out, bool) const { return code_tile<true>(v, 0, out); }

  struct Part {
    uint32_t codes[kTileSteps][kBytes];
  };
  TW_DEVICE PartPlace part_place() const { return {tile_element(0) * kBytes, 0}; }
  TW_DEVICE void load_part(const uint8_t* payload, const PartPlace& place, Part& part) const {
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s)
      load_values<kBytes>(reinterpret_cast<const uint32_t*>(payload + place.codes) + s * kWarp * kBytes, part.codes[s]);
  }
  TW_DEVICE bool decode_part(const Part& part, TileValues& v) const {
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      TW_UNROLL
      for (int k = 0; k < 4; ++k) {
        const uint32_t code = part.codes[s][k * kBytes / 4] >> k * Format::kBits % 32;
        v[s][k] = Format::get(code & ((1u << Format::kBits) - 1u));
      }
    }
    return true;
  }
};

template <typename Format>
std::unique_ptr<DeviceCodec> made() {
  return std::make_unique<TileCodec<CastTiles<Format>>>(CastTiles<Format>{});
}

}  // namespace

std::unique_ptr<DeviceCodec> make_cast_cuda(const CodecSpec& spec) {
  const std::string& format = spec.text("format");
  if (format == "bf16") return made<Bf16Cast>();
  if (format == "fp16") return made<Fp16Cast>();
  return format == "e4m3" ? made<E4m3Cast>() : made<E5m2Cast>();
}

}  // namespace thinwire
