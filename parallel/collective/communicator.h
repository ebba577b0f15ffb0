// A group of ranks and the verbs on it. Moves bytes and knows no meaning.
//
// Every verb returns a Ticket that leases its buffers. Views are contiguous host memory, and `stream` is the host's:
// a Channel takes device memory. All ranks of the group call the same verbs in the same order; point-to-point
// calls are matched per (peer, direction) in order. Floating-point sums are taken in fp32 (fp64 for fp64), in an order
// that depends on the algorithm and the group alone - never on timing - and all ranks get the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "compression/site.h"
#include "engine/base/core/view.h"
#include "engine/base/device/stream.h"
#include "parallel/collective/rank_sum.h"
#include "parallel/device/device_communicator.h"
#include "parallel/wire/progress.h"

namespace thinwire {

struct SendQueue;  // progress_core.h

struct DeviceWork;  // route_on_device.h
struct GroupLane;

enum class Algorithm : uint8_t { kAuto, kDirect, kRing, kTwoLevel };

// Which messages carry a checksum (progress_core.h): none, those to members on other nodes, all.
enum class Checksums : uint8_t { kNone, kBetweenNodes, kAll };

// Which algorithm a verb takes at which size, and in which pieces messages travel. Resolved configuration: the same on
// all ranks.
struct CommTuning {
  Algorithm all_reduce = Algorithm::kAuto, reduce_scatter = Algorithm::kAuto, all_gather = Algorithm::kAuto;
  int64_t chunk_bytes = 256 << 10;  // pieces of a large message: sums of one overlap the wire of the next
  int64_t small_bytes = 8 << 10;    // up to here an all-reduce passes on whole vectors (small_all_reduce)
  Checksums checksums = Checksums::kNone;
  bool two_levels = true;  // false: no collective takes them, wherever the members are (Mesh::channel)
  int sequence_bits = 9;   // of a tag, at most 9; tests take fewer, so that tags are soon used again
};

// Outlives the operations it issued.
class Communicator {
 public:
  // `ranks`: world ranks in group order, containing this one. `number`: below kMaxGroups, equal on all members, and
  // different from that of every other communicator that two of them share, unless the operations of both never overlap
  // (Control's do not): it is the tag space (sequence_window.h).
  // `nodes`: per member the number of its node (empty: all on one). Creating one exchanges nothing. counters may be
  // nullptr.
  Communicator(Progress& progress, std::vector<int> ranks, int number, Site site, WireCounters* counters,
               std::vector<int> nodes = {}, const CommTuning& tuning = {});
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // The same ranks on their devices, for a Channel.
  void use_device(std::unique_ptr<DeviceCommunicator> device) { device_ = std::move(device); }
  DeviceCommunicator* device() const { return device_.get(); }
  // nullptr: not what is queued on this stream.
  DeviceCommunicator* on_device(Stream& stream) const {
    return device_ != nullptr && stream.device() == &device_->traffic().device() ? device_.get() : nullptr;
  }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  Site site() const { return site_; }

  // In place; every rank gets the result. fp32, bf16, fp16, fp64, i32, i64, u8 (kMax, kOr).
  Ticket all_reduce(View data, ReduceKind kind, Stream& stream);
  // Rank r owns elements [bounds[r], bounds[r+1]) of `whole`; bounds has size() + 1 entries, from 0 to whole.count(),
  // and may be uneven or empty for some. The sum of my range goes to `out` (its size; may be that range of `whole`
  // itself). accumulate: out += sum (then `out` must not lie in `whole`). `whole` elsewhere is left as it is by the
  // direct algorithm and destroyed by others: treat it as destroyed. out may be fp32 where whole is bf16 or fp16.
  Ticket reduce_scatter(View whole, std::span<const int64_t> bounds, View out, bool accumulate, Stream& stream);
  // My range of `whole` is filled; afterwards all ranges are. `mine` (may lie in `whole`, then nothing is copied).
  Ticket all_gather(View mine, View whole, std::span<const int64_t> bounds, Stream& stream);
  // Part r of `from` goes to rank r; what comes from rank r lands in part r of `to`. Bounds in elements, size() + 1
  // entries each.
  Ticket all_to_all(View from, std::span<const int64_t> from_bounds, View to, std::span<const int64_t> to_bounds,
                    Stream& stream);
  Ticket broadcast(View data, int root, Stream& stream);
  Ticket send(View data, int peer, Stream& stream);     // peer: rank in this group, not this one
  Ticket receive(View data, int peer, Stream& stream);  // exactly data.bytes()
  Ticket barrier();

  // The same verbs as steps of an operation of the caller's, who gives his own task to Progress::start:
  //   Task both(Task first, Task second) { co_await first; co_await second; }
  // A task takes its place among the group's operations when it is made; it must run, and on the same terms as a ticket
  // (order on all ranks, leased buffers). `bounds` are copied.
  Task all_reduce_task(View data, ReduceKind kind);
  Task reduce_scatter_task(View whole, std::span<const int64_t> bounds, View out, bool accumulate);
  Task all_gather_task(View mine, View whole, std::span<const int64_t> bounds);
  Task all_to_all_task(View from, std::span<const int64_t> from_bounds, View to, std::span<const int64_t> to_bounds);
  Task broadcast_task(View data, int root);
  Task barrier_task();
  // Starts a task made of the above, under this communicator's site and number.
  Ticket start(Task task, const char* verb, int64_t bytes, int peer = -1);  // peer: in this group, for messages

  // For the coded collectives: the next collective's place, or that of the next message to or from a peer.
  GroupLane lane();
  GroupLane lane_to(int peer);
  GroupLane lane_from(int peer);
  // For those that are queued between devices: their place is that in the queue.
  GroupLane lane_of(DeviceWork& work) const;
  // Where messages of a slot that remembers something wait to be packed, in the order of issue.
  SendQueue& packing(uint32_t slot);
  std::span<const int> nodes() const { return nodes_; }
  const CommTuning& tuning() const { return tuning_; }
  uint32_t open_collectives() const { return collectives_.open(); }  // from the first that is not over on

  Progress& progress() { return *progress_; }
  BlockPool& pool() const { return progress_->pool(); }  // task.h: coroutines on a communicator take frames from here

 private:
  GroupLane bare_lane() const;                         // without a tag
  GroupLane message_lane(const SequencePlace&) const;  // of a point-to-point message
  SequenceWindow& messages(int peer, bool is_send);
  Ticket point_to_point(View data, int peer, bool is_send);
  void check_peer(int peer) const;
  static void check_host(Stream& stream);
  void check_bounds(std::span<const int64_t> bounds, View whole) const;

  Progress* progress_;
  std::vector<int> ranks_, nodes_;
  int rank_ = 0, number_ = 0;
  Site site_;
  WireCounters* counters_;
  std::unique_ptr<DeviceCommunicator> device_;
  CommTuning tuning_;
  SendQueue* gathers_ = nullptr;
  SequenceWindow collectives_;
  std::unordered_map<int, SequenceWindow> messages_;  // of the peers and directions that were used
};

inline constexpr int kMaxGroups = 31;  // of 5 bits: 31 itself is left to handshakes

}  // namespace thinwire
