// How messages are cut, and the windows of payloads that are under way.
#include "parallel/collective/coded_chunks.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "engine/base/core/error.h"
#include "parallel/collective/rank_sum.h"

namespace thinwire {

static_assert(std::endian::native == std::endian::little, "lengths travel little endian");

namespace {

size_t rounded(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

}  // namespace

// --- how slices are cut -----------------------------------------------------------------------------------------

int64_t common_unit(const Coder* a, const Coder* b, const Coder* c) {
  int64_t unit = kVector;
  for (const Coder* coder : {a, b, c})
    if (coder != nullptr) unit = std::lcm(unit, coder->cut_unit());
  return unit;
}

Bounds part_bounds(BlockPool& pool, int64_t count, int parts, int64_t unit) {
  Bounds bounds(pool, parts + 1);
  for (int r = 0; r <= parts; ++r) bounds[r] = part_bound(count, parts, r, unit);
  return bounds;
}

int64_t chunk_of(const CommTuning& tuning, DType dtype, const Coder* first, const Coder* second) {
  for (const Coder* coder : {first, second})
    if (coder != nullptr && coder->granule() == 0) return kUncut;
  const int64_t unit = common_unit(first, second);
  return std::max(unit, tuning.chunk_bytes / static_cast<int64_t>(size_of(dtype)) / unit * unit);
}

DType sum_dtype(const Coder* coder, DType dtype) {
  return coder == nullptr || coder->traits().lossless ? dtype : DType::f32;
}

bool is_framed(const Coder* coder) {
  return coder != nullptr && coder->traits().framed;
}

size_t payload_bytes(const Coder* coder, int64_t count, DType dtype) {
  if (count == 0) return 0;
  return coder == nullptr ? static_cast<size_t>(count) * size_of(dtype) : coder->wire_bytes(count, dtype);
}

int64_t slice_bytes(const Coder* coder, int64_t chunk, int64_t count, DType dtype) {
  const int64_t pieces = pieces_of(count, chunk);
  if (pieces == 0) return 0;
  const int64_t last = count - (pieces - 1) * chunk;
  int64_t bytes = static_cast<int64_t>(payload_bytes(coder, last, dtype));
  if (pieces > 1) bytes += (pieces - 1) * static_cast<int64_t>(payload_bytes(coder, chunk, dtype));
  return bytes + (is_framed(coder) ? pieces * static_cast<int64_t>(kLengthBytes) : 0);
}

namespace {

template <typename From, typename To>
void convert_elements(const From* from, To* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from_float<To>(to_float(from[i]));
}

template <typename From>
void convert_from(View from, View to) {
  const From* elements = from.as<From>();
  switch (to.dtype) {
    case DType::f32:
      return convert_elements(elements, to.as<float>(), from.count());
    case DType::bf16:
      return convert_elements(elements, to.as<Bf16>(), from.count());
    default:
      return convert_elements(elements, to.as<Fp16>(), from.count());
  }
}

}  // namespace

void convert(View from, View to) {
  TW_CHECK(from.count() == to.count());
  if (from.dtype == to.dtype) {
    if (from.data != to.data && from.bytes() > 0) std::memmove(to.data, from.data, from.bytes());
    return;
  }
  switch (from.dtype) {
    case DType::f32:
      return convert_from<float>(from, to);
    case DType::bf16:
      return convert_from<Bf16>(from, to);
    default:
      return convert_from<Fp16>(from, to);
  }
}

// --- PieceCoder -------------------------------------------------------------------------------------------------

PieceCoder::PieceCoder(const GroupLane& lane, const CodedCall& call)
    : lane_(lane),
      call_(call),
      exact_(call.coder != nullptr && call.coder->traits().lossless),
      sources_(lane.pool(), call.coder == nullptr || exact_ ? std::max(2, lane.size()) : 0) {
  if (call_.stats == nullptr) call_.stats = &unread_;
  call_.msg.ranks = lane.size();
}

size_t PieceCoder::pack(View in, View reference, int64_t first, char* out, View own) {
  Msg msg = call_.msg;
  msg.first = first;
  msg.rank = lane_.me;
  const size_t bound = bytes(in.count(), in.dtype);
  const std::span<std::byte> room(reinterpret_cast<std::byte*>(out), bound);
  if (!call_.coder->keeps_decoded(msg)) own = View();
  const size_t length = call_.coder->pack(msg, in, reference, room, call_.state, *call_.stats, own);
  TW_CHECK(framed() ? length <= bound : length == bound, call_.coder->name(), " packed ", in.count(), " elements into ",
           length, " bytes where ", bound, " were promised");
  return length;
}

void PieceCoder::absorb_own(const char* payload, size_t bytes, DType dtype, View own, int64_t first, int64_t k) {
  if (!call_.coder->keeps_decoded(call_.msg)) absorb_one(payload, bytes, lane_.me, dtype, own, first, k);
}

Share PieceCoder::share(const char* payload, size_t bytes, int member, DType dtype, int64_t count) const {
  Share share;
  share.rank = member;
  if (plain()) {
    share.raw = View(const_cast<char*>(payload), dtype, {count});
  } else {
    share.payload = {reinterpret_cast<const std::byte*>(payload), bytes};
  }
  return share;
}

void PieceCoder::absorb(std::span<const Share> shares, DType dtype, View out, bool accumulate, int64_t first,
                        int64_t k) {
  Msg msg = call_.msg;
  msg.first = first;
  if (!plain() && !exact_) return decode_sum(msg, shares, out, accumulate, k);
  const int64_t count = out.count();
  const auto stride = static_cast<int64_t>(rounded(static_cast<size_t>(count) * size_of(dtype)));
  const Scratch<char> decoded(lane_.pool(), plain() ? 0 : stride * static_cast<int64_t>(shares.size()));
  for (size_t i = 0; i < shares.size(); ++i) {
    const void* elements = shares[i].raw.data;
    if (!shares[i].raw) {
      const View part(decoded.data() + static_cast<int64_t>(i) * stride, dtype, {count});
      decode_sum(msg, shares.subspan(i, 1), part, false, k);
      elements = part.data;
    }
    sources_[static_cast<int64_t>(i)] = elements;
  }
  combine_in_rank_order(call_.kind, dtype, sources_.data(), static_cast<int>(shares.size()), out.dtype, out.data, count,
                        accumulate);
}

void PieceCoder::decode_sum(const Msg& msg, std::span<const Share> shares, View out, bool accumulate, int64_t k) {
  Msg named = msg;
  named.rank = shares[0].rank;
  try {
    call_.coder->absorb(named, shares, out, accumulate, *call_.stats);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadData) throw;
    bad_payload(culprit(msg, shares, out.count()), k, error.what());
  }
}

void PieceCoder::absorb_one(const char* payload, size_t bytes, int member, DType dtype, View out, int64_t first,
                            int64_t k) {
  const Share one = share(payload, bytes, member, dtype, out.count());
  if (plain()) return convert(one.raw, out);
  Msg msg = call_.msg;
  msg.first = first;
  if (!exact_ || out.dtype == dtype) return decode_sum(msg, {&one, 1}, out, false, k);
  const Scratch<char> decoded(lane_.pool(), out.count() * static_cast<int64_t>(size_of(dtype)));
  const View part(decoded.data(), dtype, {out.count()});
  decode_sum(msg, {&one, 1}, part, false, k);
  convert(part, out);
}

// Only one payload of a sum need be bad: each is tried alone. -1: all are good by themselves.
int PieceCoder::culprit(const Msg& msg, std::span<const Share> shares, int64_t count) const {
  if (shares.size() == 1) return shares[0].rank;
  const Scratch<float> nowhere(lane_.pool(), count);
  const View out(nowhere.data(), DType::f32, {count});
  for (const Share& s : shares) {
    if (s.payload.empty()) continue;
    CompressionStats unread;
    Msg alone = msg;
    alone.rank = s.rank;
    try {
      call_.coder->absorb(alone, {&s, 1}, out, false, unread);
    } catch (const Error&) {
      return s.rank;
    }
  }
  return -1;
}

void PieceCoder::bad_payload(int member, int64_t k, const char* what) const {
  const std::string peer = member < 0 ? std::string("a peer") : "rank " + std::to_string(lane_.world_rank(member));
  throw_bad_data(peer + " sent a bad payload at site " + std::string(name_of(call_.site)) + ", chunk " +
                 std::to_string(k) + " of its message: " + what +
                 "; the data was damaged on the way, or the ranks run different versions or rules");
}

// --- Outbox -----------------------------------------------------------------------------------------------------

Outbox::Outbox(const GroupLane& lane, int places, size_t longest, bool framed, int tag, int length_tag, int exchanges,
               int64_t group)
    : framed_(framed),
      tag_(tag),
      length_tag_(length_tag),
      places_(places),
      count_(exchanges),
      group_(group),
      stride_(rounded(longest)),
      space_(lane.pool(), static_cast<int64_t>(stride_) * places * exchanges * group),
      lengths_(lane.pool(), framed ? places * exchanges * group : 0),
      exchanges_{Exchange(lane), Exchange(lane), Exchange(lane)} {
  std::fill_n(lengths_.data(), lengths_.count(), ~uint64_t{0});
}

void Outbox::send(int64_t k, int place, const char* data, size_t bytes, int world_rank) {
  Exchange& exchange = departures(k);
  if (framed_) {
    uint64_t& length = lengths_[buffer(k, place)];
    // Several peers may get one payload: what the first of them reads already is not written again.
    if (length != bytes) length = bytes;
    exchange.send(&length, kLengthBytes, world_rank, length_tag_);
  }
  for (size_t first = 0; first < bytes; first += kLargestMessage)
    exchange.send(data + first, std::min(kLargestMessage, bytes - first), world_rank, tag_);
}

// --- Inbox ------------------------------------------------------------------------------------------------------

Inbox::Inbox(const GroupLane& lane, int places, size_t longest, bool framed, int tag, int length_tag, int ahead,
             int64_t slots)
    : framed_(framed),
      tag_(tag),
      length_tag_(length_tag),
      places_(places),
      waits_(std::min(ahead, kMostAhead)),
      slots_(slots),
      stride_(rounded(longest)),
      space_(lane.pool(), static_cast<int64_t>(stride_) * places * slots),
      entries_(lane.pool(), places * slots),
      lengths_in_{Exchange(lane), Exchange(lane), Exchange(lane), Exchange(lane)},
      payloads_in_{Exchange(lane), Exchange(lane), Exchange(lane), Exchange(lane)} {}

void Inbox::clear(int64_t k) {
  for (int place = 0; place < places_; ++place) entry(k, place) = {nullptr, 0, 0, -1};
}

void Inbox::expect(int64_t k, int place, size_t bytes, int world_rank, char* where) {
  Entry& e = entry(k, place);
  char* const here = space_.data() + static_cast<size_t>(k % slots_ * places_ + place) * stride_;
  e = {where != nullptr ? where : here, bytes, bytes, world_rank};
  if (framed_) {
    lengths(k).receive(&e.length, kLengthBytes, world_rank, length_tag_);
  } else {
    post(k, e);
  }
}

void Inbox::post(int64_t k, const Entry& e) {
  for (size_t first = 0; first < e.length; first += kLargestMessage)
    arrivals(k).receive(e.where + first, std::min<size_t>(kLargestMessage, e.length - first), e.peer, tag_);
}

int Inbox::follow(int64_t k) {
  if (!framed_) return -1;
  for (int place = 0; place < places_; ++place) {
    const Entry& e = entry(k, place);
    if (e.peer < 0) continue;
    if (e.length == 0 || e.length > e.bound) return place;
    post(k, e);
  }
  return -1;
}

size_t Inbox::bytes(int64_t k, int place) const {
  return static_cast<size_t>(entry(k, place).length);
}

// --- CounterScope ----------------------------------------------------------------------------------------------------

CounterScope::CounterScope(GroupLane& lane, WireCounters* logical_to, int64_t logical_bytes)
    : wire_to_(lane.counters), logical_to_(logical_to), logical_bytes_(logical_bytes) {
  lane.counters = &own_;
}

CounterScope::~CounterScope() {
  if (wire_to_ != nullptr) {
    wire_to_->wire_bytes += own_.wire_bytes;
    wire_to_->messages += own_.messages;
  }
  if (logical_to_ != nullptr) logical_to_->logical_bytes += logical_bytes_;
}

}  // namespace thinwire
