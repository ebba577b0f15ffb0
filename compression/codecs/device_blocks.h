// What the kernels of block codecs on a GPU share, as in block_simd.h: keys of largest magnitudes, scales that are
// powers of two; and tiles that have one scale per block and nothing else beside their codes.
#pragma once

#include "compression/device_kernels.h"
#include "engine/base/core/philox.h"

namespace thinwire {

constexpr uint32_t kBadKey = 0xff000000u;  // keys from here on are of NaN or infinity
constexpr auto kRounding = static_cast<uint32_t>(RandomPurpose::kRounding);

// Keys order floats by magnitude and, among equals, - behind +: the bits turned left by one.
TW_DEVICE uint32_t key_of(float v) {
  const uint32_t bits = bits_of(v);
  return bits << 1 | bits >> 31;
}
TW_DEVICE float value_of_key(uint32_t key) {
  return float_of_bits(key >> 1 | key << 31);
}
TW_DEVICE bool is_infinite(float v) {
  return (bits_of(v) & 0x7fffffffu) == 0x7f800000u;
}
// An E8M0 scale.
TW_DEVICE float power_of_byte(uint32_t e) {
  return float_of_bits(e == 255u ? 0x7fc00000u : e == 0u ? 0x00400000u : e << 23);
}

// keys[b] = largest key of block b of the tile, behind a barrier. All threads call.
TW_DEVICE void largest_keys(unsigned* keys, const TileValues& v, int n, int block, int lanes) {
  for (int b = static_cast<int>(threadIdx.x); b < (n + block - 1) / block; b += kTileThreads) keys[b] = 0;
  __syncthreads();
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) {
    if (!step_has_any(s, n)) continue;
    uint32_t key[4];
    TW_UNROLL
    for (int k = 0; k < 4; ++k) key[k] = key_of(v[s][k]);
    raise_maxima(keys, key, tile_element(s), n, block, lanes);
  }
  __syncthreads();
}

// ---- whole tiles ---------------------------------------------------------------------------------------------------
// Blocks of 16, 32, ... 512 = 2^shift elements: a warp holds whole ones, and four neighbouring threads elements of the
// same block in each step. Each of the four finds the scale of one step's block, which the others then ask it for.
static_assert(kTileSteps == 4 && kWarpElements == 512);

// 0 for other blocks. On the host.
inline int whole_shift(int64_t block) {
  for (int shift = 4; shift <= 9; ++shift)
    if (block == int64_t{1} << shift) return shift;
  return 0;
}
// keys[s], the largest of this thread's at step s, becomes that of its block.
TW_DEVICE void block_maxima(uint32_t (&keys)[kTileSteps], int shift) {
  const auto larger = [](uint32_t a, uint32_t b) { return a > b ? a : b; };
  if (shift < 7) {
    for (int lanes = 1; lanes < 1 << (shift - 2); lanes *= 2) {
      TW_UNROLL
      for (int s = 0; s < kTileSteps; ++s) keys[s] = larger(keys[s], shuffle_xor(keys[s], lanes));
    }
    return;
  }
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) keys[s] = warp_max(keys[s]);
  if (shift >= 8) keys[0] = keys[1] = larger(keys[0], keys[1]), keys[2] = keys[3] = larger(keys[2], keys[3]);
  if (shift == 9) keys[0] = keys[1] = keys[2] = keys[3] = larger(keys[0], keys[2]);
}
TW_DEVICE uint32_t largest_key(const float (&v)[4]) {
  uint32_t most = 0;
  TW_UNROLL
  for (int k = 0; k < 4; ++k) most = key_of(v[k]) > most ? key_of(v[k]) : most;
  return most;
}
// The step whose block this thread answers for, that block, what keys are known of it, whether it writes its scale (one
// thread of each block does), and what the thread that answers for step s has found.
TW_DEVICE int own_step() {
  return static_cast<int>(threadIdx.x % kTileSteps);
}
TW_DEVICE int own_block(int shift) {
  return tile_element(own_step()) >> shift;
}
TW_DEVICE uint32_t own_key(const uint32_t (&keys)[kTileSteps]) {
  const uint32_t low = own_step() == 0 ? keys[0] : keys[1], high = own_step() == 2 ? keys[2] : keys[3];
  return own_step() < 2 ? low : high;
}
TW_DEVICE bool writes_scale(int shift) {
  return (tile_element(own_step()) & ((1 << shift) - 1)) == 4 * own_step();
}
TW_DEVICE float found_for(int s, float found) {
  return shuffle_from(found, static_cast<int>(threadIdx.x % kWarp / kTileSteps * kTileSteps) + s);
}

// ---- tiles of scales and codes -------------------------------------------------------------------------------------
// Codes of a tile whose blocks have these inverses; v becomes what they decode to by these steps.
template <typename Form>
TW_DEVICE void put_codes(const Form& form, TileValues& v, int n, const float* inverses, const float* steps,
                         uint8_t* codes) {
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) {
    const int i = tile_element(s);
    uint32_t q[4] = {};
    TW_UNROLL
    for (int k = 0; k < 4; ++k) {
      if (i + k >= n) continue;
      const int b = (i + k) / form.block;
      q[k] = form.code_of(v[s][k], inverses[b]);
      v[s][k] = form.level_of(q[k]) * steps[b];
    }
    store_codes<Form::kBits>(codes, i, n, q);
  }
}
// A whole tile's: codes of this thread, lowest bits first, by the steps of their blocks.
template <int kBits, typename Level>
TW_DEVICE void get_values(const uint32_t (&codes)[kTileSteps], const float (&steps)[kTileSteps], TileValues& v,
                          const Level& level_of) {
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) {
    TW_UNROLL
    for (int k = 0; k < 4; ++k) v[s][k] = level_of(codes[s] >> k * kBits) * steps[s];
  }
}

// A codec of device_kernels.h. Form: a plain struct with
// - kPack and kAbsorb; kBits of a code, kScaleBytes of a scale
// - block, lanes, shift: elements of a block, and what lanes_of_block() and whole_shift() say of it
// - StoredScale scale_of(key): of a block whose largest key this is
// - float step_of(bits), bool possible(bits): of a stored scale; whether an encoder may have written it
// - uint32_t code_of(v, inverse), float level_of(code): bits above the code's do not count
// - void values_of(codes, steps, v): get_values() with its levels
struct StoredScale {
  uint32_t bits;  // as stored
  float inverse;  // what elements are multiplied by
  bool wrong;     // something in the block is not finite
};
template <typename Form>
struct BlockTiles : Form {
  // Per block: its largest key, then the inverse of its scale; the step.
  size_t shared_bytes(int64_t tile) const {
    return static_cast<size_t>(ceil_div(tile, Form::block)) * 2 * sizeof(float);
  }
  BlockTiles for_message(const Msg&) const { return *this; }

  TW_DEVICE bool encode(unsigned char* shared, TileValues& v, int n, uint64_t, uint8_t* out, bool) const {
    const int blocks = (n + Form::block - 1) / Form::block;
    auto* keys = reinterpret_cast<unsigned*>(shared);
    auto* inverses = reinterpret_cast<float*>(shared);
    float* steps = inverses + blocks;
    largest_keys(keys, v, n, Form::block, Form::lanes);
    bool bad = false;
    for (int b = static_cast<int>(threadIdx.x); b < blocks; b += kTileThreads) {
      const StoredScale scale = Form::scale_of(keys[b]);
      bad = bad || scale.wrong;
      inverses[b] = scale.inverse;
      steps[b] = Form::step_of(scale.bits);
      store_payload<Form::kScaleBytes>(out + b * Form::kScaleBytes, scale.bits, Form::kScaleBytes);
    }
    __syncthreads();
    put_codes<Form>(*this, v, n, inverses, steps, out + blocks * Form::kScaleBytes);
    return bad;
  }

  TW_DEVICE bool decode(const uint8_t* in, int n, TileValues& v) const {
    const uint8_t* codes = in + (n + Form::block - 1) / Form::block * Form::kScaleBytes;
    bool good = true;
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      const int i = tile_element(s);
      uint32_t q[4];
      load_codes<Form::kBits>(codes, i, n, q);
      float step = 0.0f;
      TW_UNROLL
      for (int k = 0; k < 4; ++k) {
        v[s][k] = 0.0f;
        if (i + k >= n) continue;
        if (k == 0 || Form::lanes == 0) {  // else the four are in one block
          const uint8_t* at = in + (i + k) / Form::block * Form::kScaleBytes;
          const uint32_t bits = load_payload<Form::kScaleBytes>(at, Form::kScaleBytes);
          good = good && Form::possible(bits);
          step = Form::step_of(bits);
        }
        v[s][k] = Form::level_of(q[k]) * step;
      }
    }
    return good;
  }

  bool takes_whole() const { return Form::shift > 0; }

  TW_DEVICE bool encode_whole(TileValues& v, uint64_t, uint8_t* out, bool decoded) const {
    uint32_t keys[kTileSteps];
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) keys[s] = largest_key(v[s]);
    block_maxima(keys, Form::shift);
    const StoredScale own = Form::scale_of(own_key(keys));
    if (writes_scale(Form::shift))
      store_whole<Form::kScaleBytes>(out + own_block(Form::shift) * Form::kScaleBytes, own.bits);
    uint8_t* codes = out + (kMostDeviceTile >> Form::shift) * Form::kScaleBytes + own_codes<Form::kBits>();
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      const float inverse = found_for(s, own.inverse);
      const float step = decoded ? found_for(s, Form::step_of(own.bits)) : 0.0f;
      uint32_t q[4];
      TW_UNROLL
      for (int k = 0; k < 4; ++k) {
        q[k] = Form::code_of(v[s][k], inverse);
        if (decoded) v[s][k] = Form::level_of(q[k]) * step;
      }
      store_whole_codes<Form::kBits>(codes, s, q);
    }
    return own.wrong;
  }

  struct Part {
    uint32_t codes[kTileSteps];
    uint32_t scale;  // bits of the block that this thread answers for
  };
  TW_DEVICE PartPlace part_place() const {
    return {(kMostDeviceTile >> Form::shift) * Form::kScaleBytes + own_codes<Form::kBits>(),
            own_block(Form::shift) * Form::kScaleBytes};
  }
  TW_DEVICE void load_part(const uint8_t* payload, const PartPlace& place, Part& part) const {
    load_whole_codes<Form::kBits>(payload + place.codes, part.codes);
    part.scale = load_whole<Form::kScaleBytes>(payload + place.scale);
  }
  TW_DEVICE bool decode_part(const Part& part, TileValues& v) const {
    float steps[kTileSteps];
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) steps[s] = found_for(s, Form::step_of(part.scale));
    Form::values_of(part.codes, steps, v);
    return Form::possible(part.scale);
  }
};

}  // namespace thinwire
