// Sites sequence.forward and sequence.backward: what context-parallel ranks, which share the sequences of a replica,
// exchange around attention.
//
// Every rank has the queries, keys and values of its own tokens (SequenceCut). Attention needs the keys and values of
// all tokens before them. Three ways (Megatron's cp_comm_type): all_gather (Llama 3): keys and values are gathered,
// backward they are gathered again and their gradients summed by token. a2a (DeepSpeed-Ulysses): every rank gets all
// tokens of its share of the heads, and its tokens of all heads back. p2p (ring attention): keys and values go around
// the ranks, backward once more, and their gradients straight to their owner.
#pragma once

#include <vector>

#include "engine/base/core/sequence_cut.h"
#include "parallel/channel/channel.h"

namespace thinwire {

class SequenceExchange {
 public:
  SequenceExchange() = default;  // whole sequences
  SequenceExchange(Channel forward, Channel backward);

  int rank() const { return forward_.rank(); }
  int size() const { return forward_.size(); }
  // The rules that units of the model fall under, indexed by unit; empty: all under the first.
  void use_rules(std::vector<int> forward, std::vector<int> backward) {
    forward_rules_ = std::move(forward), backward_rules_ = std::move(backward);
  }

  // part: [rows of this rank, w], samples one behind the other, of each the rank's own tokens (`cut`). all: the same of
  // every rank, in rank order. unit: of the model, whose attention this is.
  Ticket gather(View part, View all, const SequenceCut& cut, int unit, Stream& stream);
  // Coded as when they were gathered forward: a gradient belongs to the keys and values that were computed with.
  Ticket gather_again(View part, View all, const SequenceCut& cut, int unit, Stream& stream);
  // part = the sum over all ranks of their `all`, in rank order, of this rank's rows.
  Ticket sum(View all, View part, const SequenceCut& cut, int unit, Stream& stream);

  // The ring. part: as above; becomes what the others decode. again: backward, coded as when it went around forward.
  void start_ring(View part, const SequenceCut& cut, int unit, bool again, Stream& stream);
  // The next hop of the ring that was started last, to rank + 1: `held` goes, which came by the hop before or is the
  // part, and what the previous rank holds comes.
  Ticket hop(View held, View next, Stream& stream);
  // gradients: of the part of rank - distance, which gets them; mine: gets those of this rank's from rank + distance.
  Ticket hand_back(View gradients, View mine, int distance, const SequenceCut& cut, int unit, Stream& stream);

  // by_rank: [ranks, rows, w], what each rank gets of this rank's tokens; all: as above, of this rank's heads. From
  // the first to the second, or back. backward: which site.
  Ticket exchange(View by_rank, View all, bool to_all, const SequenceCut& cut, int unit, bool backward, Stream& stream);

 private:
  std::span<const int64_t> bounds(View part, const SequenceCut& cut);  // in elements, until the next call
  MessageKey forward_key(int unit) const { return MessageKey::of_unit(unit, forward_rules_); }
  MessageKey backward_key(int unit) const { return MessageKey::of_unit(unit, backward_rules_); }

  Channel forward_, backward_;
  std::vector<int> forward_rules_, backward_rules_;
  std::vector<int64_t> bounds_, even_;
  RingMessage ring_;
  bool ring_backward_ = false;
};

}  // namespace thinwire
