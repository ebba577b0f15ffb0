// Collectives over coded payloads: every contribution is coded once, sums are taken in fp32 in rank order.
//
//   reduce-scatter  each peer's slice is packed and sent to its owner, who absorbs the payloads in rank order; his own
//                   contribution needs no compression
//   all-gather      the owner packs once, and everybody - the owner too - absorbs the same bytes, so all replicas hold
//                   the same bits (law 4)
//   all-reduce      the two behind each other, with a second compression (and residual) for the sums
//   ring            partial sums are decoded, added to and coded again at every hop: as the MPI literature does it
//   two-level       inside each node first, then between nodes, each with its own compression; gathers pack once and
//                   forward the payload
// Slices are cut into chunks at multiples of the coder's granule (about tuning.chunk_bytes of input), and chunk k + 1
// is packed while chunk k is on the wire. A payload and its scales are one message; a framed payload is preceded by a
// message of 8 bytes with its length. A NaN or infinity raises stats.non_finite; a bad payload throws Error(kBadData)
// naming the peer (world rank), the site and the chunk.
//
// Slices may start anywhere: each is coded as a message of its own that begins at msg.first = bounds[p]. All-reduces
// cut at multiples of their coders' granules. Sums that are coded again are handed on in fp32, unless the coder is
// lossless: then in the view's dtype, and all bits are those of the plain algorithm.
// The hops of one operation pack disjoint elements of a rank's message, so hops with equal coders may share a state.
//
// The tasks take what collectives.h's take; `lane.tag` and `lane.tag + 1` are theirs (of a message between two:
// `lane.tag` alone). A CodedCall's and RoundCall's pointers outlive the operation. Work space comes from lane.pool():
// per peer three payloads of a chunk each way; in two levels also this rank's column of the message in fp32.
#pragma once

#include <cstdint>
#include <span>

#include "compression/coder.h"
#include "compression/device_coder.h"
#include "compression/device_rounds.h"
#include "compression/round_codec.h"
#include "parallel/collective/collectives.h"
#include "parallel/collective/tuning.h"

namespace thinwire {

// How one operation is coded. coder == nullptr: elements travel as they are (in the view's dtype).
struct CodedCall {
  const Coder* coder = nullptr;
  CompressionState* state = nullptr;  // of this slot; outlives the operation. nullptr where the coder has none
  // coded_send, with a state: several messages of the slot may be under way, and each packs behind the one before it,
  // whatever leaves first. Outlives the operation.
  SendQueue* packing = nullptr;
  Msg msg;  // first, rank and ranks are filled in per piece
  CompressionStats* stats = nullptr;
  const DeviceCoder* device = nullptr;  // the same point, where the lane is of a device; `state` is its own then
  DeviceTally* tally = nullptr;         // of a device, instead of stats
  WireCounters* counters = nullptr;     // logical_bytes are added here (wire bytes are counted where they are sent)
  Site site = Site::kControl;           // for messages about bad payloads
  ReduceKind kind = ReduceKind::kSum;   // without coder
  // Of a plain verb: partial sums may overwrite contributions, and pieces and windows are those of memory and wires,
  // with nobody who packs meanwhile.
  bool in_place = false;
};
inline CodedCall plain_call(ReduceKind kind = ReduceKind::kSum) {
  CodedCall call;
  call.kind = kind;
  call.in_place = true;
  return call;
}

// The payloads of one message, piece by piece, for whoever passes it on as it came.
struct Payloads {
  Payloads() = default;
  explicit Payloads(char* device) : memory(device) {}  // of a device, uncut
  // Room for `count` elements of `dtype`.
  Payloads(BlockPool& pool, const CommTuning& tuning, const Coder& coder, DType dtype, int64_t count);
  char* of(int64_t piece) const { return (memory != nullptr ? memory : bytes.data()) + piece * stride; }
  int64_t stride = 0;
  Scratch<char> bytes;
  Scratch<uint64_t> lengths;
  char* memory = nullptr;
};

// way: how the slices travel.
//   kDirect    to their owners, and from them
//   kRing      of sums: compression at every hop, slice r from rank r + 1 around to rank r; one residual (if any) per
//              hop's slice, in `call.state`. Without a coder partial sums are rounded to the wire's dtype at each hop
//   kTwoLevel  needs a two_level() grid (tuning.h): `call` inside a node, `between` between nodes. A plain scatter has
//              node sums in `whole`; else they have memory of their own, and are fp32 where they are coded
//
// whole: fp32, bf16 or fp16, unchanged afterwards except where `out` lies in it. out: fp32 or whole's dtype, this
// rank's range; accumulate adds.
Task coded_reduce_scatter(GroupLane lane, CodedCall call, View whole, Bounds bounds, View out, bool accumulate,
                          Algorithm way = Algorithm::kDirect, CodedCall between = {});
// mine: this rank's range, fp32 or any dtype; may lie in `whole`. whole: what everybody ends up with (value_difference:
// holds the reference before).
Task coded_all_gather(GroupLane lane, CodedCall call, View mine, View whole, Bounds bounds,
                      Algorithm way = Algorithm::kDirect);
// In place. scatter: compression of contributions; gather: of the sums.
Task coded_all_reduce(GroupLane lane, CodedCall scatter, CodedCall gather, View data,
                      Algorithm way = Algorithm::kDirect, CodedCall between = {});
Task coded_send(GroupLane lane, CodedCall call, View data, int peer);
Task coded_receive(GroupLane lane, CodedCall call, View data, int peer);
// A message that the members of another group hold in parts, as they sent it part by part: mine comes from `peer` of
// the lane's group, goes on to the members of `parts` as it came, and theirs come from them. What was coded is decoded
// by all of them and coded again by none. bounds: of the parts in `data`, in elements. messages: of call.msg's kind, by
// the member of `parts` whose part it is. What is passed on is counted by `parts`, whose lane gives it two tags.
Task coded_receive_parts(GroupLane lane, CodedCall call, GroupLane parts, View data, std::span<const int64_t> bounds,
                         std::span<const Msg> messages, int peer);
// Part r of `from` goes to rank r. With a state all ranks have the same from_bounds: it has a place for every element
// of `from`, and where a part starts there is what a receiver must know. What this rank keeps is copied.
Task coded_all_to_all(const GroupLane& lane, const CodedCall& call, View from, const Bounds& from_bounds, View to,
                      const Bounds& to_bounds);

// A message that goes from member to member. coded_pack: `data` is packed into `kept`, and becomes what others decode.
// coded_hop: `passed` (plain calls: `from`) goes to member `to_member`; what member `from_member` sends, packed by
// `packer`, lands in `to`, and its payloads in `kept`. With neither of the two it is a message of its own: `from` is
// packed here, and by `from_member` there.
Task coded_pack(GroupLane lane, CodedCall call, View data, Payloads* kept);
Task coded_hop(const GroupLane& lane, const CodedCall& call, View from, int to_member, View to, int from_member,
               int packer, const Payloads* passed = nullptr, Payloads* kept = nullptr);

// Codecs whose payloads add up. `residual` [whole.count()] fp32, or empty: added to the input, replaced by this rank's
// own error. data / whole: fp32. A rehearsal needs codec and msg.matrices alone, and of framed codecs counts the most
// that they may send.
struct RoundCall {
  const RoundCodec* codec = nullptr;
  CompressionState* state = nullptr;
  StateVector<float>* residual = nullptr;
  Msg msg;
  CompressionStats* stats = nullptr;
  WireCounters* counters = nullptr;
  Site site = Site::kControl;
  // Where the lane is of a device, instead of codec, residual and stats; `state` is its own then.
  const DeviceRounds* device = nullptr;
  DeviceCoderState* residual_on_device = nullptr;
  DeviceTally* tally = nullptr;
};
Task rounds_all_reduce(GroupLane lane, RoundCall call, View data);
Task rounds_reduce_scatter(GroupLane lane, RoundCall call, View whole, Bounds bounds, View out, bool accumulate);

}  // namespace thinwire
