// Codec entropy: lossless; the exponents of fp32 and bf16 (the upper halves of fp16) in a Huffman code, the rest as it
// is.
//
// Source: the observation that only exponents of a model's tensors are compressible (DietGPU, Facebook Research, 2021),
// here with canonical codes of at most 11 bits (D. Huffman, 1952) per frame of 32768 elements, in four interleaved
// streams and with several symbols per table look-up. A frame that would grow travels raw.
// Native: fp32, bf16 and fp16, decoded to the dtype encoded, or to fp32. Framed; at most
// n * size_of(dtype) + 8 * ceil(n / 32768) bytes. NaN payloads, infinities and -0 come back bit for bit, and NaN and
// infinity raise Encoded::non_finite.
#include <algorithm>
#include <cstring>

#include "compression/codec_table.h"
#include "compression/codecs/frame_chain.h"
#include "compression/codecs/huffman.h"
#include "compression/codecs/huffman_kernel.h"
#include "compression/tile_kernel.h"

namespace thinwire {
namespace {

constexpr int64_t kFrame = 32768;  // elements
constexpr size_t kHeader = 8;      // length (4), mode (1), dtype (1), first and last symbol (1 each)
constexpr size_t kStreams = 8;     // lengths of the four streams (2 each)
enum Mode : uint8_t { kRaw = 0, kCoded = 1, kConstant = 2 };

size_t rest_bytes(DType dtype, int64_t n) {
  return static_cast<size_t>(n) * (size_of(dtype) - 1);
}

struct Header {
  uint32_t length = 0;
  uint8_t mode = kRaw, kind = 0, first = 0, last = 0;
};
static_assert(sizeof(Header) == kHeader);

bool non_finite_symbol(DType dtype, size_t symbol) {
  return dtype == DType::f16 ? (symbol & 0x7c) == 0x7c : symbol == 0xff;
}

class Entropy final : public FrameChain {
 public:
  Entropy() : FrameChain(kFrame) {}
  std::string name() const override { return "entropy"; }

 private:
  size_t frame_bound(int64_t n, DType dtype) const override {
    return kHeader + static_cast<size_t>(n) * size_of(dtype);
  }
  size_t encode_frame(const std::byte* in, DType dtype, int64_t n, std::byte* out, bool& finite) const override;
  size_t frame_length(std::span<const std::byte> payload, int64_t, DType out) const override {
    Header header;
    if (payload.size() < kHeader) return 0;
    std::memcpy(&header, payload.data(), kHeader);
    if (header.mode > kConstant || header.length < kHeader) return 0;
    return decodes(header.kind, out) ? header.length : 0;
  }
  bool decode_frame(std::span<const std::byte> frame, View out, bool accumulate) const override;
};

size_t Entropy::encode_frame(const std::byte* in, DType dtype, int64_t n, std::byte* out, bool& finite) const {
  const EntropyKernels& kernels = TW_PICK_KERNELS(entropy_kernels);
  const HuffmanKernels& huffman = TW_PICK_KERNELS(huffman_kernels);
  uint8_t symbols[kFrame];
  uint32_t quarter[4][256];
  // The rest goes where it stands if there is just one symbol, and is moved otherwise.
  kernels.split(in, dtype, n, symbols, out + kHeader);
  huffman.count(symbols, n, quarter);
  const HuffmanPlan plan = plan_huffman(quarter);
  Header header;
  header.kind = static_cast<uint8_t>(index_of(dtype));
  header.first = plan.first, header.last = plan.last;
  for (size_t s = 0; s < 256; ++s) finite &= plan.counts[s] == 0 || !non_finite_symbol(dtype, s);
  const size_t rest = rest_bytes(dtype, n), raw = static_cast<size_t>(n) * size_of(dtype);
  const auto finish = [&](Mode mode, size_t length) {
    header.mode = mode;
    header.length = static_cast<uint32_t>(length);
    std::memcpy(out, &header, kHeader);
    return length;
  };
  if (plan.first == plan.last) return finish(kConstant, kHeader + rest);

  const size_t table = plan.table_bytes(), total = kHeader + kStreams + table + rest + plan.stream_bytes();
  if (total >= kHeader + raw) {
    std::memcpy(out + kHeader, in, raw);
    header.first = header.last = 0;
    return finish(kRaw, kHeader + raw);
  }
  std::byte* at = out + kHeader;
  std::memmove(at + kStreams + table, at, rest);
  for (int q = 0; q < 4; ++q, at += 2) {
    const uint16_t length = static_cast<uint16_t>(plan.bytes[q]);
    std::memcpy(at, &length, 2);
  }
  write_huffman_table(plan, at);
  at += table + rest;
  std::byte* streams[4];
  for (int q = 0; q < 4; at += plan.bytes[q++]) streams[q] = at;
  huffman.encode(symbols, n, huffman_codes(plan.lengths).data(), streams, plan.bytes);
  return finish(kCoded, total);
}

// Symbols of a frame, and where its other bits are; nullptr for a frame that no encoder writes.
const std::byte* decode_symbols(const HuffmanKernels& huffman, const Header& header, std::span<const std::byte> frame,
                                DType dtype, int64_t n, uint8_t* symbols) {
  const size_t rest = rest_bytes(dtype, n);
  const std::byte* at = frame.data() + kHeader;
  if (header.mode == kConstant) {
    std::memset(symbols, header.first, static_cast<size_t>(n));
    return frame.size() == kHeader + rest ? at : nullptr;
  }
  if (header.first > header.last) return nullptr;
  const size_t table = huffman_table_bytes(header.first, header.last);
  if (frame.size() < kHeader + kStreams + table + rest) return nullptr;
  size_t bytes[4], total = kHeader + kStreams + table + rest;
  for (int q = 0; q < 4; ++q, at += 2) {
    uint16_t length;
    std::memcpy(&length, at, 2);
    bytes[q] = length;
    total += length;
  }
  if (total != frame.size()) return nullptr;
  HuffmanLengths lengths;
  if (!read_huffman_table(at, header.first, header.last, lengths)) return nullptr;
  at += table;
  const std::byte* streams[4] = {at + rest, at + rest + bytes[0], at + rest + bytes[0] + bytes[1],
                                 at + rest + bytes[0] + bytes[1] + bytes[2]};
  return huffman.decode(streams, bytes, huffman_codes(lengths).data(), n, symbols) ? at : nullptr;
}

bool Entropy::decode_frame(std::span<const std::byte> frame, View out, bool accumulate) const {
  Header header;
  std::memcpy(&header, frame.data(), kHeader);
  const DType dtype = kElementTypes[header.kind];
  const int64_t n = out.count();
  const bool same = out.dtype == dtype && !accumulate;
  alignas(64) std::byte narrow[kFrame * sizeof(float)];  // as encoded, where that is not what is asked for
  std::byte* const values = same ? static_cast<std::byte*>(out.data) : narrow;
  if (header.mode == kRaw) {
    if (frame.size() != kHeader + static_cast<size_t>(n) * size_of(dtype)) return false;
    std::memcpy(values, frame.data() + kHeader, frame.size() - kHeader);
  } else {
    uint8_t symbols[kFrame];
    const std::byte* rest = decode_symbols(TW_PICK_KERNELS(huffman_kernels), header, frame, dtype, n, symbols);
    if (!rest) return false;
    TW_PICK_KERNELS(entropy_kernels).merge(symbols, rest, dtype, n, values);
  }
  const TileKernels& tile = TW_PICK_KERNELS(tile_kernels);
  if (!same) (accumulate ? tile.add_raw : tile.load)[header.kind](values, out.as<float>(), n);
  return true;
}

}  // namespace

CodecRow entropy_row() {
  return {.name = "entropy",
          .make = [](const CodecSpec&) -> MadeCodec { return {std::make_shared<Entropy>()}; },
          .lossless = true};
}

}  // namespace thinwire
