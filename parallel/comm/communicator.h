// A group of ranks and the verbs on it. Moves bytes and knows no meaning.
//
// Every verb returns a Ticket that leases its buffers. Views are contiguous; with device memory `stream` orders the
// operation behind what was queued on it. All ranks of the group call the same verbs in the same order; point-to-point
// calls are matched per (peer, direction) in order. Floating-point sums are taken in fp32 (fp64 for fp64), in an order
// that depends on the algorithm and the group alone - never on timing - and all ranks get the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/core/view.h"
#include "engine/base/device/stream.h"
#include "parallel/comm/progress.h"

namespace thinwire {

enum class ReduceKind : uint8_t { kSum, kMax, kMin, kOr };  // kOr: integers
enum class Algorithm : uint8_t { kAuto, kDirect, kRing, kTwoLevel, kLibrary };  // kLibrary: the MPI's own

// Which algorithm a verb takes at which size, and in which pieces messages travel. Resolved configuration: the same on
// all ranks.
struct CommTuning {
  Algorithm all_reduce = Algorithm::kAuto, reduce_scatter = Algorithm::kAuto, all_gather = Algorithm::kAuto;
  int64_t chunk_bytes = 256 << 10;   // pieces of a large message: sums of one overlap the wire of the next
  int64_t small_bytes = 16 << 10;    // up to here an all-reduce is one exchange of whole vectors
};

class Communicator {
 public:
  // `ranks`: world ranks in group order, containing this one. `number`: below kMaxGroups, equal on all members, and
  // different from that of every other communicator that two of them share: it is the tag space. `nodes`: per member
  // the number of its node (empty: all on one). Creating one exchanges nothing. counters may be nullptr.
  Communicator(Progress& progress, std::vector<int> ranks, int number, Site site, SiteCounters* counters,
               std::vector<int> nodes = {}, const CommTuning& tuning = {});

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  Site site() const { return site_; }

  // In place; every rank gets the result. fp32, bf16, fp16, fp64, i32, i64, u8 (kMax, kMin, kOr).
  Ticket all_reduce(View data, ReduceKind kind, Stream& stream);
  // Rank r owns elements [bounds[r], bounds[r+1]) of `whole`; bounds has size() + 1 entries, from 0 to whole.count(),
  // and may be uneven or empty for some. The sum of my range goes to `out` (its size; may be that range of `whole`
  // itself). accumulate: out += sum (then `out` must not lie in `whole`). `whole` elsewhere is left as it is by the
  // direct algorithm and destroyed by others: treat it as destroyed. out may be fp32 where whole is bf16.
  Ticket reduce_scatter(View whole, std::span<const int64_t> bounds, View out, bool accumulate, Stream& stream);
  // My range of `whole` is filled; afterwards all ranges are. `mine` (may lie in `whole`, then nothing is copied).
  Ticket all_gather(View mine, View whole, std::span<const int64_t> bounds, Stream& stream);
  // Rank r's part of `from` goes to rank r's ... and arrives ordered by sender. Bounds in elements, size() + 1 each.
  Ticket all_to_all(View from, std::span<const int64_t> from_bounds, View to, std::span<const int64_t> to_bounds,
                    Stream& stream);
  Ticket broadcast(View data, int root, Stream& stream);
  Ticket send(View data, int peer, Stream& stream);     // peer: rank in this group
  Ticket receive(View data, int peer, Stream& stream);  // exactly data.bytes()
  Ticket barrier();

  // Of two-level and ring algorithms, for tests, pricing and counters: bytes this rank sends for a verb on `bytes`.
  Progress& progress() { return *progress_; }

 private:
  friend struct CollectiveContext;
  Progress* progress_;
  std::vector<int> ranks_, nodes_;
  int rank_ = 0, number_ = 0;
  Site site_;
  SiteCounters* counters_;
  CommTuning tuning_;
  uint32_t sequence_ = 0;
  std::vector<uint32_t> sent_, received_;  // point-to-point sequence per peer
};

inline constexpr int kMaxGroups = 1024;

}  // namespace thinwire
