// NCCL without GPUs, as strict as its documentation: for ranks that are threads, on devices of runner_gpu.h.
//
// A group is one piece of work; nothing happens before it ends, and while it runs it waits for all its peers
// (rendezvous): a send for the receive, a collective for all ranks. Both ends of a message, and all ranks of a
// collective, have to say the same. Communicators are made by all ranks of the parent together. What hangs, or would on
// some GPU, is found by name after `patience_s`: everything then goes on, with wrong results.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "parallel/device/nccl_calls.h"
#include "tests/emulation/deferred_stream.h"
#include "tests/support/runner_gpu.h"

namespace thinwire::test {

// What one rank does wrong, once: at call number `at` of its kind.
enum class CallMistake : uint8_t {
  kNone,
  // two pieces of work are queued in the other order
  kUngrouped,      // messages of a group are pieces of work of their own (from then on, and on all ranks)
  kWrongCount,     // one element less
  kWrongType,      // i32 for fp32
  kWrongPeer,      // the next rank instead
  kWrongMemory,    // 4 bytes off
  kOtherStream,    // on a stream of its own
  kSkippedSplit,   // a split that it has no part in is left out
  kSwappedSplits,  // two splits in the other order
};

struct Mistake {
  CallMistake what = CallMistake::kNone;
  int rank = 0, at = 0;
};

// What all ranks share.
class FakeFabric {
 public:
  FakeFabric(Findings& findings, double patience_s);
  FakeFabric(const FakeFabric&) = delete;
  FakeFabric& operator=(const FakeFabric&) = delete;

  // Everything that waits goes on, and nothing waits any more.
  void let_go();
  // From now on every communicator reports this.
  void break_down(const std::string& fault);

 private:
  friend class FakeNccl;
  struct Communicator;
  struct Piece;
  struct Meeting;
  struct Slot;

  // Brings the ranks of a set together on the host; returns what each of them brought.
  std::map<int, std::vector<int>> meet(const std::string& where, int size, int rank, std::vector<int> brings);
  // Runs a group on the thread of a stream.
  void run(const void* device, std::vector<Piece>& group);
  using Time = std::chrono::steady_clock::time_point;
  bool waits_in_vain(std::unique_lock<std::mutex>& lock, uint64_t& seen, Time& since);
  void match_messages(Communicator& communicator, int from, int to);
  void arrive(Piece& piece);
  void finish(Slot& slot);
  void stuck(const Piece& piece, const std::vector<Piece>& group);

  Findings& findings_;
  double patience_s_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> broken_{false};
  std::string fault_;
  uint64_t moves_ = 0;
  int next_id_ = 0;
  std::map<std::string, std::shared_ptr<Meeting>> meetings_;
  std::map<const void*, const std::vector<Piece>*> resident_;  // by device
  std::map<int, const void*> devices_;                         // by rank of the job
};

// The stream of emulated kernels (tests/emulation): each becomes work of another stream, which touches what was said.
class KernelStream final : public DeferredStream {
 public:
  explicit KernelStream(Stream& stream) : stream_(dynamic_cast<RunnerStream&>(stream)) {}
  void add(std::function<void()> work) override { stream_.gpu().add(stream_, "codec", touched, std::move(work)); }
  Device* device() override { return stream_.device(); }
  void synchronize() override { stream_.synchronize(); }
  std::string cannot_record() const override { return "a stand-in"; }
  void begin_recording() override {}
  std::unique_ptr<Recording> end_recording() override { return nullptr; }
  void drop_recording() noexcept override {}
  std::vector<Access> touched;

 private:
  RunnerStream& stream_;
};

// One rank's.
class FakeNccl final : public NcclCalls {
 public:
  FakeNccl(FakeFabric& fabric, Device& device, const Mistake& mistake = {});
  ~FakeNccl() override;
  std::string description() const override { return "a fake NCCL"; }
  std::string unique_id() override;
  Handle create(const std::string& id, int size, int rank) override;
  Handle split(Handle parent, int color, int key) override;
  int size(Handle) override;
  void destroy(Handle) override;
  void abort(Handle) noexcept override;
  std::string fault(Handle) override;
  void group_start() override { ++depth_; }
  void group_end() override;
  void send(View data, int peer, Handle, Stream&) override;
  void receive(View data, int peer, Handle, Stream&) override;
  void all_gather(View mine, View whole, Handle, Stream&) override;
  void broadcast(View data, int root, Handle, Stream&) override;
  void all_reduce(View data, Handle, Stream&) override;
  void reduce(View data, int root, Handle, Stream&) override;
  void sum_in_rank_order(const RankSum& sum, Stream&) override;
  Exec& kernels(std::span<const Touched> touched) override;

  // The emulated table, which only some tests are linked with, and the stream that sums run on.
  void use_kernels(const OpTable& ops, Stream& stream);
  // From now on, counted from here.
  void make(const Mistake& mistake) { mistake_ = mistake, calls_ = 0; }

 private:
  Handle split_now(Handle parent, int color, int key);
  void add(FakeFabric::Piece piece, Handle handle, Stream& stream);
  void queue(std::vector<FakeFabric::Piece> group, Stream& stream);
  bool errs(CallMistake what);

  FakeFabric& fabric_;
  RunnerGpu& gpu_;
  Mistake mistake_;
  int rank_ = 0, calls_ = 0, depth_ = 0;
  Stream* stream_ = nullptr;  // of the group that is open
  std::vector<FakeFabric::Piece> group_;
  std::unique_ptr<Stream> other_;
  std::unique_ptr<KernelStream> kernel_stream_;
  std::unique_ptr<Exec> kernels_;
  std::map<Handle, int> splits_;  // of a parent so far
  std::set<std::shared_ptr<FakeFabric::Communicator>> made_;
};

}  // namespace thinwire::test
