// A rank's communication on its device: one stream on which everything runs in order, the communicators of the rank's
// groups, and the watch over both.
//
// One order of issue, that of the plan, holds for all communicators of a rank, and one operation runs at a time: so the
// plan's validator (schedule/plan.h) has proved what can wait for whom. Compute and communication are ordered by events
// alone; the host never waits here.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "compression/coder.h"
#include "compression/device_codec.h"
#include "compression/site.h"
#include "parallel/device/device_watch.h"
#include "parallel/device/nccl_calls.h"
#include "parallel/wire/counters.h"

namespace thinwire {

// Which pairs of a group exchange messages, beside its collectives: their connections are made before the first step.
enum class DeviceEdges : uint8_t { kNone, kRing, kAll };

// A group of ranks on their devices. Several channels of the same ranks share a communicator.
struct DeviceGroup {
  std::vector<int> ranks;  // world ranks in group order
  int me = 0;
  DeviceEdges edges = DeviceEdges::kAll;
  NcclCalls::Handle handle = nullptr;  // nullptr before connect()
  int size() const { return static_cast<int>(ranks.size()); }
};

class DeviceTraffic {
 public:
  struct Options {
    bool deterministic = true;         // false: sums in an order of NCCL's own
    int64_t scratch_bytes = 64 << 20;  // device memory for what others contribute to sums
    int64_t small_bytes = 8 << 10;     // up to here an all-reduce gathers whole vectors (CommTuning)
    DeviceWatch::Options watch = {};
  };
  using Open = std::function<std::unique_ptr<NcclCalls>(Device& device, Stream& stream)>;  // open_nccl, or a stand-in

  // The device outlives it, it outlives the communicators that are made with it.
  DeviceTraffic(Device& device, const Open& open, const Options& options);
  ~DeviceTraffic();  // behind all that is under way; in an error it aborts
  DeviceTraffic(const DeviceTraffic&) = delete;
  DeviceTraffic& operator=(const DeviceTraffic&) = delete;

  std::string description() const { return calls_->description(); }
  std::string unique_id() { return calls_->unique_id(); }
  Device& device() { return device_; }
  Stream& stream() { return *stream_; }
  NcclCalls& calls() { return *calls_; }
  const Options& options() const { return options_; }

  // The rank's group of a kind (a number; groups of one kind never share two ranks). Before connect().
  const DeviceGroup& group(int kind, std::vector<int> ranks, int world_rank, DeviceEdges edges);
  // Makes the communicators of all groups of all ranks, and their connections. All ranks of the job call it with the
  // same `id`, whatever groups they have: each kind is one split of the world, in the order of their numbers, and who
  // has no group of that kind takes part without one. Again, for groups that were named since.
  void connect(const std::string& id, int size, int rank, int kinds);

  // Work that is queued on the stream from here on follows what is queued on `stream`.
  void follow(Stream& stream);
  // The ticket of what was queued; the operation is watched.
  Ticket finish(const OperationNote& note);

  // Contributions of the others: one operation's at a time, which stands in order on the stream.
  char* scratch() const { return scratch_; }
  // The same with room for so many bytes, more than options().scratch_bytes where one message needs them.
  char* room(int64_t bytes);
  // Memory for parts of an operation until it is given back, in the order of the stream: blocks are used again.
  char* lend(int64_t bytes);
  void give_back(char* lent);

  // What codecs find in a site's messages. Who asks codes them here.
  DeviceTally* tally(Site site);
  // sum [1] fp64 += how many sites have found something that is not finite, on `stream`; what all have found so far is
  // kept for findings(), and they begin again.
  void take_findings(View sum, Stream& stream);
  // By site; waits for the stream. Empty where nothing is coded here.
  std::vector<DeviceTally> findings();
  // Between the two what is found is forgotten.
  void put_findings_aside() { move_findings(0, 2); }
  void put_findings_back() { move_findings(2, 0); }

  // Point-to-point messages between open and close travel together, as one piece of work: what a node of the plan sends
  // and receives. Their tickets can be waited for when it is closed.
  void open_exchange();
  void close_exchange();
  struct Transfer {
    bool is_send = false;
    View data;
    int peer = 0;  // in the group
    const DeviceGroup* group = nullptr;
  };
  // What a route lists while it is queued. Whoever takes some gives them back: the next route fills the same memory.
  struct Lists {
    std::vector<View> payloads, received;
    std::vector<size_t> places;  // where a stop's begin in `received`
    std::vector<Transfer> transfers;
    std::vector<Touched> touched;
    std::vector<Share> shares;
  };
  std::unique_ptr<Lists> take_lists();
  void give_back(std::unique_ptr<Lists> lists) { spare_lists_.push_back(std::move(lists)); }
  // Now, or with the exchange that is open: messages that are packed when they leave, into `bytes` of room, and listed
  // behind those of others. then: queued behind it, before the ticket.
  using Pack = std::function<void(char* room, std::vector<Transfer>& transfers)>;
  Ticket exchange(int64_t bytes, Pack pack, const OperationNote& note, Stream& stream, std::function<void()> then);
  // The same of what is not packed.
  Ticket exchange(std::vector<Transfer> transfers, const OperationNote& note, Stream& stream,
                  std::function<void()> then = {});
  // Inside another operation: queues them as one group, and that is all.
  void queue_group(const std::vector<Transfer>& transfers);

 private:
  class Later;
  struct Pending {
    OperationNote note;
    std::shared_ptr<Later> operation;
    int64_t bytes = 0;
    Pack pack;
    std::function<void()> then;
  };
  void move_findings(size_t from, size_t to);
  NcclCalls::Handle keep(NcclCalls::Handle handle);
  void warm(const DeviceGroup& group);
  void queue_pending();

  Device& device_;
  Options options_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<NcclCalls> calls_;
  NcclCalls::Handle world_ = nullptr;
  std::mutex handles_mutex_;  // between connect() and the watch
  std::vector<NcclCalls::Handle> handles_;
  std::map<int, DeviceGroup> groups_;          // by kind
  char *scratch_ = nullptr, *more_ = nullptr;  // more_: room beyond the scratch
  int64_t more_bytes_ = 0;
  struct Lent {
    char* data = nullptr;
    int64_t bytes = 0;
    bool used = false;
  };
  std::vector<Lent> lent_;
  std::vector<std::unique_ptr<Lists>> spare_lists_;
  char* tallies_ = nullptr;  // of each site, as they are found, as they were taken, and put aside
  bool codes_ = false;
  bool exchanging_ = false;
  Stream* exchange_stream_ = nullptr;
  std::vector<Pending> pending_;
  std::unique_ptr<DeviceWatch> watch_;
};

}  // namespace thinwire
