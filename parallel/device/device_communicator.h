// The verbs of a group between device memory and device memory, over NCCL; the host stages nothing and waits for
// nothing.
//
// Sums are taken as on the host, by the ranks that own them, in rank order: contributions travel as they are (an
// all-to-all), and a kernel of ours adds them. So they have the bits of the host's direct algorithms
// (collective/communicator.h), whatever NCCL's algorithms are. With DeviceTraffic::Options::deterministic off NCCL
// sums.
#pragma once

#include <span>

#include "compression/site.h"
#include "parallel/device/device_traffic.h"

namespace thinwire {

// Arguments as for the verbs of Communicator. `stream`: the operation follows what is queued there. Views are leased
// until the ticket was waited for. Bytes are counted when an operation is issued, as the host's direct algorithms send
// them, NCCL's own collectives as if every part went to each rank that gets it.
class DeviceCommunicator {
 public:
  // progress: whose lock guards the counters. number: of the communicator, for messages.
  DeviceCommunicator(DeviceTraffic& traffic, const DeviceGroup& group, Progress& progress, int number, Site site,
                     WireCounters* counters);

  // Whether it sums numbers of this type.
  static bool sums(DType dtype) {
    return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
  }

  Ticket all_reduce(View data, Stream& stream);
  Ticket reduce_scatter(View whole, std::span<const int64_t> bounds, View out, bool accumulate, Stream& stream);
  // mine may have another type than `whole`.
  Ticket all_gather(View mine, View whole, std::span<const int64_t> bounds, Stream& stream);
  Ticket all_to_all(View from, std::span<const int64_t> from_bounds, View to, std::span<const int64_t> to_bounds,
                    Stream& stream);
  Ticket broadcast(View data, int root, Stream& stream);
  // Sends and receives as one piece of work, with others of an open exchange. A peer's receive of it stands in one
  // piece of work, too.
  Ticket send(View data, int peer, Stream& stream);
  Ticket receive(View data, int peer, Stream& stream);
  Ticket send_and_receive(View from, int to, View into, int peer, Stream& stream);
  // A message in parts: mine comes from `peer`, and with `parts` (whose ranks each get one) it becomes whole.
  Ticket receive_parts(View whole, std::span<const int64_t> bounds, int peer, DeviceCommunicator& parts,
                       Stream& stream);

  DeviceTraffic& traffic() { return traffic_; }
  const DeviceGroup& group() const { return group_; }
  // Inside another operation, in place: a sum as all_reduce() takes it. Returns the bytes that it sends.
  int64_t queue_all_reduce(View data);
  // The next part of an operation, which is counted with its first one. For what somebody else queues, and counts the
  // bytes of, too.
  OperationNote issue(const char* verb, int64_t bytes, int peer = -1, bool is_first = true);

 private:
  OperationNote issue(const char* verb, View data, int peer = -1) {
    return issue(verb, static_cast<int64_t>(data.bytes()), peer);
  }
  int64_t count(int64_t bytes, int64_t messages);
  View slice(View whole, std::span<const int64_t> bounds, int rank) const;
  // They return the bytes that they send.
  int64_t queue_scatter(View whole, std::span<const int64_t> bounds, View out, bool accumulate);
  int64_t queue_gather(View mine, View whole, std::span<const int64_t> bounds);

  DeviceTraffic& traffic_;
  const DeviceGroup& group_;
  Progress& progress_;
  int number_;
  Site site_;
  WireCounters* counters_;
  uint32_t sequence_ = 0;
};

}  // namespace thinwire
