// What tests of device coders need: device memory with canaries, random numbers of all kinds, bytes of both sides.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "compression/device_state.h"
#include "tests/codecs/coder_fixtures.h"

namespace thinwire::test {

using Random = std::mt19937_64;

// Device memory of exactly so many bytes, `shift` behind an aligned address, with a canary on both sides.
class Buffer {
 public:
  Buffer(Device& device, std::span<const std::byte> content, size_t shift = 0)
      : device_(&device), bytes_(content.size()), before_(64 + shift) {
    std::vector<std::byte> all(before_ + bytes_ + 64, std::byte{0xA5});
    if (bytes_ > 0) std::memcpy(all.data() + before_, content.data(), bytes_);
    memory_ = DeviceMemory(device, all.size());
    device.copy_at_rest(memory_.data(), all.data(), all.size());
  }
  Buffer(Device& device, size_t bytes, size_t shift = 0)
      : Buffer(device, std::vector<std::byte>(bytes, std::byte{0xCC}), shift) {}

  std::byte* data() const { return static_cast<std::byte*>(memory_.data()) + before_; }
  std::span<std::byte> span() const { return {data(), bytes_}; }
  View view(DType dtype) const { return View(data(), dtype, {static_cast<int64_t>(bytes_ / size_of(dtype))}); }
  Bytes content() const {
    Bytes all(memory_.bytes());
    device_->copy_at_rest(all.data(), memory_.data(), all.size());
    for (size_t i = 0; i < all.size(); ++i)
      if ((i < before_ || i >= before_ + bytes_) && all[i] != std::byte{0xA5}) {
        ADD_FAILURE() << "something wrote outside of a buffer of " << bytes_ << " bytes";
        break;
      }
    return Bytes(all.begin() + static_cast<int64_t>(before_), all.end() - 64);
  }

 private:
  Device* device_;
  size_t bytes_, before_;
  DeviceMemory memory_;
};

template <typename T>
T pick(Random& random, std::initializer_list<T> all) {
  return all.begin()[random() % all.size()];
}
inline int64_t within(Random& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

inline float random_float(Random& random, int kind, bool strange) {
  const auto bits = static_cast<uint32_t>(random());
  std::normal_distribution<float> normal;
  switch (kind) {
    case 0:
      return normal(random);
    case 1: {  // any float that is finite
      const uint32_t exponent = bits >> 23 & 0xffu;
      return std::bit_cast<float>(exponent == 255 && !strange ? bits ^ 0x40000000u : bits);
    }
    case 2:  // subnormals and the smallest numbers
      return std::bit_cast<float>(bits & (random() % 4 == 0 ? 0x81ffffffu : 0x807fffffu));
    case 3:
      return random() % 3 == 0 ? normal(random) * 1e-30f : random() % 2 == 0 ? 0.0f : -0.0f;
    case 4:  // heavy tails
      return normal(random) * std::exp2(4.0f * normal(random));
    case 5:  // ties
      return static_cast<float>(static_cast<int>(bits % 513) - 256) * 0.5f;
    default:  // what fp16 scales cannot hold
      return normal(random) * (random() % 8 == 0 ? 1e30f : 1e7f);
  }
}

inline std::vector<float> random_values(Random& random, int64_t n, bool strange) {
  const int kind = static_cast<int>(random() % 8);
  const float scale = random() % 4 == 0 ? std::exp2(static_cast<float>(within(random, -60, 40))) : 1.0f;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = random_float(random, kind == 7 ? static_cast<int>(random() % 7) : kind, strange) * scale;
  if (!strange)
    for (float& v : x) v = std::isfinite(v) ? v : 1.0f;
  else if (n > 0)
    x[random() % x.size()] = pick(random, {std::bit_cast<float>(0x7fa12345u), std::numeric_limits<float>::infinity(),
                                           -std::numeric_limits<float>::infinity(), std::bit_cast<float>(0xffc00001u)});
  return x;
}

// Every NaN as one pattern: which of them arithmetic leaves is the machine's business.
inline Bytes one_nan(Bytes bytes, DType dtype) {
  for (size_t i = 0; i + size_of(dtype) <= bytes.size(); i += size_of(dtype)) {
    uint32_t v = 0;
    std::memcpy(&v, bytes.data() + i, size_of(dtype));
    const uint32_t infinity = dtype == DType::f32 ? 0x7f800000u : dtype == DType::bf16 ? 0x7f80u : 0x7c00u;
    const uint32_t size = v & (dtype == DType::f32 ? 0x7fffffffu : 0x7fffu);
    if (size > infinity) std::memcpy(bytes.data() + i, &(v = infinity + 1), size_of(dtype));
  }
  return bytes;
}

// Where two differ, or nothing.
inline std::string difference(const Bytes& host, const Bytes& device) {
  if (host.size() != device.size())
    return std::to_string(host.size()) + " and " + std::to_string(device.size()) + " bytes";
  for (size_t i = 0; i < host.size(); ++i)
    if (host[i] != device[i]) {
      std::string text = "byte " + std::to_string(i) + " of " + std::to_string(host.size()) + ": ";
      for (const Bytes* side : {&host, &device}) {
        for (size_t k = i / 4 * 4; k < std::min(side->size(), i / 4 * 4 + 4); ++k)
          text += "0123456789abcdef"[static_cast<int>((*side)[k]) >> 4],
              text += "0123456789abcdef"[static_cast<int>((*side)[k]) & 15];
        text += side == &host ? " on the host, " : " on the device";
      }
      return text;
    }
  return {};
}

// State of a coder as a checkpoint sees it, from wherever it lives.
class StateBytes final : public StateVisitor {
 public:
  explicit StateBytes(Device& device) : device_(device) {}
  bool loads = false;  // into the state what `all` has, else out of it
  void tensor(const GlobalSlice& s) override {
    if (loads) {
      ASSERT_EQ(all.at(s.name).size(), s.local.bytes()) << s.name;
      return device_.copy_at_rest(s.local.data, all.at(s.name).data(), s.local.bytes());
    }
    Bytes& bytes = all[s.name];
    bytes.resize(s.local.bytes());
    device_.copy_at_rest(bytes.data(), s.local.data, bytes.size());
    if (s.local.dtype == DType::f32 || s.local.dtype == DType::bf16) bytes = one_nan(bytes, s.local.dtype);
  }
  void integer(const std::string& name, int64_t& v) override {
    if (loads) {
      ASSERT_EQ(all.at(name).size(), sizeof v) << name;
      std::memcpy(&v, all.at(name).data(), sizeof v);
      return;
    }
    const auto* p = reinterpret_cast<const std::byte*>(&v);
    all[name] = Bytes(p, p + sizeof v);
  }
  void real(const std::string&, double&) override { FAIL(); }
  void text(const std::string&, std::string&) override { FAIL(); }
  std::map<std::string, Bytes> all;

 private:
  Device& device_;
};

}  // namespace thinwire::test
