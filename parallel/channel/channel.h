// A Channel binds a rule's coders to one (site, group): the verbs of the communicator, with what travels decided here.
//
// Whether a message is coded follows from the rule, the clock and the message's key alone, so that all ranks of the
// group - and both ends of a point-to-point message - agree without a word. Where it is not, the verb is the plain
// collective (law 3).
#pragma once

#include <memory>
#include <span>

#include "parallel/channel/channel_compression.h"
#include "parallel/collective/coded.h"
#include "parallel/collective/communicator.h"
#include "parallel/collective/route_on_device.h"

namespace thinwire {

struct RoundCall;

// Whether a message of `count` elements is coded in step `step`.
// summed: rounds carry it, if the rule has any (and matrices to work on); what is not summed needs a codec of its own.
bool is_coded(const SiteCompression& compression, int64_t step, const MessageKey& key, int64_t count, DType dtype,
              bool summed);

// What every rank of a group has, on its way around them, hop by hop: rank r hands on to rank r + 1. Between hops it
// holds the payloads that go on as they came. Ends before its channel.
class RingMessage {
 public:
  RingMessage() = default;
  // Whose part is held after the hops so far.
  int owner(int rank, int size) const { return (rank + size - hops_) % size; }

 private:
  friend class Channel;
  CodedCall call_;
  MessageKey key_;
  Payloads payloads_[2];  // received by even hops, and (packed, or) by odd ones
  int hops_ = 0;
};

// An empty channel stands for a group of one rank: every verb is finished at once and moves nothing
// (send and receive have no peer, and are a CHECK).
class Channel {
 public:
  Channel() = default;
  explicit Channel(std::unique_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}
  // compressions: of the site's rules; empty: everything travels as it is. clock and counters outlive the channel.
  // draws: groups with different numbers round stochastically by chances of their own.
  Channel(std::unique_ptr<Communicator> communicator, SiteCompressions compressions, const CompressionClock* clock,
          SiteCounters* counters, std::shared_ptr<ChannelStates> states, uint64_t draws = 0);

  int rank() const { return communicator_ ? communicator_->rank() : 0; }
  int size() const { return communicator_ ? communicator_->size() : 1; }
  explicit operator bool() const { return communicator_ != nullptr; }
  // What the message falls under; nullptr: nothing.
  const SiteCompression* compression(const MessageKey& key) const {
    if (key.as != nullptr || key.rule < 0 || key.rule >= static_cast<int>(compressions_.size())) return key.as;
    return compressions_[static_cast<size_t>(key.rule)].get();
  }
  // For a message of another channel that is to be coded as this one's are.
  MessageKey coded_as_here(MessageKey key) const {
    key.as = compression(key);
    if (key.as == nullptr) key.rule = kNoRule;
    return key;
  }
  // Whether nothing is done to the message on its way between devices: no rule, and no checksum that was asked for.
  bool is_plain(const MessageKey& key) const { return communicator_ && compression(key) == nullptr && !is_proved(key); }
  // Between devices: where what is queued on `stream` travels if nobody codes it; nullptr: through the host.
  DeviceCommunicator* on_device(Stream& stream) const {
    return communicator_ && price_ == nullptr ? communicator_->on_device(stream) : nullptr;
  }
  // Whether its messages, coded or not, travel between devices, where ranks have them.
  bool stays_on_device(const MessageKey& key) const { return communicator_ && (is_plain(key) || codes_on_device(key)); }
  // Whether its rule codes a message of `count` elements of `dtype` now.
  bool codes(const MessageKey& key, int64_t count, DType dtype, bool summed) const;

  // From now on the verbs send nothing and touch no data: they add to `price` what they would have sent.
  void rehearse(SitePrice* price) { price_ = price; }

  // Makes the states of a slot whose messages hold `count` elements, before the first of them. Slots that nobody
  // prepared get theirs when they are first used, which a checkpoint then does not know. bounds: of a reduce-scatter.
  void prepare(const MessageKey& key, int64_t count, ChannelUse use, std::span<const int64_t> bounds = {});

  // The verbs of Communicator (see there for shapes and leases). all_gather: `mine` may have another dtype than `whole`
  // (fp32 masters, for example).
  Ticket all_reduce(View data, ReduceKind kind, Stream& stream, const MessageKey& key = {});
  Ticket reduce_scatter(View whole, std::span<const int64_t> bounds, View out, bool accumulate, Stream& stream,
                        const MessageKey& key = {});
  Ticket all_gather(View mine, View whole, std::span<const int64_t> bounds, Stream& stream, const MessageKey& key = {});
  // No coder that keeps a state (CHECK). What this rank keeps is not coded.
  Ticket all_to_all(View from, std::span<const int64_t> from_bounds, View to, std::span<const int64_t> to_bounds,
                    Stream& stream, const MessageKey& key = {});
  // Packs this rank's part, of `total` elements that all ranks have and `most` that one has; `part` becomes what the
  // others decode.
  RingMessage start_ring(View part, int64_t total, int64_t most, Stream& stream, const MessageKey& key = {});
  // held: what the hop before has brought, or the part; next: gets what the previous rank holds. In size() - 1 hops
  // everybody gets everything.
  Ticket hop(RingMessage& ring, View held, View next, Stream& stream);
  // from: to the rank `distance` behind (rank r - distance); to: from the one ahead. total: of all ranks' messages.
  Ticket hand_back(View from, View to, int distance, int64_t total, Stream& stream, const MessageKey& key = {});
  Ticket broadcast(View data, int root, Stream& stream);
  Ticket send(View data, int peer, Stream& stream, const MessageKey& key = {}) {
    return message(true, data, peer, stream, key);
  }
  Ticket receive(View data, int peer, Stream& stream, const MessageKey& key = {}) {
    return message(false, data, peer, stream, key);
  }
  // What the ranks of `parts` are sent in parts, as the key of each says (MessageKey::part is the rank there), becomes
  // whole on all of them: each hands on what it receives, as it came, at the site of `parts`. whole: [rows, cols];
  // bounds: of the parts, in elements, whole rows.
  Ticket receive_parts(View whole, std::span<const int64_t> bounds, int peer, Channel& parts, Stream& stream,
                       const MessageKey& key);
  Ticket barrier();

  // As steps of the caller's own operation (communicator.h says on which terms). Not on an empty channel. work: it is
  // coded, and queued there.
  Task all_reduce_task(View data, ReduceKind kind, const MessageKey& key, DeviceWork* work = nullptr);
  Task reduce_scatter_task(View whole, std::span<const int64_t> bounds, View out, bool accumulate,
                           const MessageKey& key, DeviceWork* work = nullptr);
  Task all_gather_task(View mine, View whole, std::span<const int64_t> bounds, const MessageKey& key,
                       DeviceWork* work = nullptr);
  Task all_to_all_task(View from, std::span<const int64_t> from_bounds, View to, std::span<const int64_t> to_bounds,
                       const MessageKey& key, DeviceWork* work = nullptr);

  Communicator* communicator() { return communicator_.get(); }

 private:
  Ticket message(bool sends, View data, int peer, Stream& stream, const MessageKey& key);
  // Runs `verb` on the next lane, or that of `work`, or in a rehearsal counts what it would send, and what `plain`
  // would.
  template <typename Plain, typename Verb>
  Task carry(const MessageKey& key, const Plain& plain, bool exact, const Verb& verb, DeviceWork* work = nullptr);
  // Which of its messages carry a checksum: all where the rule says so, else as everywhere.
  Checksums checksums(const MessageKey& key) const {
    const SiteCompression* const compression = communicator_ ? this->compression(key) : nullptr;
    return compression != nullptr && compression->checks ? Checksums::kAll : communicator_->tuning().checksums;
  }
  // Whether the communicator's own verb is what an uncoded message needs.
  bool is_usual(const MessageKey& key) const {
    return price_ == nullptr && checksums(key) == communicator_->tuning().checksums;
  }
  // The same for this message, which nobody codes and no checksum goes with.
  DeviceCommunicator* on_device(Stream& stream, const MessageKey& key, View data, bool summed) const {
    return codes(key, data.count(), data.dtype, summed) || is_proved(key) ? nullptr : on_device(stream);
  }
  // Whether what its rule codes is coded on the device: by the rule alone, since states lie where it is coded.
  bool codes_on_device(const MessageKey& key) const;
  // Where a message that its rule codes now is queued; empty: it is not, or not between devices.
  DeviceWork work_on_device(Stream& stream, const char* verb, const MessageKey& key, int64_t count, DType dtype,
                            bool summed, int peer = -1) const;
  // Whether it carries a checksum wherever it goes: then not between devices, where there are none. (Those between
  // nodes are for the host's transports.)
  bool is_proved(const MessageKey& key) const { return checksums(key) == Checksums::kAll; }
  GroupLane checked(GroupLane lane, const MessageKey& key) const;
  Algorithm way_of(const SiteCompression& compression) const;  // as the rule says, where the group can
  const SiteCompression& compression_of(const MessageKey& key) const {
    const SiteCompression& main = compression_at(*compression(key), clock_->step);
    const CodingWay way = clock_->ways[static_cast<size_t>(main.site)];
    return key.awaited && way == CodingWay::kLight ? main : coded_by(main, way);
  }
  ChannelStates::Slot& open_slot(const MessageKey& key, int64_t count, int64_t rows);
  Msg next_message(const MessageKey& key, const ChannelStates::Slot& slot);
  // Of contributions, or of the sums behind them.
  CodedCall without_state(const SiteCompression& compression, bool of_sums, const Msg& msg, bool on_device) const;
  CodedCall call(const SiteCompression& compression, bool of_sums, const MessageKey& key, const Msg& msg,
                 ChannelStates::Slot& slot, bool on_device = false);
  // Of what comes.
  CodedCall coming(const MessageKey& key, ChannelStates::Slot& slot, int peer, bool on_device);
  // Of what comes in parts, by which every rank has a message of its own.
  CodedCall coming_parts(View whole, std::span<const int64_t> bounds, const MessageKey& key, int peer,
                         std::vector<Msg>& messages, bool on_device);
  Task hand_back_task(View from, View to, int distance, int64_t total, const MessageKey& key,
                      DeviceWork* work = nullptr);
  RoundCall round_call(const SiteCompression& compression, const Msg& msg, ChannelStates::Slot& slot, bool on_device);

  std::unique_ptr<Communicator> communicator_;
  SiteCompressions compressions_;
  const CompressionClock* clock_ = nullptr;
  SiteCounters* counters_ = nullptr;
  std::shared_ptr<ChannelStates> states_;
  uint64_t draws_ = 0;
  DeviceMemory ring_memory_[2];  // the payloads of the ring that is under way
  SitePrice* price_ = nullptr;   // of a rehearsal
};

}  // namespace thinwire
