// The narrow door between compression and communication: what a codec turns numbers into, and what it promises.
//
// A codec sees one contiguous piece of a message, never a communicator. Two families: a Codec's payloads are exchanged
// as they are and decoded by whoever receives them (quantisers, selectors, lossless codes); a RoundCodec's payloads are
// themselves numbers that add up over ranks (low rank, sketches), in rounds (round_codec.h). A Coder (coder.h) makes a
// whole point of the design out of a Codec: {transform} x {selector and quantiser} x {residual}.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "compression/compression_state.h"
#include "engine/base/core/check.h"
#include "engine/base/core/dtype.h"
#include "engine/base/core/view.h"

namespace thinwire {

// What messages consist of, in the order of kernel tables and of payload headers.
inline constexpr DType kElementTypes[] = {DType::f32, DType::bf16, DType::f16};
inline size_t index_of(DType dtype) {
  TW_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, "coding of ", name_of(dtype));
  return dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1 : 2;
}

// A matrix inside of a message: elements [first, first + rows * cols), row by row.
struct MatrixShape {
  int64_t first = 0, rows = 0, cols = 0;
};

// Elements [first, first + count) of a message.
struct ElementRange {
  int64_t first = 0, count = 0;
};

// What a codec knows of the message that a piece belongs to. Sender and receivers hold the same values, but `threads`.
struct Msg {
  uint64_t seed = 0;        // of this site and group: keys random numbers
  uint32_t slot = 0;        // which of the channel's messages: unit, pipeline chunk, place in a layer
  uint32_t sequence = 0;    // how many of this slot came before in this step
  int64_t step = 0;         // update that the message belongs to
  int64_t first = 0;        // index of the piece's first element within the message
  float loss_scale = 1.0f;  // the elements are multiplied by this; residuals are kept without it
  int rank = 0, ranks = 1;  // in the group: whose piece this is
  int threads = 1;
  bool train = true;                      // false (evaluation): states do not change
  std::span<const MatrixShape> matrices;  // of the message, for matrix codecs; else empty
  // Elements of no tensor, ascending: they are zero in every message and sum, and no residual is kept for them.
  std::span<const ElementRange> padding = {};
};

// body(a, b) for each part [a, b) of n elements that is padding; the first of them has index `first` in the message.
template <typename Body>
void for_padding(const Msg& msg, int64_t first, int64_t n, const Body& body) {
  for (const ElementRange& range : msg.padding) {
    const int64_t from = std::max(range.first - first, int64_t{0}), to = std::min(range.first + range.count - first, n);
    if (from < to) body(from, to);
  }
}
// The same for each part between.
template <typename Body>
void for_data(const Msg& msg, int64_t first, int64_t n, const Body& body) {
  int64_t at = 0;
  for_padding(msg, first, n, [&](int64_t from, int64_t to) {
    if (at < from) body(at, from);
    at = to;
  });
  if (at < n) body(at, n);
}

struct Traits {
  bool alias = false;        // identity: the wire bytes are the input's memory, nothing is packed
  bool lossless = false;     // decode(encode(x)) == x, bit for bit (NaN payloads included)
  bool unbiased = false;     // the mean of decode(encode(x)) over random numbers is x
  bool stateful = false;     // keeps something between messages (warm starts); make_state() gives it
  bool framed = false;       // the payload's length depends on the values: wire_bytes() is its bound
  bool native = false;       // takes bf16 and fp16 as they are; others are handed fp32
  bool contractive = false;  // |x - decode(encode(x))| <= q |x| with q < 1: error feedback converges
  // Not contractive for all inputs, and published with error feedback around it all the same.
  bool published_with_residual = false;
  bool selects = false;   // sends some of the elements: the others decode to zero
  bool matrices = false;  // codes the matrices of a message; what lies in none travels as it is
  bool linear = false;    // decode is linear in the payload's values: a linear transform of the input may be undone
                          // once, behind the sum over ranks
  // A message may be cut at multiples of this many elements, and its payload is the concatenation of the payloads of
  // its pieces (each then encoded with its own Msg::first). 0: it must be encoded whole.
  int64_t granule = 0;
};

struct Encoded {
  size_t bytes = 0;         // == wire_bytes() unless framed
  bool non_finite = false;  // some input was NaN or infinite (law 8). Decoding such a piece may give anything
};

// Stateless apart from what make_state() returns; one object serves all threads and messages. Payload bytes are little
// endian, defined in docs/wire_formats.md, and do not depend on threads, alignment or instruction set.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual std::string name() const = 0;  // with its parameters, as in "block_int(bits=4,block=128,scale=fp16)"
  virtual Traits traits() const = 0;
  // Bytes of the payload of a piece of `count` elements of `dtype`, exactly; a bound where traits().framed. 0 for 0.
  virtual size_t wire_bytes(int64_t count, DType dtype) const = 0;
  // traits().matrices: bytes of the payload of a whole message, which msg.matrices says exactly; else as above.
  virtual size_t message_bytes(const Msg& /*msg*/, int64_t count, DType dtype) const {
    return wire_bytes(count, dtype);
  }
  // nullptr unless traits().stateful. `count`: elements of the whole message.
  virtual std::unique_ptr<CompressionState> make_state(int64_t count, std::span<const MatrixShape> matrices) const;

  // in: [n] fp32 (native: fp32, bf16 or fp16). out: room for wire_bytes(). `in` and `out` do not overlap.
  virtual Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState* state) const = 0;
  // encode() of fp32, and into decoded [n] (fp32, may be in's memory) what decode() makes of the payload, unless
  // something is not finite. Cheaper than one after the other where a codec knows its decoded numbers while it packs.
  virtual Encoded round_trip(const Msg& msg, View in, std::span<std::byte> out, CompressionState* state,
                             View decoded) const;
  // out [n] (dtype as encoded, or fp32) = decoded, or += decoded (fp32 only). `in` is exactly one payload of n
  // elements. Throws Error(kBadData) for bytes that no encoder writes where it can tell; never touches memory outside.
  virtual void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const = 0;
};

// A payload must be exactly as long as its codec says. Throws Error(kBadData).
void check_payload(const std::string& codec, std::span<const std::byte> in, size_t expected, int64_t elements);

}  // namespace thinwire
