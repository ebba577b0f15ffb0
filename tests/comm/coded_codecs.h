// Codecs small enough to be read at a glance, for the tests of coded collectives.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "compression/codec_table.h"
#include "compression/coder.h"
#include "engine/base/core/crc32c.h"
#include "engine/base/core/error.h"
#include "parallel/collective/coded.h"
#include "tests/comm/local_group.h"

namespace thinwire {

// Blocks of 32: an fp32 step max|x| / levels, then a signed byte each; sealed: and a CRC-32C of these, so that decoding
// tells every flipped bit.
class Block8 : public Codec {
 public:
  static constexpr int64_t kBlock = 32;
  explicit Block8(float levels = 127.0f, bool sealed = false) : levels_(levels), sealed_(sealed) {}
  std::string name() const override { return "block8"; }
  Traits traits() const override { return {.contractive = true, .linear = true, .granule = kBlock}; }
  size_t wire_bytes(int64_t n, DType) const override {
    const size_t of_block = sizeof(float) + (sealed_ ? sizeof(uint32_t) : 0);
    return static_cast<size_t>(n) + static_cast<size_t>((n + kBlock - 1) / kBlock) * of_block;
  }
  static float step_of(const float* x, int64_t n, float levels = 127.0f) {
    float largest = 0.0f;
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(x[i]));
    return largest / levels;
  }
  static float decoded(float x, float step) { return step == 0.0f ? 0.0f : std::nearbyint(x / step) * step; }

  Encoded encode(const Msg&, View in, std::span<std::byte> out, CompressionState*) const override {
    const float* x = in.as<float>();
    Encoded encoded{wire_bytes(in.count(), DType::f32), false};
    std::byte* to = out.data();
    for (int64_t first = 0; first < in.count(); first += kBlock) {
      const int64_t n = std::min(kBlock, in.count() - first);
      for (int64_t i = 0; i < n; ++i) encoded.non_finite |= !std::isfinite(x[first + i]);
      const float step = step_of(x + first, n, levels_);
      const std::byte* const block = to;
      std::memcpy(to, &step, sizeof step);
      to += sizeof step;
      for (int64_t i = 0; i < n; ++i) {
        const bool zero = step == 0.0f || !std::isfinite(x[first + i]) || !std::isfinite(step);
        *to++ = static_cast<std::byte>(static_cast<int8_t>(zero ? 0.0f : std::nearbyint(x[first + i] / step)));
      }
      if (!sealed_) continue;
      const uint32_t seal = crc32c({block, to});
      std::memcpy(to, &seal, sizeof seal);
      to += sizeof seal;
    }
    return encoded;
  }
  void decode(const Msg&, std::span<const std::byte> in, View out, bool accumulate) const override {
    if (in.size() != wire_bytes(out.count(), DType::f32)) throw_bad_data("block8: wrong length");
    float* y = out.as<float>();
    const std::byte* from = in.data();
    for (int64_t first = 0; first < out.count(); first += kBlock) {
      float step;
      const std::byte* const block = from;
      std::memcpy(&step, from, sizeof step);
      from += sizeof step;
      for (int64_t i = first; i < std::min(first + kBlock, out.count()); ++i) {
        const float v = static_cast<float>(static_cast<int8_t>(*from++)) * step;
        y[i] = accumulate ? y[i] + v : v;
      }
      if (!sealed_) continue;
      uint32_t seal;
      std::memcpy(&seal, from, sizeof seal);
      if (seal != crc32c({block, from})) throw_bad_data("block8: the seal of a block does not match");
      from += sizeof seal;
    }
  }

 private:
  float levels_;
  bool sealed_;
};

// Only what is not zero: a bit per element, then these elements. Lossless, framed; granule 8, or 0: a message whole.
class NonZeros : public Codec {
 public:
  explicit NonZeros(int64_t granule) : granule_(granule) {}
  std::string name() const override { return "non_zeros"; }
  Traits traits() const override {
    return {.lossless = true, .framed = true, .contractive = true, .granule = granule_};
  }
  size_t wire_bytes(int64_t n, DType) const override { return static_cast<size_t>((n + 7) / 8 + 4 * n); }
  Encoded encode(const Msg&, View in, std::span<std::byte> out, CompressionState*) const override {
    const float* x = in.as<float>();
    const auto bits = static_cast<size_t>((in.count() + 7) / 8);
    std::fill_n(out.data(), bits, std::byte{0});
    size_t at = bits;
    bool finite = true;
    for (int64_t i = 0; i < in.count(); ++i) {
      finite &= static_cast<bool>(std::isfinite(x[i]));
      uint32_t word;
      std::memcpy(&word, x + i, sizeof word);
      if (word == 0) continue;
      out[static_cast<size_t>(i / 8)] |= static_cast<std::byte>(1 << i % 8);
      std::memcpy(out.data() + at, &word, sizeof word);
      at += sizeof word;
    }
    return {at, !finite};
  }
  void decode(const Msg&, std::span<const std::byte> in, View out, bool accumulate) const override {
    const auto bits = static_cast<size_t>((out.count() + 7) / 8);
    float* y = out.as<float>();
    size_t at = bits;
    for (int64_t i = 0; i < out.count(); ++i) {
      float v = 0.0f;
      if (in.size() < bits) throw_bad_data("non_zeros: cut short");
      if ((in[static_cast<size_t>(i / 8)] >> (i % 8) & std::byte{1}) != std::byte{0}) {
        if (in.size() < at + sizeof v) throw_bad_data("non_zeros: cut short");
        std::memcpy(&v, in.data() + at, sizeof v);
        at += sizeof v;
      }
      y[i] = accumulate ? y[i] + v : v;
    }
    if (at != in.size()) throw_bad_data("non_zeros: too long");
  }

 private:
  int64_t granule_;
};

inline std::shared_ptr<const Coder> coder_of(std::shared_ptr<const Codec> codec,
                                             ResidualKind residual = ResidualKind::kNone, bool hadamard = false) {
  CodecSpec spec;
  spec.hadamard = hadamard;
  return std::make_shared<Coder>(std::move(codec), spec, ResidualSpec{.kind = residual});
}

inline CommTuning small_chunks(int64_t chunk_bytes, Algorithm algorithm = Algorithm::kDirect) {
  CommTuning tuning;
  tuning.all_reduce = tuning.reduce_scatter = tuning.all_gather = algorithm;
  tuning.chunk_bytes = chunk_bytes;
  return tuning;
}

// `nodes` nodes with `local` ranks each.
inline std::vector<int> node_list(int nodes, int local) {
  std::vector<int> list;
  for (int r = 0; r < nodes * local; ++r) list.push_back(r / local + 3);
  return list;
}

inline std::vector<int64_t> aligned_bounds(std::mt19937_64& random, int64_t count, int size, int64_t unit) {
  std::vector<int64_t> bounds = ragged_bounds(random, count, size);
  for (size_t r = 1; r + 1 < bounds.size(); ++r) bounds[r] = bounds[r] / unit * unit;
  return bounds;
}

inline Bounds bounds_in(Communicator& group, const std::vector<int64_t>& bounds) {
  return Bounds(group.pool(), std::span<const int64_t>(bounds));
}

// One rank's end of a group, as a channel would drive it.
struct CodedRank {
  CodedRank(Progress& progress, int size, const CommTuning& tuning = {}, std::vector<int> nodes = {})
      : group(progress, all_ranks(size), 5, Site::kDpGradient, &counters, std::move(nodes), tuning) {}
  CodedCall call(const Coder* coder, CompressionState* state = nullptr, int64_t step = 0) {
    CodedCall call;
    call.coder = coder;
    call.state = state;
    call.msg.seed = 77;
    call.msg.step = step;
    call.stats = &stats;
    call.counters = &counters;
    call.site = Site::kDpGradient;
    return call;
  }
  void run(Task task) { group.start(std::move(task), "coded", 1).wait(stream); }
  int me() const { return group.rank(); }

  WireCounters counters;
  CompressionStats stats;
  HostStream stream;
  Communicator group;
};

}  // namespace thinwire
