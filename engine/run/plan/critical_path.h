// The critical path of a simulated step: back from its end, each time to what was waited for last, on any rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace thinwire {

// In this order: compute; packing and sending at an issue; moving messages, by the waiting or the progress thread;
// waiting for the next poll; on the wire.
enum class PathKind : uint8_t { kCompute, kIssue, kMove, kNotice, kWire, kCount };

struct PathPart {
  int actor = 0;  // kWire: the sender
  PathKind kind = PathKind::kCompute;
  int operation = -1;  // of that actor; -1: none (kCompute)
  double from = 0.0, to = 0.0;
};

// Written by the simulation in the order of events. Operations and groups (of messages) have the simulation's numbers.
class PathLog {
 public:
  void open(size_t actors, size_t groups) { marks_.resize(actors), groups_.resize(groups); }
  // The compute thread of an actor computed, or waited for an operation.
  void computed(int actor, double from, double to) { mark(actor, kThread, MarkKind::kComputed, kThread, from, to); }
  void waited(int actor, int operation, double to) { mark(actor, kThread, MarkKind::kWaited, operation, to, to); }
  // An operation was issued; made ready by a group that arrived or left; given its turn by operation `before`; worked
  // on.
  void issued(int actor, int operation, double when) { mark(actor, operation, MarkKind::kIssued, -1, when, when); }
  void ready(int actor, int operation, int group, double when) {
    mark(actor, operation, MarkKind::kReady, group, when, when);
  }
  void turn(int actor, int operation, int before, double when) {
    mark(actor, operation, MarkKind::kTurn, before, when, when);
  }
  void worked(int actor, int operation, bool by_compute, double from, double to) {
    mark(actor, operation, by_compute ? MarkKind::kPacked : MarkKind::kMoved, -1, from, to);
  }
  // A group may leave because of what this operation did; it moves after group `before` (-1: at once).
  void started(int group, int actor, int operation, int before, double when) {
    groups_[at(group)] = {++number_, actor, operation, before, when};
  }

  int64_t lines() const { return number_; }  // written so far
  // The path from `begin` to `end`, without gaps, that ends on the compute thread of `actor`. Only the first `lines`
  // lines count; the others were written after `end`.
  std::vector<PathPart> path(int actor, double begin, double end, int64_t lines) const;

 private:
  static constexpr int kThread = -1;  // the compute thread, where an operation could stand
  enum class MarkKind : uint8_t { kComputed, kWaited, kIssued, kReady, kTurn, kPacked, kMoved };
  struct Mark {
    int64_t number;
    MarkKind kind;
    int other;
    double from, to;
  };
  struct Group {
    int64_t number = 0;
    int actor = -1, operation = kThread, before = -1;
    double when = 0.0;
  };
  static size_t at(int i) { return static_cast<size_t>(i); }
  static size_t place_of(int operation) { return at(operation + 1); }  // in marks_ of its actor
  void mark(int actor, int operation, MarkKind kind, int other, double from, double to);

  int64_t number_ = 0;
  std::vector<std::vector<std::vector<Mark>>> marks_;  // by actor: of its compute thread, of operation 0, 1, ...
  std::vector<Group> groups_;
};

}  // namespace thinwire
