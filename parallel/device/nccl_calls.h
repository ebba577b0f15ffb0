// The calls of NCCL that communication between devices needs, as a table: the library's own (nccl_library.cpp), or a
// stand-in that tests watch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/base/core/view.h"
#include "engine/base/device/device.h"
#include "engine/base/ops/ops.h"

namespace thinwire {

// out = the contributions of `ranks` ranks added in rank order, or out += that, with the bits of combine_in_rank_order
// (collective/rank_sum.h): fp32, bf16 and fp16 add up in fp32, fp64 in fp64, rounded once. All in device memory: that
// of this rank is `own`, which may be the memory of `out`; that of any other rank r is at others + r * stride bytes.
struct RankSum {
  View own;
  int rank = 0, ranks = 1;
  const void* others = nullptr;
  int64_t stride = 0;
  View out;  // own's count and dtype, or fp32 where that is bf16 or fp16
  bool accumulate = false;
};

// Memory that a kernel reads or writes: the stand-in for NCCL looks for races by it.
struct Touched {
  const void* data = nullptr;
  size_t bytes = 0;
  bool writes = false;
};

// Rules of NCCL that callers keep: all ranks of a communicator call the same collectives in the same order, and calls
// of different communicators in the same order wherever two of them share ranks; between group_start and group_end
// nothing happens, and everything there becomes one piece of work; create and split are collective (of the job, of the
// parent). Nothing here waits for the device but create, split and destroy. Views are contiguous device memory, leased
// until the stream has passed. What fails throws Error(kHungPeer) with NCCL's own words.
class NcclCalls {
 public:
  using Handle = void*;  // a communicator
  static constexpr int kNoColor = -1;

  virtual ~NcclCalls() = default;
  virtual std::string description() const = 0;  // for the log: "NCCL 2.28.9"
  virtual std::string unique_id() = 0;          // bytes; one rank asks, and all create with it
  virtual Handle create(const std::string& id, int size, int rank) = 0;
  // Ranks with one color form a group, in the order of their keys. kNoColor: in none, nullptr. A child shares what its
  // parent holds, and never runs beside it.
  virtual Handle split(Handle parent, int color, int key) = 0;
  virtual int size(Handle) = 0;             // ranks of it
  virtual void destroy(Handle) = 0;         // when nothing of it is under way
  virtual void abort(Handle) noexcept = 0;  // ends what is under way on this rank; the last call with it
  virtual std::string fault(Handle) = 0;    // what failed since a call returned; empty: nothing. Any thread asks

  virtual void group_start() = 0;
  virtual void group_end() = 0;
  virtual void send(View data, int peer, Handle, Stream&) = 0;
  virtual void receive(View data, int peer, Handle, Stream&) = 0;
  virtual void all_gather(View mine, View whole, Handle,
                          Stream&) = 0;  // parts of mine.count(); mine: there, or outside
  virtual void broadcast(View data, int root, Handle, Stream&) = 0;
  // Sums in an order of NCCL's own; in place (of reduce: at the root alone).
  virtual void all_reduce(View data, Handle, Stream&) = 0;
  virtual void reduce(View data, int root, Handle, Stream&) = 0;
  // A kernel of ours, here because the stand-in of NCCL needs one for its stand-ins of streams.
  virtual void sum_in_rank_order(const RankSum& sum, Stream&) = 0;
  // What the kernels of codecs are queued with, on the stream that sums run on. touched: by those that follow.
  virtual Exec& kernels(std::span<const Touched> touched) = 0;
};

// Which piece of hardware the CUDA device is: equal on ranks that share it, different elsewhere, on all machines. Empty
// where NCCL is not built in.
std::string hardware_of(Device& device);
// Of a CUDA device; `stream` is the one that sums run on. nullptr where NCCL is not built in.
std::unique_ptr<NcclCalls> open_nccl(Device& device, Stream& stream);

}  // namespace thinwire
