// A point of the design as configured, {transform} x {codec} x {residual}, applied to pieces of a message.
//
// pack() adds the residual, transforms, encodes and keeps the new residual; absorb() decodes the payloads of several
// ranks in rank order in fp32, undoes the transform once behind the sum, and writes or adds. Both work tile by tile in
// cache where the codec has a granule. The bytes and the bits of the result do not depend on `threads` or on how a
// message is cut into pieces at multiples of granule(). A rule's checksum is the message's, coded or not: no coder
// knows of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "compression/codec.h"
#include "compression/rule.h"

namespace thinwire {

// What compression did, for metrics. rel_error^2 = error_square / signal_square; taken from every tile where a residual
// makes it free, else from one tile of about 4,096 elements in 64, chosen by place, slot and step: a small message has
// an error in some steps only (both squares are 0 in the others). Nothing is taken from tiles with NaN or infinity.
struct CompressionStats {
  int64_t encode_ns = 0, decode_ns = 0;
  double error_square = 0.0, signal_square = 0.0;
  double residual_square = 0.0;  // of residuals just written, without the loss scale
  int64_t non_finite = 0;        // pieces that held NaN or infinity: law 8's flag
  int64_t dense = 0;             // messages of a codec that selects, all of whose elements travelled
  void add(const CompressionStats& other);
};

// One rank's share of a sum: its payload, or - `raw` - its values as they are (the owner's own contribution to a
// reduce-scatter needs no compression). Both empty: nothing.
struct Share {
  std::span<const std::byte> payload;
  View raw;
  int rank = 0;  // in the group: Msg::rank of whoever packed it
};

class Coder {
 public:
  // Throws Error(kBadConfig) for combinations that make no sense (listed in coder.cpp and docs/codecs.md): hadamard
  // around a codec that is not linear, is lossless, selects or is coded whole; a residual around a codec that is
  // lossless or not contractive.
  // cut: pieces and slices begin at multiples of it as well as of the codec's own granule, so that coders that take
  // turns with the same states divide a message alike.
  Coder(std::shared_ptr<const Codec> codec, const CodecSpec& spec, const ResidualSpec& residual, int64_t cut = 1);

  std::string name() const;
  Traits traits() const;  // of the whole: granule counts the transform, stateful the residual
  int64_t granule() const { return traits().granule; }
  // Where a vector may be cut between ranks: multiples of this. Also of codecs that code a piece whole (granule 0).
  int64_t cut_unit() const;
  bool value_difference() const;
  size_t wire_bytes(int64_t count, DType dtype) const;
  size_t message_bytes(const Msg& msg, int64_t count, DType dtype) const;  // as Codec's
  // Whether a message of this size gets smaller than `count` elements of `dtype`. Framed codecs, whose lengths nobody
  // knows before packing: whether it has a kilobyte at least.
  bool shrinks(int64_t count, DType dtype) const;

  // State of one slot: residual of `count` elements (the whole message) and the codec's own. nullptr if there is none.
  std::unique_ptr<CompressionState> make_state(int64_t count, std::span<const MatrixShape> matrices) const;
  // Of what make_state() makes, for the memory plan.
  int64_t state_bytes(int64_t count, std::span<const MatrixShape> matrices) const;

  // in: [n] fp32, bf16 or fp16, elements [msg.first, msg.first + n) of the message. out: room for wire_bytes(n).
  // Returns the payload's length. Without msg.train residuals are neither added nor changed. reference: with
  // value_difference [n] in the replica's dtype (what receivers hold); else empty. own: empty, or [n] that becomes what
  // absorb() would make of the payload there, bit for bit; only where keeps_decoded() says so.
  size_t pack(const Msg& msg, View in, View reference, std::span<std::byte> out, CompressionState* state,
              CompressionStats& stats, View own = View()) const;
  // Packing gives the decoded numbers anyway, or nearly.
  bool keeps_decoded(const Msg& msg) const;
  // out [n] (fp32, bf16, fp16) = sum over shares in the order given; accumulate: out += it. With value_difference
  // there is one share, out holds the reference and the difference is added to it whatever `accumulate` says.
  // Without `accumulate` a raw share of the same type may be `out` itself.
  // Throws Error(kBadData) for a bad payload; the message names the sender's rank in the group.
  void absorb(const Msg& msg, std::span<const Share> shares, View out, bool accumulate, CompressionStats& stats) const;

 private:
  friend class DeviceCoder;
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

}  // namespace thinwire
