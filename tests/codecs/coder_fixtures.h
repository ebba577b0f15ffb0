// What tests of coders need: two tiny codecs, one call to pack and to absorb, a checkpoint in memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compression/codec_table.h"
#include "compression/coder.h"
#include "compression/residual.h"
#include "compression/tile_kernel.h"
#include "tests/codecs/codec_laws.h"

namespace thinwire::test {

// 4-bit symmetric integers in blocks of 32 with an fp32 scale: the simplest thing that a transform can help.
class TinyInt final : public Codec {
 public:
  std::string name() const override { return "tiny_int"; }
  Traits traits() const override { return {.contractive = true, .linear = true, .granule = 32}; }
  size_t wire_bytes(int64_t n, DType) const override {
    return static_cast<size_t>(n / 32 * 20 + (n % 32 ? 4 + (n % 32 + 1) / 2 : 0));
  }
  Encoded encode(const Msg&, View in, std::span<std::byte> out, CompressionState*) const override {
    const float* x = in.as<float>();
    bool bad = false;
    for (int64_t first = 0; first < in.count(); first += 32) {
      const int64_t m = std::min<int64_t>(32, in.count() - first);
      std::byte* block = out.data() + first / 32 * 20;
      float most = 0.0f;
      for (int64_t i = 0; i < m; ++i) {
        bad |= !std::isfinite(x[first + i]);
        most = std::max(most, std::fabs(x[first + i]));
      }
      const float scale = most / 7.0f;
      std::memcpy(block, &scale, 4);
      for (int64_t i = 0; i < m; ++i) {
        const float v = x[first + i] / scale;
        const float q = scale > 0.0f && std::isfinite(scale) && std::isfinite(v) ? std::nearbyint(v) : 0.0f;
        const int code = static_cast<int>(std::clamp(q, -7.0f, 7.0f)) & 15;
        std::byte& b = block[4 + i / 2];
        b = i % 2 == 0 ? static_cast<std::byte>(code) : b | static_cast<std::byte>(code << 4);
      }
    }
    return {wire_bytes(in.count(), in.dtype), bad};
  }
  void decode(const Msg&, std::span<const std::byte> in, View out, bool accumulate) const override {
    if (in.size() != wire_bytes(out.count(), out.dtype)) throw_bad_data("tiny_int: length");
    float* y = out.as<float>();
    for (int64_t i = 0; i < out.count(); ++i) {
      const std::byte* block = in.data() + i / 32 * 20;
      float scale;
      std::memcpy(&scale, block, 4);
      int code = (static_cast<int>(block[4 + i % 32 / 2]) >> (i % 2 * 4)) & 15;
      if (code > 7) code -= 16;
      const float v = static_cast<float>(code) * scale;
      y[i] = accumulate ? y[i] + v : v;
    }
  }
};

// Adds a number that only who packed the element at this index knows, and subtracts it again: loses a rounding, and
// everything if rank, index or step are not what they were.
class TinyDither final : public Codec {
 public:
  std::string name() const override { return "tiny_dither"; }
  Traits traits() const override { return {.contractive = true, .granule = 1}; }
  size_t wire_bytes(int64_t n, DType) const override { return static_cast<size_t>(n) * 4; }
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState*) const override {
    bool bad = false;
    for (int64_t i = 0; i < in.count(); ++i) {
      const float v = in.as<float>()[i] + dither(msg, i);
      bad |= !std::isfinite(v);
      std::memcpy(out.data() + i * 4, &v, 4);
    }
    return {wire_bytes(in.count(), in.dtype), bad};
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    if (in.size() != wire_bytes(out.count(), out.dtype)) throw_bad_data("tiny_dither: length");
    for (int64_t i = 0; i < out.count(); ++i) {
      float v;
      std::memcpy(&v, in.data() + i * 4, 4);
      v -= dither(msg, i);
      out.as<float>()[i] = accumulate ? out.as<float>()[i] + v : v;
    }
  }

 private:
  static float dither(const Msg& msg, int64_t i) {
    const uint64_t key = static_cast<uint64_t>((msg.step * 64 + msg.rank) * 1000003 + msg.first + i);
    return static_cast<float>((key * 0x9E3779B97F4A7C15u) >> 40) * 0x1p-24f;
  }
};

// Keeps the elements of every even index: coded whole (granule 0).
class TinySelect final : public Codec {
 public:
  std::string name() const override { return "tiny_select"; }
  Traits traits() const override { return {.contractive = true, .linear = true, .granule = 0}; }
  size_t wire_bytes(int64_t n, DType) const override { return static_cast<size_t>(n + 1) / 2 * 4; }
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState*) const override {
    bool bad = false;
    for (int64_t i = 0; i < in.count(); ++i) {
      bad |= !std::isfinite(in.as<float>()[i]);
      if (i % 2 == 0)
        std::memcpy(out.data() + i * 2, in.as<float>() + (msg.step % 2 && i + 1 < in.count() ? i + 1 : i), 4);
    }
    return {wire_bytes(in.count(), in.dtype), bad};
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    if (in.size() != wire_bytes(out.count(), out.dtype)) throw_bad_data("tiny_select: length");
    for (int64_t i = 0; i < out.count(); ++i) {
      const int64_t kept = msg.step % 2 && (i & ~1) + 1 < out.count() ? (i & ~1) + 1 : i & ~1;
      float v = 0.0f;
      if (kept == i) std::memcpy(&v, in.data() + i / 2 * 4, 4);
      out.as<float>()[i] = accumulate ? out.as<float>()[i] + v : v;
    }
  }
};

inline CodecSpec plain() {
  return {};
}
inline CodecSpec with(bool hadamard) {
  CodecSpec spec;
  spec.hadamard = hadamard;
  return spec;
}
inline std::shared_ptr<const Codec> cast_to(const char* format) {
  return make_codec({"cast", {{"format", format}}}).codec;
}
inline ResidualSpec keeping(ResidualSpec spec, OnSkip on_skip = OnSkip::kRestore) {
  spec.on_skip = on_skip;
  return spec;
}
inline ResidualSpec keeping(ResidualKind kind, OnSkip on_skip = OnSkip::kRestore) {
  ResidualSpec spec;
  spec.kind = kind;
  spec.on_skip = on_skip;
  return spec;
}

inline Msg message(int64_t step, int threads = 1) {
  Msg msg = law_msg(threads);
  msg.step = step;
  return msg;
}

// Packs x (fp32) in one piece.
inline Bytes pack(const Coder& coder, std::span<const float> x, CompressionState* state, const Msg& msg,
                  CompressionStats* stats = nullptr, View reference = View()) {
  Fenced in(x.data(), x.size() * 4);
  Fenced out(coder.wire_bytes(static_cast<int64_t>(x.size()), DType::f32));
  CompressionStats own;
  const size_t bytes = coder.pack(msg, in.view(DType::f32), reference, out.span(), state, stats ? *stats : own);
  return Bytes(out.data(), out.data() + bytes);
}
inline std::vector<float> absorb(const Coder& coder, const Bytes& payload, int64_t n, const Msg& msg) {
  Fenced in(payload.data(), payload.size());
  Fenced out(static_cast<size_t>(n) * 4);
  CompressionStats stats;
  const Share share{in.span(), View(), msg.rank};
  coder.absorb(msg, {&share, 1}, out.view(DType::f32), false, stats);
  return as_floats(out.span(), DType::f32);
}

// Checkpoint in memory: names to bytes; saves, or loads what was saved.
class Snapshot final : public StateVisitor {
 public:
  bool loading = false;
  void tensor(const GlobalSlice& s) override { value(s.name, s.local.data, s.local.bytes()); }
  void integer(const std::string& name, int64_t& v) override { value(name, &v, sizeof v); }
  void real(const std::string& name, double& v) override { value(name, &v, sizeof v); }
  void text(const std::string&, std::string&) override { FAIL(); }
  const Bytes& at(const std::string& name) const { return saved_.at(name); }
  bool has(const std::string& name) const { return saved_.count(name) > 0; }
  bool operator==(const Snapshot& other) const { return saved_ == other.saved_; }

 private:
  void value(const std::string& name, void* data, size_t bytes) {
    if (loading) {
      ASSERT_EQ(saved_.at(name).size(), bytes) << name;
      std::memcpy(data, saved_.at(name).data(), bytes);
      return;
    }
    const auto* p = static_cast<const std::byte*>(data);
    EXPECT_TRUE(saved_.emplace(name, Bytes(p, p + bytes)).second) << name << " twice";
  }
  std::map<std::string, Bytes> saved_;
};
inline Snapshot save(CompressionState& state) {
  Snapshot s;
  state.visit(s, "at/");
  return s;
}

inline std::vector<float> residual_of(CompressionState& state) {
  const Snapshot s = save(state);
  if (dynamic_cast<CoderState&>(state).residual().count() > 0) return as_floats(s.at("at/residual"), DType::f32);
  if (s.has("at/residual")) return as_floats(s.at("at/residual"), DType::bf16);
  const Bytes& codes = s.at("at/residual_codes");
  const std::vector<float> scales = as_floats(s.at("at/residual_scales"), DType::f32);
  std::vector<float> e(codes.size());
  for (size_t i = 0; i < e.size(); ++i)
    e[i] = static_cast<float>(static_cast<int8_t>(codes[i])) * scales[i / static_cast<size_t>(kResidualBlock)];
  return e;
}

// Codecs x transform that the residual tests run over.
struct Subject {
  std::string name;
  std::shared_ptr<const Codec> codec;
  bool hadamard;
};
inline std::vector<Subject> subjects() {
  return {{"e4m3", cast_to("e4m3"), false},
          {"tiny_int", std::make_shared<TinyInt>(), false},
          {"tiny_int + hadamard", std::make_shared<TinyInt>(), true},
          {"tiny_dither", std::make_shared<TinyDither>(), false},
          {"tiny_select", std::make_shared<TinySelect>(), false}};
}

}  // namespace thinwire::test
