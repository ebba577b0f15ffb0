// Codec low_rank (PowerSGD, Vogels et al. 2019): matrices travel as products of two thin factors, the rest as it is.
//
// A matrix x [rows, cols] of a message gets r = min(rows, cols, rank). One step of power iteration from the factor q
// that the message before left (warm start; the first one from Philox numbers that all ranks share):
//   q = orthonormal(q);  p = orthonormal(sum over ranks of x q);  q = sum over ranks of x^T p;  decoded sum = p q^T
// with `sides` 2. With `sides` 1 only one factor travels per message: even ones p = sum x orthonormal(q), odd ones
// q = sum x^T orthonormal(p), where the factor that does not travel is the one that the message before left on all
// ranks. Raw travel elements outside of any matrix, and matrices for which
//   rate * r * (sides 2: rows + cols, sides 1: max(rows, cols)) < rows * cols      with rate = min_compression_rate >=
//   1
// does not hold (so that rank >= min(rows, cols) is raw, and exact). Everything on the wire is fp32, whatever the dtype
// of the message (defect: released code disagreed with itself about the dtype of p and q).
//
// Payload, little-endian fp32, tightly packed:
//   round 0: p of every low-rank matrix, r vectors of `rows` elements each; then the raw elements in order
//   round 1: q of every low-rank matrix, r vectors of `cols` elements each
// sides 1: one round, the factor that travels and then the raw elements. Bytes = 4 (sum r (rows + cols) + raw).
//
// The state is the warm factor and the number of messages so far; both change with Msg::train only, provisionally, and
// not by a message that came out non-finite. They do not depend on the loss scale: multiplying x by a power of two
// multiplies the decoded message by it, bit for bit. Non-finite input, and input whose products overflow, raise the
// flag and decode to NaN. Bits depend neither on threads nor on the instruction set.
//
// Msg::matrices lists the matrices in ascending order without overlap, the same ones at every message of a state; a
// message of count > 0 without any is our fault (TW_CHECK: give it one matrix [1, count], or no codec).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "compression/codec_table.h"

namespace thinwire {

// Both throw Error(kBadConfig) for rank < 1, sides other than 1 and 2, and min_compression_rate below 1 or not finite.

// Point to point: both rounds' payloads one after the other, the sender alone in the sums. Framed, because the length
// depends on Msg::matrices, which wire_bytes() does not see: it gives the bound 4 count. nullptr for sides 1: what
// decodes here keeps no state, so both factors would have to travel.
std::shared_ptr<const Codec> make_low_rank(const CodecSpec& spec);

// Sums over ranks; 2 rounds, or 1 with sides 1. What a rank contributed is p q_w^T with its own q_w = x_w^T p (sides 1,
// even: p_w q^T), so that the errors of all ranks add up to sum(x) - result.
std::shared_ptr<const RoundCodec> make_low_rank_rounds(const CodecSpec& spec);

// The length of a payload, exactly; for sides 1 of its longer kind.
size_t low_rank_wire_bytes(const CodecSpec& spec, int64_t count, std::span<const MatrixShape> matrices);

CodecRow low_rank_row();

}  // namespace thinwire
