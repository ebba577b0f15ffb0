// Codec random_k: a random share `density` of every block, the same elements on all ranks; only values travel.
//
// A piece is cut into blocks of `block` elements (the last may be short). A block of b elements keeps
//   kept(b) = max(1, round(density block)) if b == block, else ceil(kept(block) * b / block),
// one element of each stratum [j b / kept, (j + 1) b / kept). Which one: word j % 4 of Philox block j / 4. Its key is
// (seed, slot, sequence, step), its counter the block's number in the message. The rank is in neither, so the payloads
// of all ranks hold the same elements and can be summed. A slice may start inside a block: its first block has the
// number first element / block. Strata differ by one element at most: all elements are drawn about equally often.
//   wire_bytes = sum over blocks of (fp16: 1) + kept(b) * (fp32: 4, bf16 and fp16: 2)
// Contractive in the mean over the draws: E |x - decoded|^2 = (1 - kept / b) |x|^2 for equal strata. `rounding`
// stochastic (fp32 only) multiplies each value by the size of its stratum: the decoded message is then unbiased and not
// contractive, and a value that overflows fp32 raises the non-finite flag.
#include <algorithm>
#include <cstring>
#include <vector>

#include "compression/codec_table.h"
#include "compression/codecs/sparse_select.h"
#include "engine/base/core/error.h"
#include "engine/base/core/philox.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

constexpr int64_t kTask = 1 << 15;  // elements that a thread takes together

// The key of one message. It has no rank in it: all ranks must draw the same elements.
PhiloxKey message_key(const Msg& msg) {
  const PhiloxBlock words =
      philox(seed_key(msg.seed), {static_cast<uint32_t>(msg.step), msg.slot, msg.sequence,
                                  static_cast<uint32_t>(RandomPurpose::kSampling) << 24 ^
                                      static_cast<uint32_t>(static_cast<uint64_t>(msg.step) >> 32)});
  return {words[0], words[1]};
}

// Calls drawn(j, index in the block, size of the stratum) for the strata of a block, in order.
template <typename Drawn>
void draw(PhiloxKey key, int64_t block, int64_t elements, int64_t kept, const Drawn& drawn) {
  PhiloxBlock words{};
  int64_t first = 0;
  for (int64_t j = 0; j < kept; ++j) {
    if (j % 4 == 0)
      words = philox(key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                           static_cast<uint32_t>(j / 4), static_cast<uint32_t>(RandomPurpose::kSampling)});
    const int64_t next = (j + 1) * elements / kept;
    const uint64_t size = static_cast<uint64_t>(next - first);
    drawn(j, first + static_cast<int64_t>((words[static_cast<size_t>(j % 4)] * size) >> 32), next - first);
    first = next;
  }
}

class RandomK final : public Codec {
 public:
  RandomK(double density, int64_t block, ValueFormat format, bool unbiased)
      : density_(density), block_(block), full_(kept_of(block, density)), format_(format), unbiased_(unbiased) {}
  std::string name() const override {
    return detail::join("random_k(density=", density_, ",block=", block_, ",format=", name_of(format_),
                        unbiased_ ? ",unbiased)" : ")");
  }
  Traits traits() const override {
    return {.unbiased = unbiased_, .contractive = !unbiased_, .selects = true, .linear = true, .granule = block_};
  }
  size_t wire_bytes(int64_t count, DType) const override {
    const auto bytes_of = [&](int64_t elements) {
      return elements == 0 ? 0 : value_header(format_) + kept(elements) * value_bytes(format_);
    };
    return static_cast<size_t>(count / block_ * bytes_of(block_) + bytes_of(count % block_));
  }
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState*) const override {
    const float* x = in.as<float>();
    const int64_t n = in.count(), blocks = (n + block_ - 1) / block_;
    const int64_t stride = static_cast<int64_t>(wire_bytes(block_, DType::f32));
    TW_CHECK(out.size() >= wire_bytes(n, DType::f32));
    const PhiloxKey key = message_key(msg);
    const int64_t task = std::max<int64_t>(1, kTask / block_);
    std::vector<uint32_t> max_keys(static_cast<size_t>((blocks + task - 1) / task));
    parallel_blocks(msg.threads, blocks, task, [&](int64_t first, int64_t last) {
      std::vector<float> values(static_cast<size_t>(full_));
      uint32_t max_key = 0;
      for (int64_t b = first; b < last; ++b) {
        const int64_t elements = std::min(block_, n - b * block_);
        const float* from = x + b * block_;
        max_key = std::max(max_key, sparse_table().max_key(from, elements));
        const int64_t count = kept(elements);
        draw(key, msg.first / block_ + b, elements, count, [&](int64_t j, int64_t index, int64_t stratum) {
          values[static_cast<size_t>(j)] = unbiased_ ? from[index] * static_cast<float>(stratum) : from[index];
        });
        const uint32_t of_values = sparse_table().max_key(values.data(), count);
        max_key = std::max(max_key, of_values);
        const int exponent = value_exponent(format_, of_values);
        std::byte* to = out.data() + b * stride;
        write_header(format_, exponent, to);
        write_values(format_, exponent, values.data(), count, to + value_header(format_));
      }
      max_keys[static_cast<size_t>(first / task)] = max_key;
    });
    uint32_t max_key = 0;
    for (uint32_t k : max_keys) max_key = std::max(max_key, k);
    return {wire_bytes(n, DType::f32), max_key >= kInfiniteKey};
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    float* y = out.as<float>();
    const int64_t n = out.count(), blocks = (n + block_ - 1) / block_;
    const int64_t stride = static_cast<int64_t>(wire_bytes(block_, DType::f32));
    check_payload(name(), in, wire_bytes(n, DType::f32), n);
    // Before anything is written, and outside of the threads: parallel bodies must not throw.
    for (int64_t b = 0; b < blocks && value_header(format_) > 0; ++b) read_header(format_, in.data() + b * stride);
    const PhiloxKey key = message_key(msg);
    parallel_blocks(msg.threads, blocks, std::max<int64_t>(1, kTask / block_), [&](int64_t first, int64_t last) {
      std::vector<float> values(static_cast<size_t>(full_));
      for (int64_t b = first; b < last; ++b) {
        const int64_t elements = std::min(block_, n - b * block_), count = kept(elements);
        const std::byte* from = in.data() + b * stride;
        float* to = y + b * block_;
        read_values(format_, read_header(format_, from), from + value_header(format_), count, values.data());
        if (!accumulate) std::memset(to, 0, static_cast<size_t>(elements) * sizeof(float));
        draw(key, msg.first / block_ + b, elements, count, [&](int64_t j, int64_t index, int64_t) {
          to[index] = accumulate ? to[index] + values[static_cast<size_t>(j)] : values[static_cast<size_t>(j)];
        });
      }
    });
  }

 private:
  int64_t kept(int64_t elements) const { return elements == block_ ? full_ : (full_ * elements + block_ - 1) / block_; }
  double density_;
  int64_t block_, full_;  // full_: elements kept of a whole block
  ValueFormat format_;
  bool unbiased_;
};

MadeCodec make_random_k(const CodecSpec& spec) {
  const bool unbiased = spec.text("rounding") == "stochastic";
  if (unbiased && value_format(spec) != ValueFormat::kFp32)
    throw_bad_config("random_k: rounding stochastic (unbiased) takes format fp32: rounded values have a bias");
  return {
      std::make_shared<RandomK>(spec.real("density"), block_of(spec, 4096, 16, 65536), value_format(spec), unbiased)};
}

}  // namespace

CodecRow random_k_row() {
  return {
      .name = "random_k",
      .parameters = {value_format_parameter(false), block_parameter("elements that a choice is made of, 0 for 4096"),
                     codec_parameter("nearest", {.name = "rounding",
                                                 .allowed = {"nearest", "stochastic"},
                                                 .doc = "stochastic scales what is kept so that the mean is right"}),
                     density_parameter()},
      .make = make_random_k,
      .selects = true};
}

}  // namespace thinwire
