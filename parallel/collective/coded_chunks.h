// Pieces of coded messages: how slices are cut, packed, sent, received and absorbed. Inside of coded.*.
//
// A slice (what one rank packs for one other) is cut at multiples of the granule from its own start, so that all ranks
// know every piece and, unless the codec is framed, its bytes from the bounds alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "parallel/collective/coded.h"
#include "parallel/collective/route.h"

namespace thinwire {

inline constexpr int kInFlight = 3;        // pieces under way per peer: one travels, one is packed, one is absorbed
inline constexpr int kMostAhead = 4;       // receives posted ahead: what comes before is copied once more
inline constexpr size_t kLengthBytes = 8;  // in front of a framed payload, little endian
inline constexpr const char* kBadLength = "its length is beyond what the codec can write, or 0";

inline Slice slice_of(const Bounds& bounds, int member) {
  return {bounds[member], bounds[member + 1] - bounds[member]};
}
inline View part_of(View whole, const Slice& slice) {
  return whole.element_range(slice.first, slice.count);
}

// Elements that slices and pieces are multiples of: every coder's granule (0: cut anywhere) and whole vectors.
int64_t common_unit(const Coder* a, const Coder* b = nullptr, const Coder* c = nullptr);
// Equal slices of `count` elements, cut at multiples of `unit`.
inline int64_t part_bound(int64_t count, int parts, int r, int64_t unit) {
  return std::min(count, (count * r / parts + unit - 1) / unit * unit);
}
Bounds part_bounds(BlockPool& pool, int64_t count, int parts, int64_t unit);

// How slices are cut: at multiples of every coder's granule, about tuning.chunk_bytes of `dtype` each.
class Cut {
 public:
  Cut(const CommTuning& tuning, DType dtype, const Coder* first, const Coder* second = nullptr);
  int64_t pieces(int64_t count) const { return count == 0 ? 0 : (count - 1) / chunk_ + 1; }
  int64_t longest(int64_t count) const { return count < chunk_ ? count : chunk_; }
  Slice piece(const Slice& slice, int64_t k) const;  // count 0 where there is no such piece
  int64_t most_pieces(const Bounds& bounds, int members) const;
  int64_t chunk() const { return chunk_; }  // a very large number where slices stay whole

 private:
  int64_t chunk_;
};

// Where the members and elements of a part of a group lie in the whole group and message.
struct Seat {
  int64_t first = 0;
  int rank = 0, step = 1;  // member m is rank `rank + m * step`
  int ranks = 1;
  int rank_of(int member) const { return rank + member * step; }
};

// Sums that are coded again stay fp32, unless the coder keeps every bit: then they are rounded as they would travel.
DType sum_dtype(const Coder* coder, DType dtype);

// Bytes of one payload, exactly (framed: at most, without the length); coder == nullptr: the elements.
size_t payload_bytes(const Coder* coder, int64_t count, DType dtype);
// Bytes on the wire of a slice, length messages included.
int64_t slice_bytes(const Coder* coder, const Cut& cut, int64_t count, DType dtype);
bool is_framed(const Coder* coder);

// A CodedCall on the members of a lane.
class PieceCoder {
 public:
  // kind: of plain sums.
  PieceCoder(const GroupLane& lane, const CodedCall& call, const Seat& seat, ReduceKind kind = ReduceKind::kSum);
  bool plain() const { return call_.coder == nullptr; }
  bool framed() const { return is_framed(call_.coder); }
  int rank_of(int member) const { return seat_.rank_of(member); }
  size_t bytes(int64_t count, DType dtype) const { return payload_bytes(call_.coder, count, dtype); }

  // in: elements from `first` on of the lane's message. Not for plain calls. Returns the payload's length. own: where
  // the packer, too, gets what the others decode; complete once absorb_own() was called.
  size_t pack(View in, View reference, int64_t first, char* out, View own = View());
  void absorb_own(const char* payload, size_t bytes, DType dtype, View own, int64_t first, int64_t k);
  // out = or += the sum of the shares, in their order; k: number of the piece, for messages. dtype: of what was packed,
  // and of raw shares, which are all that plain calls have. `out` is not one of the raw shares.
  void absorb(std::span<const Share> shares, DType dtype, View out, bool accumulate, int64_t first, int64_t k);
  // One payload as it came.
  void absorb_one(const char* payload, size_t bytes, int member, DType dtype, View out, int64_t first, int64_t k);
  Share share(const char* payload, size_t bytes, int member, DType dtype, int64_t count) const;
  [[noreturn]] void bad_payload(int member, int64_t k, const char* what) const;

 private:
  void decode_sum(const Msg& msg, std::span<const Share> shares, View out, bool accumulate, int64_t k);
  int culprit(const Msg& msg, std::span<const Share> shares, int64_t count) const;
  GroupLane lane_;
  CodedCall call_;
  Seat seat_;
  ReduceKind kind_;
  bool exact_;  // lossless: payloads become elements again, which are summed as plain ones are
  CodingStats unread_;
  Scratch<const void*> sources_;
};

// Payloads on their way out: `exchanges` (at most kInFlight) groups of `group` slots of `places` buffers. Before the
// first of a group is used again, departures() of it are awaited. Framed lengths travel under `length_tag`.
class Outbox {
 public:
  Outbox(const GroupLane& lane, int places, size_t longest, bool framed, int tag, int length_tag,
         int exchanges = kInFlight, int64_t group = 1);
  char* of(int64_t k, int place) const { return space_.data() + static_cast<size_t>(buffer(k, place)) * stride_; }
  Exchange& departures(int64_t k) { return exchanges_[k / group_ % count_]; }
  // bytes at `data`, which is of(k, place) or memory of the caller's that lives as long.
  void send(int64_t k, int place, const char* data, size_t bytes, int world_rank);

 private:
  int64_t buffer(int64_t k, int place) const { return k % (count_ * group_) * places_ + place; }
  bool framed_;
  int tag_, length_tag_, places_, count_;
  int64_t group_;
  size_t stride_;
  Scratch<char> space_;
  Scratch<uint64_t> lengths_;
  Exchange exchanges_[kInFlight];
};

// Payloads on their way in: `slots` (at least `ahead`) of `places` buffers. For each piece k: clear(), expect() every
// payload, await lengths(k), follow(k), await arrivals(k). Posted for `ahead` pieces at most.
class Inbox {
 public:
  Inbox(const GroupLane& lane, int places, size_t longest, bool framed, int tag, int length_tag, int ahead = kInFlight,
        int64_t slots = kInFlight);
  void clear(int64_t k);
  // bytes: of the payload, or its bound. where: where it goes, nullptr: here.
  void expect(int64_t k, int place, size_t bytes, int world_rank, char* where = nullptr);
  Exchange& lengths(int64_t k) { return lengths_in_[k % ahead_]; }
  // Framed payloads are posted now that their lengths are known. Returns the place of one that is too long, or -1.
  int follow(int64_t k);
  Exchange& arrivals(int64_t k) { return payloads_in_[k % ahead_]; }
  const char* data(int64_t k, int place) const { return entry(k, place).where; }
  size_t bytes(int64_t k, int place) const;

 private:
  struct Entry {
    char* where;
    size_t bound;
    uint64_t length;
    int peer;
  };
  Entry& entry(int64_t k, int place) const { return entries_[k % slots_ * places_ + place]; }
  void post(int64_t k, const Entry& e);
  bool framed_;
  int tag_, length_tag_, places_, ahead_;
  int64_t slots_;
  size_t stride_;
  Scratch<char> space_;
  Scratch<Entry> entries_;
  Exchange lengths_in_[kMostAhead], payloads_in_[kMostAhead];
};

// Counts what a coded operation sends apart from what it would have sent: hangs itself into the lane, and tells both to
// their counters when the operation ends. Declared before anything that sends.
class Tally {
 public:
  Tally(GroupLane& lane, WireCounters* logical_to, int64_t logical_bytes);
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;
  ~Tally();

 private:
  WireCounters own_, *wire_to_, *logical_to_;
  int64_t logical_bytes_;
};

// Longest slice.
int64_t longest_slice(const Bounds& bounds, int members);
Bounds copy_of(BlockPool& pool, const Bounds& bounds, int members);
// to = from, converted. fp32, bf16 and fp16.
void convert(View from, View to);

// Parts of verbs, without counting. A coded reduce-scatter among members that sit as `seat` says; the slices of a ring
// or a column go on in fp32.
Task scatter_pieces(GroupLane lane, CodedCall call, Seat seat, View whole, Bounds bounds, View out, bool accumulate);
Task two_level_gather_pieces(GroupLane lane, CodedCall call, View mine, View whole, Bounds bounds);
bool has_references(const CodedCall& call);
// What is neither coded nor lossy travels in the replica's type: it is rounded before, into my range of `whole`.
View as_it_travels(const CodedCall& call, View mine, View range);

}  // namespace thinwire
