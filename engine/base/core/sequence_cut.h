// Which tokens of a sequence a context-parallel rank holds: a run from the front and its mirror from the back, so that
// causal attention costs every rank the same.
#pragma once

#include <cstdint>

namespace thinwire {

// How ranks that share sequences do attention (cp_comm_type): all_gather, a2a, p2p.
enum class SequenceWay : uint8_t { kGather, kHeads, kRing };

// Whole sequences unless size > 1. Lengths need not divide: the 2 * size runs differ by at most one token. A rank's
// rows of a sample are its front run, then its back run.
struct SequenceCut {
  int64_t length = 0;  // of the whole sequence
  int rank = 0, size = 1;

  struct Run {
    int64_t first = 0, count = 0;  // tokens of the whole sequence
    int64_t row = 0;               // where they lie among the rank's own
  };
  bool whole() const { return size == 1; }
  Run front() const { return whole() ? Run{0, length, 0} : run(rank, 0); }
  Run back() const { return whole() ? Run{length, 0, length} : run(2 * size - 1 - rank, front().count); }
  int64_t count() const { return front().count + back().count; }
  // The fewest tokens that a rank has.
  int64_t least() const { return whole() ? length : length / (2 * size) * 2; }
  // And the most.
  int64_t most() const {
    int64_t most = 0;
    for (int r = 0; r < size; ++r) most = of(r).count() > most ? of(r).count() : most;
    return most;
  }
  // Of another rank of the group.
  SequenceCut of(int other) const { return {length, other, size}; }

 private:
  Run run(int64_t piece, int64_t row) const {
    const int64_t pieces = 2 * size, first = length * piece / pieces;
    return {first, length * (piece + 1) / pieces - first, row};
  }
};

}  // namespace thinwire
