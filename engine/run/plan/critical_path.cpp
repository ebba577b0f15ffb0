// Walks the log back from the end of a step, each time to the event that was waited for.
#include "engine/run/plan/critical_path.h"

#include <algorithm>

namespace thinwire {

void PathLog::mark(int actor, int operation, MarkKind kind, int other, double from, double to) {
  auto& of_actor = marks_[at(actor)];
  const size_t place = place_of(operation);
  if (of_actor.size() <= place) of_actor.resize(place + 1);
  of_actor[place].push_back({++number_, kind, other, from, to});
}

std::vector<PathPart> PathLog::path(int actor, double begin, double end, int64_t lines) const {
  std::vector<PathPart> parts;  // from the last to the first
  double t = end;               // where the path has got to, going back
  const auto back_to = [&](int a, PathKind kind, int op, double from) {
    from = std::max(from, begin);
    if (from < t) parts.push_back({a, kind, op, from, t});
    t = std::min(t, from);
  };
  int64_t limit = lines + 1;  // only marks with a smaller number have happened yet
  int operation = kThread;    // the path is at this operation of `actor`, or at its compute thread
  while (t > begin && place_of(operation) < marks_[at(actor)].size()) {
    const std::vector<Mark>& list = marks_[at(actor)][place_of(operation)];
    const auto later = std::partition_point(list.begin(), list.end(), [&](const Mark& m) { return m.number < limit; });
    if (later == list.begin()) break;
    const Mark& m = *(later - 1);
    limit = m.number;
    const int mine = operation;
    switch (m.kind) {
      case MarkKind::kComputed:
        back_to(actor, PathKind::kCompute, kThread, m.from);
        continue;
      case MarkKind::kWaited:
        operation = m.other;
        continue;
      case MarkKind::kIssued:
        operation = kThread;
        break;
      case MarkKind::kPacked:
      case MarkKind::kMoved:
        back_to(actor, PathKind::kNotice, mine, m.to);
        back_to(actor, m.kind == MarkKind::kPacked ? PathKind::kIssue : PathKind::kMove, mine, m.from);
        continue;
      case MarkKind::kTurn:
        operation = m.other;
        break;
      case MarkKind::kReady:
        back_to(actor, PathKind::kNotice, mine, m.to);
        const Group* g = &groups_[at(m.other)];
        while (g->before >= 0) g = &groups_[at(g->before)];  // to the group that found the connection free
        actor = g->actor, operation = g->operation, limit = g->number;
        back_to(actor, PathKind::kWire, operation, g->when);
        continue;
    }
    back_to(actor, PathKind::kNotice, mine, m.to);
  }
  if (t > begin) back_to(actor, PathKind::kNotice, operation, begin);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace thinwire
