// Codec ecsq: entropy-coded scalar quantisation; integers on a uniform grid in a Huffman code, at a fixed rate.
//
// Where a fixed number of bits per element buys 2^bits levels, an entropy code buys as many levels as the numbers need
// and pays for the frequent ones with fewer bits: of normal numbers, 1.5 dB more at 3 bits than the best fixed levels
// (lloyd_max), 1.3 dB at 2; of peaked ones, more. The zero is a level. Sources: the rate of such codes is the entropy
// of the integers (Gish and Pierce, "Asymptotically efficient quantizing", 1968), a uniform grid is all but optimal.
//
// Frames of 32768 elements. A block's unit is its mean magnitude, in steps of 2^(1/8) as in lloyd_max; the grid's step,
// in units, is one of 2^(1 - notch / 16), the finest whose codes fit into the rate. So a payload's length does not
// depend on the values. The nearest grid point is taken: |x - decoded| <= |x| element by element, and the step is at
// most 1.7 units, so that something is left of every block: error feedback contracts. What is beyond 127 steps is cut.
// fp32 in and out, fixed size: rate + 8 / block bits an element and 16 bytes a frame. A frame that holds NaN, infinity
// or a magnitude beyond 2^126 raises Encoded::non_finite and decodes to NaN.
//
// Below 2 bits, where most integers are 0, no code of one integer comes near the entropy: two neighbours share a code,
// the zero takes 0.6 of a step either way, steps go up to 2.83 units, and a unit is so small that the block's largest
// element is never a 0 - without that, a block of equal magnitudes would never be sent, and no residual would end.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "compression/codecs/block_layout.h"
#include "compression/codecs/ecsq_kernel.h"
#include "compression/codecs/huffman.h"

namespace thinwire {
namespace {

constexpr int64_t kLargestBlock = 4096;
constexpr int kFirstNotch = -8, kFinest = 96;  // steps of 2.83 and 1/32 units
constexpr int64_t kFewest = 512;               // below, a frame's code would not earn its table
constexpr int kFew = 7;                        // integers of a pair are within so many of 0
constexpr uint8_t kPairBase = kEcsqZero - 8;

enum Mode : uint8_t { kFixed = 0, kHuffman = 1, kConstant = 2, kPaired = 3 };

// In front of a frame's units, codes and streams.
struct Header {
  uint8_t mode = kFixed;
  int8_t notch = 0;
  uint8_t first = 0, last = 0;  // symbols
  uint16_t stream[4] = {};      // bytes
  uint32_t reserved = 0;
};
static_assert(sizeof(Header) == 16);

// How integers are taken: from 2 bits on, and below.
struct Grid {
  int coarsest;  // notch
  float share;   // a unit is at most so much of its block's largest magnitude
  float less;    // the zero's part of a step beyond a half
  float reach;   // in steps; only the coarsest grid may leave a frame more
};
constexpr Grid kGrid = {4, 2.0f, 0.0f, 127.0f};  // no mean is twice the largest
constexpr Grid kGridOfPairs = {kFirstNotch, 1 / 1.8f, 0.1f, 4.0f * kFew};

// 2^(1 - notch / 16) by divisions, which are the same on every machine.
float step_of(int notch) {
  static const std::array<float, kFinest - kFirstNotch + 1> all = [] {
    std::array<float, kFinest - kFirstNotch + 1> s{};
    double finer = 2.0, coarser = 2.0;
    for (size_t i = -kFirstNotch; i < s.size(); ++i) s[i] = static_cast<float>(finer), finer /= 1.0442737824274138;
    for (size_t i = -kFirstNotch; i-- > 0;) coarser *= 1.0442737824274138, s[i] = static_cast<float>(coarser);
    return s;
  }();
  return all[static_cast<size_t>(notch - kFirstNotch)];
}

// Where a frame has fixed codes: the notch whose 2^bits - 1 levels (of one bit: signs) lose least of normal numbers.
int fixed_notch(int bits) {
  constexpr int kNotches[] = {16, 6, 21, 34, 47};
  return kNotches[bits - 1];
}

// Base-2 logarithm of v >= 1 to within 0.003. Arithmetic that is the same on every machine: it decides about bytes.
float log2_of(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  const float m = std::bit_cast<float>((bits & 0x7fffffu) | 0x3f800000u);
  return static_cast<float>(static_cast<int>(bits >> 23) - 127) + ((-0.33582878f * m + 2.0f) * m - 1.65871022f);
}

// How many bits an element's integer takes on a grid, from the magnitudes of a sample: the entropy, signs included, and
// what a Huffman code loses on it.
class RateModel {
 public:
  RateModel(const uint32_t* bins, int64_t seen, float less) : seen_(static_cast<float>(seen)), less_(less) {
    below_[0] = 0.0f;
    for (size_t i = 0; i < kEcsqBins; ++i) below_[i + 1] = below_[i] + static_cast<float>(bins[i]);
  }
  float bits(float step) const {
    float sum = 0.0f, under = count_below((0.5f + less_) * step);
    sum += cost(under) + (seen_ - under);
    for (float k = 1.5f + less_; under < seen_; k += 1.0f) {
      const float next = count_below(k * step);
      sum += cost(next - under);
      under = next;
    }
    return sum / seen_ + kLost;
  }
  // Whether pairs would cut more than one element of 256.
  bool cuts(float step) const { return seen_ - count_below((kFew + 0.5f + less_) * step) > seen_ / 256; }

 private:
  static constexpr float kLost = 0.04f;
  float cost(float count) const { return count < 1.0f ? 0.0f : count * log2_of(seen_ / count); }
  float count_below(float magnitude) const {
    const float at = magnitude * kEcsqPerUnit;
    if (at >= static_cast<float>(kEcsqBins)) return seen_;
    const auto bin = static_cast<size_t>(at);
    return below_[bin] + (at - static_cast<float>(bin)) * (below_[bin + 1] - below_[bin]);
  }
  float below_[kEcsqBins + 1];
  float seen_, less_;
};

class Ecsq final : public Codec {
 public:
  Ecsq(double rate, int64_t block)
      : rate_(rate),
        block_(block),
        bits_(static_cast<int>(rate)),
        in_pairs_(rate < 2.0),
        grid_(in_pairs_ ? kGridOfPairs : kGrid),
        name_("ecsq(rate=" + rate_text(rate) + ",block=" + std::to_string(block) + ")") {}
  std::string name() const override { return name_; }
  Traits traits() const override { return {.contractive = true, .linear = true, .granule = kEcsqFrame}; }
  size_t wire_bytes(int64_t count, DType) const override {
    return static_cast<size_t>(count / kEcsqFrame) * frame_bytes(kEcsqFrame) + frame_bytes(count % kEcsqFrame);
  }
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState* state) const override;
  Encoded round_trip(const Msg& msg, View in, std::span<std::byte> out, CompressionState* state,
                     View decoded) const override;
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override;

 private:
  size_t unit_bytes(int64_t n) const { return 2 + static_cast<size_t>((n + block_ - 1) / block_); }
  size_t code_bytes(int64_t n) const { return static_cast<size_t>(std::ceil(static_cast<double>(n) * rate_ / 8)); }
  size_t frame_bytes(int64_t n) const { return n == 0 ? 0 : sizeof(Header) + unit_bytes(n) + code_bytes(n); }

  Encoded encode_frames(const Msg& msg, View in, std::span<std::byte> out, float* decoded) const;
  bool encode_frame(const float* x, int64_t n, std::byte* out, float* decoded) const;
  bool encode_huffman(const uint8_t* symbols, int64_t n, bool few, size_t room, Header& header, std::byte* codes,
                      size_t& missing) const;
  bool encode_pairs(uint8_t* symbols, int64_t n, size_t room, Header& header, std::byte* codes, size_t& missing) const;
  bool decode_frame(const std::byte* in, int64_t n, float* out, bool accumulate) const;
  bool decode_huffman(const Header& header, const std::byte* codes, size_t room, int64_t n, uint8_t* symbols) const;

  double rate_;
  int64_t block_;
  int bits_;  // of fixed codes
  bool in_pairs_;
  Grid grid_;
  std::string name_;
};

void pack(const uint8_t* symbols, int64_t n, int bits, std::byte* out, size_t bytes) {
  std::memset(out, 0, bytes);
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t i = 0, at = 0; i < n; ++i, at += bits) {
    const uint32_t code = bits == 1 ? symbols[i] < kEcsqZero : (static_cast<uint32_t>(symbols[i]) - kEcsqZero) & mask;
    out[at / 8] |= static_cast<std::byte>(code << at % 8);
    if (at % 8 + bits > 8) out[at / 8 + 1] |= static_cast<std::byte>(code >> (8 - at % 8));
  }
}
void unpack(const std::byte* in, int64_t n, int bits, uint8_t* symbols) {
  const uint32_t half = 1u << (bits - 1);
  for (int64_t i = 0, at = 0; i < n; ++i, at += bits) {
    uint32_t code = static_cast<uint32_t>(in[at / 8]) >> at % 8;
    if (at % 8 + bits > 8) code |= static_cast<uint32_t>(in[at / 8 + 1]) << (8 - at % 8);
    code &= 2 * half - 1;
    symbols[i] = bits == 1 ? static_cast<uint8_t>(kEcsqZero + 1 - 2 * code)
                           : static_cast<uint8_t>(kEcsqZero + code - (code >= half ? 2 * half : 0));
  }
}

// Symbols of a frame, counted by quarters, and ready to be written: in pairs where all are within kFew of zero.
class SymbolStream {
 public:
  SymbolStream(const uint8_t* symbols, int64_t n, bool few) : symbols_(symbols), n_(n), in_pairs_(few && n % 8 == 0) {
    if (!in_pairs_) {
      kernels_.count(symbols, n, quarter);
      return;
    }
    uint32_t both[4][256];
    kernels_.pair(symbols, n, kPairBase, pairs_);
    kernels_.count(pairs_, n / 2, both);
    std::memset(quarter, 0, sizeof(quarter));
    for (int q = 0; q < 4; ++q)
      for (size_t p = 0; p < 256; ++p) {
        quarter[q][kPairBase + p % 16] += both[q][p];
        quarter[q][kPairBase + p / 16] += both[q][p];
      }
  }
  void write(const HuffmanLengths& lengths, std::byte* const* streams, const size_t* bytes) const {
    const std::array<uint32_t, 256> codes = huffman_codes(lengths);
    if (!in_pairs_) {
      kernels_.encode(symbols_, n_, codes.data(), streams, bytes);
      return;
    }
    std::array<uint32_t, 256> both;
    uint32_t longest = 0;
    for (size_t p = 0; p < 256; ++p) {
      const uint32_t first = codes[kPairBase + p % 16], second = codes[kPairBase + p / 16];
      const uint32_t length = (first >> 16) + (second >> 16);
      both[p] = (first & 0xffffu) | (second & 0xffffu) << (first >> 16) | length << 24;
      longest = std::max(longest, length);
    }
    kernels_.encode_pairs(pairs_, n_ / 2, both.data(), longest, streams, bytes);
  }

  uint32_t quarter[4][256];  // how often each quarter of the frame has each symbol

 private:
  const HuffmanKernels& kernels_ = TW_PICK_KERNELS(huffman_kernels);
  const uint8_t* symbols_;
  int64_t n_;
  bool in_pairs_;
  uint8_t pairs_[kEcsqFrame / 2];
};

// Codes for all symbols if they fit; else `missing` says by how many bytes they do not.
bool Ecsq::encode_huffman(const uint8_t* symbols, int64_t n, bool few, size_t room, Header& header, std::byte* codes,
                          size_t& missing) const {
  const SymbolStream stream(symbols, n, few);
  const HuffmanPlan plan = plan_huffman(stream.quarter);
  header.first = plan.first, header.last = plan.last;
  if (plan.first == plan.last) {
    header.mode = kConstant;
    std::memset(codes, 0, room);
    return true;
  }
  const size_t total = plan.table_bytes() + plan.stream_bytes();
  for (size_t q = 0; q < 4; ++q) header.stream[q] = static_cast<uint16_t>(plan.bytes[q]);
  if (total > room) {
    missing = total - room;
    return false;
  }
  header.mode = kHuffman;
  write_huffman_table(plan, codes);
  std::byte* streams[4];
  std::byte* at = codes + plan.table_bytes();
  for (size_t q = 0; q < 4; at += plan.bytes[q++]) streams[q] = at;
  stream.write(plan.lengths, streams, plan.bytes);
  std::memset(at, 0, room - total);
  return true;
}

// The same, of symbols within kFew of 0, two by two; there is room for seven zeros behind them.
bool Ecsq::encode_pairs(uint8_t* symbols, int64_t n, size_t room, Header& header, std::byte* codes,
                        size_t& missing) const {
  const int64_t padded = (n + 7) / 8 * 8;
  std::memset(symbols + n, kEcsqZero, static_cast<size_t>(padded - n));
  uint8_t pairs[kEcsqFrame / 2];
  TW_PICK_KERNELS(huffman_kernels).pair(symbols, padded, kPairBase, pairs);
  if (!encode_huffman(pairs, padded / 2, false, room, header, codes, missing)) return false;
  header.mode = kPaired;
  // One pair alone has no code; of one or two symbols, each a bit at most.
  return header.first != header.last || encode_huffman(symbols, n, true, room, header, codes, missing);
}

// Returns whether all elements were finite. decoded: nullptr, or [n], may be x.
bool Ecsq::encode_frame(const float* x, int64_t n, std::byte* out, float* decoded) const {
  const EcsqKernels& kernels = TW_PICK_KERNELS(ecsq_kernels);
  float inverses[kEcsqFrame / 64], reach = 0.0f;
  uint8_t symbols[kEcsqFrame];
  std::byte* const units = out + sizeof(Header);
  std::byte* const codes = units + unit_bytes(n);
  Header header;
  const auto finish = [&](bool finite) {
    std::memcpy(out, &header, sizeof(header));
    if (decoded && finite)
      kernels.restore(symbols, n, block_, reinterpret_cast<const uint8_t*>(units), step_of(header.notch), decoded,
                      false);
    return finite;
  };
  if (!kernels.units(x, n, block_, grid_.share, reinterpret_cast<uint8_t*>(units), inverses, &reach)) {
    header.mode = kConstant;
    header.first = header.last = kEcsqZero;
    std::memset(codes, 0, code_bytes(n));
    return finish(false);
  }
  uint32_t bins[kEcsqBins];
  int64_t seen = 0;
  // All of it where a quarter is nothing but zeros.
  for (int64_t stride = 4; n >= kFewest && seen == 0 && stride > 0; stride -= 3)
    seen = kernels.sample(x, n, block_, inverses, stride, bins);
  if (seen > 0) {
    // The finest grid that cuts nothing (of pairs, little) and, as the sample has it, fits: bits fall as steps grow.
    const RateModel model(bins, seen, grid_.less);
    const float budget = static_cast<float>(rate_);
    int low = grid_.coarsest, high = kFinest;
    while (high > low && (reach > grid_.reach * step_of(high) || (in_pairs_ && model.cuts(step_of(high))))) --high;
    while (low < high) {
      const int middle = low + (high - low + 1) / 2;
      if (model.bits(step_of(middle)) <= budget)
        low = middle;
      else
        high = middle - 1;
    }
    // The rest of the frame may differ from the sample: a sixteenth of a bit an element for each notch.
    for (int notch = low, tried = kFinest + 1; notch < tried;) {
      header.notch = static_cast<int8_t>(notch);
      const float step = step_of(notch);
      const bool paired = in_pairs_ && reach <= grid_.reach * step, few = reach < (kFew + 0.49f) * step;
      kernels.quantize(x, n, block_, inverses, 1.0f / step, grid_.less, paired ? kFew : 127.0f, symbols);
      size_t missing = 0;
      if (paired ? encode_pairs(symbols, n, code_bytes(n), header, codes, missing)
                 : encode_huffman(symbols, n, few, code_bytes(n), header, codes, missing))
        return finish(true);
      tried = notch;
      notch = std::max(grid_.coarsest, notch - std::max(1, static_cast<int>(missing * 128 / static_cast<size_t>(n))));
    }
  }
  header = Header();
  header.notch = static_cast<int8_t>(fixed_notch(bits_));
  if (bits_ == 1) {
    for (int64_t i = 0; i < n; ++i) symbols[i] = std::signbit(x[i]) ? kEcsqZero - 1 : kEcsqZero + 1;
  } else {
    const auto highest = static_cast<float>((1 << (bits_ - 1)) - 1);
    kernels.quantize(x, n, block_, inverses, 1.0f / step_of(header.notch), 0.0f, highest, symbols);
  }
  pack(symbols, n, bits_, codes, code_bytes(n));
  return finish(true);
}

Encoded Ecsq::encode_frames(const Msg& msg, View in, std::span<std::byte> out, float* decoded) const {
  const float* x = in.as<float>();
  const int64_t n = in.count();
  const size_t bytes = wire_bytes(n, DType::f32);
  TW_CHECK(out.size() >= bytes, name_, ": room for ", out.size(), " bytes, needs ", bytes);
  bool finite = true;
  parallel_blocks(msg.threads, n, kEcsqFrame, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i += kEcsqFrame) {
      std::byte* const to = out.data() + static_cast<size_t>(i / kEcsqFrame) * frame_bytes(kEcsqFrame);
      if (!encode_frame(x + i, std::min(kEcsqFrame, last - i), to, decoded ? decoded + i : nullptr))
        __atomic_store_n(&finite, false, __ATOMIC_RELAXED);  // read behind the loop's barrier
    }
  });
  return {bytes, !finite};
}

Encoded Ecsq::encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState*) const {
  return encode_frames(msg, in, out, nullptr);
}
Encoded Ecsq::round_trip(const Msg& msg, View in, std::span<std::byte> out, CompressionState*, View decoded) const {
  return encode_frames(msg, in, out, decoded.as<float>());
}

bool Ecsq::decode_huffman(const Header& header, const std::byte* codes, size_t room, int64_t n,
                          uint8_t* symbols) const {
  if (header.first > header.last) return false;
  const size_t table = huffman_table_bytes(header.first, header.last);
  size_t bytes[4], total = table;
  for (size_t q = 0; q < 4; ++q) total += bytes[q] = header.stream[q];
  HuffmanLengths lengths;
  if (total > room || !read_huffman_table(codes, header.first, header.last, lengths)) return false;
  const std::byte* streams[4];
  const std::byte* at = codes + table;
  for (int q = 0; q < 4; at += bytes[q++]) streams[q] = at;
  return TW_PICK_KERNELS(huffman_kernels).decode(streams, bytes, huffman_codes(lengths).data(), n, symbols);
}

// False for a frame that no encoder writes.
bool Ecsq::decode_frame(const std::byte* in, int64_t n, float* out, bool accumulate) const {
  uint8_t symbols[kEcsqFrame];
  Header header;
  std::memcpy(&header, in, sizeof(header));
  const std::byte* const units = in + sizeof(Header);
  const std::byte* const codes = units + unit_bytes(n);
  if (header.notch > kFinest || header.notch < std::min(0, grid_.coarsest)) return false;
  switch (header.mode) {
    case kConstant:
      std::memset(symbols, header.first, static_cast<size_t>(n));
      break;
    case kFixed:
      unpack(codes, n, bits_, symbols);
      break;
    case kHuffman:
      if (!decode_huffman(header, codes, code_bytes(n), n, symbols)) return false;
      break;
    case kPaired: {
      const int64_t padded = (n + 7) / 8 * 8;
      uint8_t pairs[kEcsqFrame / 2];
      if (!in_pairs_ || !decode_huffman(header, codes, code_bytes(n), padded / 2, pairs)) return false;
      TW_PICK_KERNELS(huffman_kernels).unpair(pairs, padded, kPairBase, symbols);
      break;
    }
    default:
      return false;
  }
  return TW_PICK_KERNELS(ecsq_kernels)
      .restore(symbols, n, block_, reinterpret_cast<const uint8_t*>(units), step_of(header.notch), out, accumulate);
}

void Ecsq::decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const {
  float* y = out.as<float>();
  const int64_t n = out.count();
  check_payload(name_, in, wire_bytes(n, DType::f32), n);
  int64_t bad = -1;
  parallel_blocks(msg.threads, n, kEcsqFrame, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i += kEcsqFrame) {
      const std::byte* const from = in.data() + static_cast<size_t>(i / kEcsqFrame) * frame_bytes(kEcsqFrame);
      if (!decode_frame(from, std::min(kEcsqFrame, last - i), y + i, accumulate))
        __atomic_store_n(&bad, i / kEcsqFrame, __ATOMIC_RELAXED);
    }
  });
  if (bad >= 0)
    throw_bad_data(name_ + ": frame " + std::to_string(bad) +
                   " is one that no encoder writes; the payload was damaged or written by another codec");
}

// lloyd_max takes the place of a `light` one, and has 4 bits at most.
bool light_fits(const CodecSpec& spec) {
  return !spec.flag("light") || spec.real("rate") <= 4.0;
}

MadeCodec make_ecsq(const CodecSpec& spec) {
  const double rate = spec.real("rate");
  if (!light_fits(spec))
    throw_bad_config(
        "codec ecsq: light is lloyd_max of the next whole number of bits, which has at most 4, and rate is " +
        rate_text(rate) + "; say a rate of 4 at most, or light false");
  return {std::make_shared<Ecsq>(rate, block_of(spec, 64, 64, kLargestBlock, 64))};
}

CodecSpec cheaper(const CodecSpec& spec) {
  if (!spec.flag("light")) return spec;
  // Two bits have no zero: every element would jitter, and weights that did cost 1 % of the loss.
  const auto bits = std::max<int64_t>(3, static_cast<int64_t>(std::ceil(spec.real("rate"))));
  CodecSpec light = codec_spec("lloyd_max", {{"bits", bits}, {"block", spec.integer("block")}});
  light.hadamard = spec.hadamard, light.checksum = spec.checksum;
  return light;
}

}  // namespace

CodecRow ecsq_row() {
  CodecParameter light = codec_parameter(
      false, {.name = "light",
              .doc = "where compression.adapt measures that time of the core costs more than bytes, lloyd_max of the "
                     "next whole number of bits (3 or 4; rates up to 4) takes its place, but for the units that a "
                     "rank's forward pass begins with"});
  light.goes_with = light_fits;
  return {.name = "ecsq",
          .parameters = {codec_parameter(8.0, {.name = "rate",
                                               .bounds = {1, 5},
                                               .unit = "bits",
                                               .doc = "bits per value, 1 to 5, blocks' scales not counted",
                                               .ramp = true}),
                         block_parameter("elements that share a scale, 0 for 64"), light},
          .make = make_ecsq,
          .cases = {{{"rate", 2.0}}, {{"rate", 2.5}}, {{"rate", 3.0}}, {{"rate", 1.25}}},
          .crosses_tensors = [](const CodecSpec&) { return true; },  // by its frames
          .cheaper = cheaper};
}

}  // namespace thinwire
