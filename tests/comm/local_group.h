// What the tests of collectives share: ranks as threads with an engine each, random data that every rank can rebuild.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "engine/base/core/dtype.h"
#include "engine/base/core/view.h"
#include "parallel/collective/communicator.h"
#include "parallel/wire/transport_node.h"
#include "tests/comm/between.h"
#include "tests/support/local_world.h"

namespace thinwire {

// The memory of nodes of `per_node` ranks each (the last may have fewer), for ranks that are threads.
class NodeMemories {
 public:
  NodeMemories(int size, int per_node) {
    for (int first = 0; per_node > 0 && first < size; first += per_node) {
      std::vector<int> ranks;
      for (int r = first; r < std::min(size, first + per_node); ++r) ranks.push_back(r);
      const size_t bytes = ranks.size() < 2 ? 0 : node_memory_bytes(static_cast<int>(ranks.size()));
      nodes_.push_back({std::move(ranks), std::vector<Line>((bytes + sizeof(Line) - 1) / sizeof(Line))});
    }
  }
  // For a rank without neighbours: one that only passes on to `transport`.
  std::unique_ptr<Transport> join(Transport& transport) {
    for (Node& node : nodes_) {
      if (node.ranks.size() < 2 ||
          std::find(node.ranks.begin(), node.ranks.end(), transport.rank()) == node.ranks.end())
        continue;
      return node_transport(std::make_unique<Between>(transport), node.ranks, {node.memory.data(), [](void*) {}});
    }
    return std::make_unique<Between>(transport);
  }

 private:
  struct alignas(64) Line {
    char bytes[64] = {};
  };
  struct Node {
    std::vector<int> ranks;
    std::vector<Line> memory;
  };
  std::vector<Node> nodes_;
};

// Runs body(progress) on `size` ranks; the engine ends before its transport. per_node: so many ranks in a row share
// memory; 0: mailboxes alone.
inline void run_ranks(int size, const std::function<void(Progress&)>& body, uint64_t seed = 0,
                      const ProgressOptions& options = {.spin_us = 0}, int per_node = 0) {
  NodeMemories nodes(size, per_node);
  run_local_ranks(
      size,
      [&](Transport& transport) {
        const auto joined = nodes.join(transport);
        Progress progress(*joined, options);
        body(progress);
      },
      seed);
}

inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  return ranks;
}

// Elements of any type in plain memory; get() reads them as doubles, which is what oracles compute with.
class Buffer {
 public:
  Buffer(DType dtype, int64_t count)
      : dtype_(dtype), count_(count), bytes_(static_cast<size_t>(count) * size_of(dtype)) {
    bytes_.resize(bytes_.size() + 1);  // data() is never null
  }
  View view() { return View(bytes_.data(), dtype_, {count_}); }
  int64_t count() const { return count_; }
  const std::vector<char>& bytes() const { return bytes_; }

  double get(int64_t i) const {
    switch (dtype_) {
      case DType::f32:
        return read<float>(i);
      case DType::f64:
        return read<double>(i);
      case DType::bf16:
        return to_float(read<Bf16>(i));
      case DType::f16:
        return to_float(read<Fp16>(i));
      case DType::i32:
        return read<int32_t>(i);
      case DType::i64:
        return static_cast<double>(read<int64_t>(i));
      case DType::u8:
        return read<uint8_t>(i);
      case DType::u16:
        return read<uint16_t>(i);
    }
    return 0.0;
  }
  void set(int64_t i, double v) {
    switch (dtype_) {
      case DType::f32:
        return write(i, static_cast<float>(v));
      case DType::f64:
        return write(i, v);
      case DType::bf16:
        return write(i, to_bf16(static_cast<float>(v)));
      case DType::f16:
        return write(i, to_fp16(static_cast<float>(v)));
      case DType::i32:
        return write(i, static_cast<int32_t>(v));
      case DType::i64:
        return write(i, static_cast<int64_t>(v));
      case DType::u8:
        return write(i, static_cast<uint8_t>(v));
      case DType::u16:
        return write(i, static_cast<uint16_t>(v));
    }
  }
  // Values that differ by rank: floats in (-1, 1), integers below 2^20 (u8: all).
  void fill(uint64_t seed, int rank) {
    std::mt19937_64 random(seed * 7919 + static_cast<uint64_t>(rank) + 1);
    const bool real = epsilon_of(dtype_) > 0.0;
    for (int64_t i = 0; i < count_; ++i) {
      const uint64_t bits = random();
      set(i, real ? static_cast<double>(static_cast<int64_t>(bits)) * 0x1p-63
                  : static_cast<double>(dtype_ == DType::u8 ? bits & 255 : bits & 0xfffff));
    }
  }

 private:
  template <typename T>
  T read(int64_t i) const {
    T v;
    std::memcpy(&v, bytes_.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return v;
  }
  template <typename T>
  void write(int64_t i, T v) {
    std::memcpy(bytes_.data() + static_cast<size_t>(i) * sizeof(T), &v, sizeof(T));
  }
  DType dtype_;
  int64_t count_;
  std::vector<char> bytes_;
};

// All ranks' contributions, as anybody can rebuild them.
inline std::vector<Buffer> contributions(DType dtype, int64_t count, uint64_t seed, int size) {
  std::vector<Buffer> all;
  for (int r = 0; r < size; ++r) all.emplace_back(dtype, count).fill(seed, r);
  return all;
}

// Random cuts of [0, count]: some parts are empty.
inline std::vector<int64_t> ragged_bounds(std::mt19937_64& random, int64_t count, int size) {
  std::vector<int64_t> bounds = {0};
  for (int r = 1; r < size; ++r)
    bounds.push_back(random() % 4 == 0 ? bounds.back()
                                       : static_cast<int64_t>(random() % static_cast<uint64_t>(count + 1)));
  bounds.push_back(count);
  std::sort(bounds.begin(), bounds.end());
  return bounds;
}

// 0, a few, or up to `most`.
inline int64_t random_count(std::mt19937_64& random, int64_t most) {
  switch (random() % 8) {
    case 0:
      return static_cast<int64_t>(random() % 3);
    case 1:
    case 2:
      return static_cast<int64_t>(random() % 100);
    case 3:
    case 4:
    case 5:
      return static_cast<int64_t>(random() % 5000);
    default:
      return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
  }
}

// How far a sum of n numbers may be from the exact one: each of n - 1 additions in fp32 (fp64) rounds by half an
// epsilon of what is summed so far, at most `magnitude`; then it is rounded to its own type, `hops` times at most.
inline double sum_tolerance(DType dtype, int n, double magnitude, int hops) {
  const double arithmetic = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  double bound = n * arithmetic * magnitude * 1.01;
  // Below the smallest normal number of fp16 the error is absolute.
  if (dtype == DType::bf16 || dtype == DType::f16)
    bound += hops * (epsilon_of(dtype) / 2.0 * magnitude * 1.01 + (dtype == DType::f16 ? 0x1p-25 : 0.0));
  return bound;
}

}  // namespace thinwire
