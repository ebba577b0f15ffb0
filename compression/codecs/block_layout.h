// The payload geometry that all block codecs share: groups of [scales of its blocks][codes of its elements].
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "compression/codec_table.h"
#include "compression/codecs/block_kernels.h"
#include "compression/message_key.h"
#include "engine/base/core/error.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {

// A group is block * max(1, 4096 / block) elements: scales and codes of a tile that fits the L1 cache travel together,
// and a message may be cut at any multiple of a group. A last group that is not full has the scales of ceil(n / block)
// blocks and ceil(n * bits / 8) bytes of codes; bits behind the last code are zero.
struct BlockLayout {
  int64_t block = 0;
  int bits = 0;
  size_t scale_bytes = 0;  // per block
  size_t head_bytes = 0;   // per group, in front of the scales

  static constexpr int64_t kGroup = 4096, kLargestBlock = int64_t{1} << 20;
  int64_t group() const { return block * std::max<int64_t>(1, kGroup / block); }
  size_t group_bytes(int64_t n) const {
    if (n == 0) return 0;
    return head_bytes + static_cast<size_t>((n + block - 1) / block) * scale_bytes +
           (static_cast<size_t>(n) * static_cast<size_t>(bits) + 7) / 8;
  }
  size_t bytes(int64_t n) const {
    return static_cast<size_t>(n / group()) * group_bytes(group()) + group_bytes(n % group());
  }

  // body(first element, elements, bytes in front of them) for each group; returns whether all calls returned true. On
  // up to `threads` threads; what is computed does not depend on them. `body` must not throw.
  template <typename Body>
  bool for_groups(int threads, int64_t n, const Body& body) const {
    const int64_t run = group() * std::max<int64_t>(1, (int64_t{1} << 16) / group());
    const size_t full = group_bytes(group());
    bool good = true;
    parallel_blocks(threads, n, run, [&](int64_t first, int64_t last) {
      bool all = true;
      for (int64_t i = first; i < last; i += group())
        all &= body(i, std::min(group(), last - i), static_cast<size_t>(i / group()) * full);
      // relaxed: only ever set to false, and read behind the loop's barrier
      if (!all) __atomic_store_n(&good, false, __ATOMIC_RELAXED);
    });
    return good;
  }
};

// A codec that encodes group by group: fp32 in and out, fixed size, with codes whose decoded numbers are levels times a
// scale.
class BlockCodec : public Codec {
 public:
  BlockCodec(const BlockLayout& layout, std::string name) : layout_(layout), name_(std::move(name)) {}
  std::string name() const override { return name_; }
  size_t wire_bytes(int64_t count, DType) const override { return layout_.bytes(count); }
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState*) const override {
    const float* x = in.as<float>();
    const int64_t n = in.count();
    const size_t bytes = wire_bytes(n, DType::f32);
    TW_CHECK(out.size() >= bytes, name_, ": room for ", out.size(), " bytes, needs ", bytes);
    uint8_t* to = reinterpret_cast<uint8_t*>(out.data());
    const bool finite = layout_.for_groups(msg.threads, n, [&](int64_t first, int64_t count, size_t offset) {
      return encode_group(msg, x + first, first, count, to + offset);
    });
    return {bytes, !finite};
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    float* y = out.as<float>();
    const int64_t n = out.count();
    check_payload(name_, in, wire_bytes(n, DType::f32), n);
    const uint8_t* from = reinterpret_cast<const uint8_t*>(in.data());
    const bool good = layout_.for_groups(msg.threads, n, [&](int64_t first, int64_t count, size_t offset) {
      return decode_group(from + offset, count, y + first, accumulate);
    });
    if (!good)
      throw_bad_data(name_ + ": an infinite scale, or another that no encoder writes, in a payload; it was damaged");
  }

 protected:
  // Elements [first, first + n) of the piece, x or y + first; whether all were finite.
  virtual bool encode_group(const Msg& msg, const float* x, int64_t first, int64_t n, uint8_t* out) const = 0;
  // Whether an encoder may have written it.
  virtual bool decode_group(const uint8_t* in, int64_t n, float* y, bool accumulate) const = 0;

  BlockLayout layout_;
  std::string name_;
};

// One whose groups are coded by kernels.
class KernelCodec final : public BlockCodec {
 public:
  KernelCodec(std::string name, const BlockForm& form, size_t scale_bytes, size_t head_bytes,
              const BlockKernels& kernels, bool contractive = true)
      : BlockCodec({form.block, form.bits, scale_bytes, head_bytes}, std::move(name)),
        form_(form),
        kernels_(kernels),
        contractive_(contractive) {}
  Traits traits() const override {
    return {.unbiased = form_.stochastic, .contractive = contractive_, .linear = true, .granule = layout_.group()};
  }

 private:
  bool encode_group(const Msg& msg, const float* x, int64_t first, int64_t n, uint8_t* out) const override {
    const PhiloxKey key = form_.stochastic ? message_key(msg, RandomPurpose::kRounding) : PhiloxKey{};
    return kernels_.encode(form_, {key.k0, key.k1, static_cast<uint64_t>(msg.first + first)}, x, n, out);
  }
  bool decode_group(const uint8_t* in, int64_t n, float* y, bool accumulate) const override {
    return kernels_.decode(form_, in, n, y, accumulate);
  }

  BlockForm form_;
  const BlockKernels& kernels_;
  bool contractive_;
};

}  // namespace thinwire
