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
inline constexpr int kMostAhead = 4;       // receives posted ahead, usually: what comes before is copied once more
inline constexpr int64_t kVector = 16;     // elements: slices and pieces end on whole vectors
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
inline int64_t part_bound(int64_t count, int parts, int r, int64_t unit = kVector) {
  return std::min(count, (count * r / parts + unit - 1) / unit * unit);
}
Bounds part_bounds(BlockPool& pool, int64_t count, int parts, int64_t unit = kVector);

// Elements of a piece: about tuning.chunk_bytes of `dtype`, at a multiple of every coder's granule; kUncut where a
// coder takes slices whole.
int64_t chunk_of(const CommTuning& tuning, DType dtype, const Coder* first, const Coder* second = nullptr);

// Sums that are coded again stay fp32, unless the coder keeps every bit: then they are rounded as they would travel.
DType sum_dtype(const Coder* coder, DType dtype);

// Bytes of one payload, exactly (framed: at most, without the length); coder == nullptr: the elements.
size_t payload_bytes(const Coder* coder, int64_t count, DType dtype);
// Bytes on the wire of a slice, length messages included.
int64_t slice_bytes(const Coder* coder, int64_t chunk, int64_t count, DType dtype);
bool is_framed(const Coder* coder);

// A CodedCall on the members of a lane.
class PieceCoder {
 public:
  PieceCoder(const GroupLane& lane, const CodedCall& call);
  bool plain() const { return call_.coder == nullptr; }
  bool framed() const { return is_framed(call_.coder); }
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
  bool exact_;  // lossless: payloads become elements again, which are summed as plain ones are
  CompressionStats unread_;
  Scratch<const void*> sources_;
};

// Payloads on their way out: `exchanges` (at most kInFlight) groups of `group` slots of `places` buffers. Before the
// first of a group is used again, departures() of it are awaited. Framed lengths travel under `length_tag`.
class Outbox {
 public:
  Outbox(const GroupLane& lane, int places, size_t longest, bool framed, int tag, int length_tag, int exchanges,
         int64_t group);
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
// payload, await lengths(k), follow(k), await arrivals(k). Posted for `ahead` pieces at most; above kMostAhead some are
// awaited together.
class Inbox {
 public:
  Inbox(const GroupLane& lane, int places, size_t longest, bool framed, int tag, int length_tag, int ahead,
        int64_t slots);
  void clear(int64_t k);
  // bytes: of the payload, or its bound. where: where it goes, nullptr: here.
  void expect(int64_t k, int place, size_t bytes, int world_rank, char* where = nullptr);
  Exchange& lengths(int64_t k) { return lengths_in_[k % waits_]; }
  // Framed payloads are posted now that their lengths are known. Returns the place of one that is too long, or -1.
  int follow(int64_t k);
  Exchange& arrivals(int64_t k) { return payloads_in_[k % waits_]; }
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
  int tag_, length_tag_, places_, waits_;
  int64_t slots_;
  size_t stride_;
  Scratch<char> space_;
  Scratch<Entry> entries_;
  Exchange lengths_in_[kMostAhead], payloads_in_[kMostAhead];
};

// Counts what a coded operation sends apart from what it would have sent: hangs itself into the lane, and tells both to
// their counters when the operation ends. Declared before anything that sends.
class CounterScope {
 public:
  CounterScope(GroupLane& lane, WireCounters* logical_to, int64_t logical_bytes);
  CounterScope(const CounterScope&) = delete;
  CounterScope& operator=(const CounterScope&) = delete;
  ~CounterScope();

 private:
  WireCounters own_, *wire_to_, *logical_to_;
  int64_t logical_bytes_;
};

// to = from, converted. fp32, bf16 and fp16.
void convert(View from, View to);

}  // namespace thinwire
