// Codec top_k: the largest share `density` of a message, indices and values; the rest is left to the residual.
//
// Payload of n elements, k = max(1, round(density n)): the indices (sparse_select.h: a bitmap or Elias-Fano, whichever
// is shorter for this n and k; from density 0.2 on the bitmap), the byte of the exponent if format is fp16, then k
// values in ascending order of index.
//   wire_bytes = index_code(n, k, density >= 0.2).bytes + (fp16: 1) + k * (fp32: 4, bf16 and fp16: 2)
// A message is encoded whole: the threshold is the message's.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "compression/codec_table.h"
#include "compression/codecs/sparse_select.h"
#include "engine/base/core/error.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

struct Layout {
  int64_t n, kept;
  IndexCode index;
  int64_t header;  // offset of the fp16 exponent
  int64_t values;  // offset of the values
  int64_t bytes;
};

Layout layout_of(int64_t n, double density, ValueFormat format) {
  Layout l{n, kept_of(n, density), {}, 0, 0, 0};
  if (n == 0) return l;
  l.index = index_code(n, l.kept, density >= kDenseDensity);
  l.header = l.index.bytes;
  l.values = l.header + value_header(format);
  l.bytes = l.values + l.kept * value_bytes(format);
  return l;
}

[[noreturn]] void corrupt(const std::string& name, const char* what) {
  throw_bad_data(name + ": " + what + ": the payload is corrupt or was made by another configuration");
}

// What each block of kSparseBlock elements holds: where its values start, and its share of the ties.
struct BlockShare {
  int64_t first = 0, ties = 0;
};

std::vector<BlockShare> shares_of(const float* x, int64_t n, const Threshold& t, int threads) {
  const int64_t blocks = (n + kSparseBlock - 1) / kSparseBlock;
  std::vector<Bracket> counts(static_cast<size_t>(blocks));
  parallel_blocks(threads, n, kSparseBlock, [&](int64_t first, int64_t last) {
    sparse_table().bracket(x + first, last - first, t.key, t.key, &counts[static_cast<size_t>(first / kSparseBlock)]);
  });
  std::vector<BlockShare> shares(static_cast<size_t>(blocks));
  int64_t first = 0, left = t.ties;
  for (size_t b = 0; b < shares.size(); ++b) {
    shares[b] = {first, std::min(left, counts[b].at_high)};
    first += counts[b].above + shares[b].ties;
    left -= shares[b].ties;
  }
  return shares;
}

// Appends ascending indices to a cleared Elias-Fano section.
class IndexWriter {
 public:
  IndexWriter(const IndexCode& code, std::byte* out) : code_(code), low_(out), high_(out + code.low_bytes) {
    std::memset(high_, 0, static_cast<size_t>(code.high_bytes));
  }
  void put(int64_t index) {
    if (code_.low_bits <= 32) {
      low_.put(static_cast<uint32_t>(index & ((int64_t{1} << code_.low_bits) - 1)), code_.low_bits);
    } else {
      low_.put(static_cast<uint32_t>(index), 32);
      low_.put(static_cast<uint32_t>((index >> 32) & ((int64_t{1} << (code_.low_bits - 32)) - 1)), code_.low_bits - 32);
    }
    const int64_t bit = (index >> code_.low_bits) + count_++;
    high_[bit / 8] |= static_cast<std::byte>(1u << (bit % 8));
  }
  void finish() { low_.finish(); }

 private:
  IndexCode code_;
  BitWriter low_;
  std::byte* high_;
  int64_t count_ = 0;
};

// Calls found(i, index) for the k indices of an Elias-Fano section; throws where they are not k ascending ones below n.
template <typename Found>
void read_indices(const Layout& l, const std::byte* in, const std::string& name, const Found& found) {
  const std::byte* high = in + l.index.low_bytes;
  if (count_bits(reinterpret_cast<const uint8_t*>(high), l.index.high_bytes) != l.kept)
    corrupt(name, "it does not hold as many indices as it must");
  BitReader low(in);
  int64_t i = 0, last = -1;
  for (int64_t b = 0; b < l.index.high_bytes; b += 8) {
    uint64_t word = 0;
    std::memcpy(&word, high + b, static_cast<size_t>(std::min<int64_t>(8, l.index.high_bytes - b)));
    for (; word != 0; word &= word - 1, ++i) {
      const int64_t upper = b * 8 + std::countr_zero(word) - i;
      int64_t index = upper << l.index.low_bits;
      if (l.index.low_bits <= 32) {
        index |= low.get(l.index.low_bits);
      } else {
        index |= low.get(32);
        index |= static_cast<int64_t>(low.get(l.index.low_bits - 32)) << 32;
      }
      if (index <= last || index >= l.n) corrupt(name, "its indices do not ascend within the message");
      last = index;
      found(i, index);
    }
  }
  if (!low.padding_is_zero()) corrupt(name, "its padding is not zero");
}

class TopK final : public Codec {
 public:
  TopK(double density, ValueFormat format) : density_(density), format_(format) {}
  std::string name() const override {
    return detail::join("top_k(density=", density_, ",format=", name_of(format_), ")");
  }
  Traits traits() const override { return {.contractive = true, .selects = true, .linear = true, .granule = 0}; }
  size_t wire_bytes(int64_t count, DType) const override {
    return static_cast<size_t>(layout_of(count, density_, format_).bytes);
  }
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState*) const override {
    const float* x = in.as<float>();
    const Layout l = layout_of(in.count(), density_, format_);
    if (l.n == 0) return {};
    TW_CHECK(static_cast<int64_t>(out.size()) >= l.bytes);
    const SparseKernels& kernels = sparse_table();
    const Threshold t = find_threshold(x, l.n, l.kept, msg.threads);
    const int exponent = value_exponent(format_, t.max_key);
    write_header(format_, exponent, out.data() + l.header);
    std::byte* values = out.data() + l.values;
    const int64_t width = value_bytes(format_);
    const bool shared = msg.threads > 1 && l.n > kSparseBlock;
    const std::vector<BlockShare> shares = shared ? shares_of(x, l.n, t, msg.threads) : std::vector<BlockShare>();
    const size_t room = static_cast<size_t>(std::min(l.n, kSparseBlock) + kSparseSlack);
    const int64_t blocks = (l.n + kSparseBlock - 1) / kSparseBlock;
    // Indices of different blocks share bytes: they are written by one thread behind the parallel part.
    const auto kept = std::make_unique_for_overwrite<uint32_t[]>(static_cast<size_t>(l.index.bitmap ? 0 : l.kept));
    std::vector<int64_t> counts(static_cast<size_t>(blocks));
    int64_t running = 0, ties = t.ties;  // of one thread's walk; with more, each block knows its own
    parallel_blocks(shared ? msg.threads : 1, l.n, kSparseBlock, [&](int64_t first, int64_t last) {
      const auto v = std::make_unique_for_overwrite<float[]>(room);
      const auto index = std::make_unique_for_overwrite<uint32_t[]>(l.index.bitmap ? 0 : room);
      const size_t b = static_cast<size_t>(first / kSparseBlock);
      int64_t own = shared ? shares[b].ties : ties, n = 0;
      const int64_t at = shared ? shares[b].first : running;
      if (l.index.bitmap) {
        uint8_t* bits = reinterpret_cast<uint8_t*>(out.data()) + first / 8;
        n = kernels.take_bits(x + first, last - first, t.key, &own, bits, v.get());
      } else {
        n = kernels.take(x + first, last - first, t.key, &own, index.get(), v.get());
        std::memcpy(kept.get() + at, index.get(), static_cast<size_t>(n) * 4);
      }
      write_values(format_, exponent, v.get(), n, values + at * width);
      counts[b] = n;
      if (shared) return;
      ties = own;
      running += n;
    });
    if (!l.index.bitmap) {
      IndexWriter writer(l.index, out.data());
      int64_t i = 0;
      for (int64_t b = 0; b < blocks; ++b)
        for (const int64_t end = i + counts[static_cast<size_t>(b)]; i < end; ++i)
          writer.put(b * kSparseBlock + kept[i]);
      TW_CHECK(i == l.kept);
      writer.finish();
    }
    return {static_cast<size_t>(l.bytes), t.max_key >= kInfiniteKey};
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    float* y = out.as<float>();
    const Layout l = layout_of(out.count(), density_, format_);
    check_payload(name(), in, static_cast<size_t>(l.bytes), l.n);
    if (l.n == 0) return;
    const int exponent = read_header(format_, in.data() + l.header);
    const std::byte* values = in.data() + l.values;
    const int64_t width = value_bytes(format_);
    if (!l.index.bitmap) {
      if (!accumulate)
        parallel_blocks(msg.threads, l.n, kSparseBlock, [&](int64_t first, int64_t last) {
          std::memset(y + first, 0, static_cast<size_t>(last - first) * sizeof(float));
        });
      constexpr int64_t kRun = 256;
      float run[kRun];
      read_indices(l, in.data(), name(), [&](int64_t i, int64_t index) {
        if (i % kRun == 0) read_values(format_, exponent, values + i * width, std::min(kRun, l.kept - i), run);
        y[index] = accumulate ? y[index] + run[i % kRun] : run[i % kRun];
      });
      return;
    }
    const uint8_t* bits = reinterpret_cast<const uint8_t*>(in.data());
    const int64_t blocks = (l.n + kSparseBlock - 1) / kSparseBlock;
    std::vector<int64_t> start(static_cast<size_t>(blocks) + 1);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t at = b * kSparseBlock / 8, left = l.index.bytes - at;
      start[static_cast<size_t>(b) + 1] =
          start[static_cast<size_t>(b)] + count_bits(bits + at, std::min(left, kSparseBlock / 8));
    }
    const bool padded = l.n % 8 != 0 && (bits[l.index.bytes - 1] >> (l.n % 8)) != 0;
    if (start.back() != l.kept || padded) corrupt(name(), "its bitmap does not hold as many elements as it must");
    parallel_blocks(msg.threads, l.n, kSparseBlock, [&](int64_t first, int64_t last) {
      const size_t b = static_cast<size_t>(first / kSparseBlock);
      const int64_t count = start[b + 1] - start[b];
      const auto v = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(count + kSparseSlack));
      read_values(format_, exponent, values + start[b] * width, count, v.get());
      sparse_table().unpack(bits + first / 8, last - first, v.get(), y + first, accumulate);
    });
  }

 private:
  double density_;
  ValueFormat format_;
};

}  // namespace

CodecRow top_k_row() {
  return {.name = "top_k",
          .parameters = {value_format_parameter(false), density_parameter()},
          .make = [](const CodecSpec& spec) -> MadeCodec {
            return {std::make_shared<TopK>(spec.real("density"), value_format(spec))};
          },
          .cases = {{{"density", 0.01}}, {{"density", 0.2}}},
          .selects = true,
          .crosses_tensors = [](const CodecSpec&) { return true; }};
}

}  // namespace thinwire
