// The walk back through the log.
#include "engine/run/plan/critical_path.h"

#include <algorithm>

namespace thinwire {

void PathLog::mark(int actor, int operation, MarkKind kind, int other, double from, double to) {
  auto& all = marks_[at(actor)];
  if (all.size() <= at(operation + 1)) all.resize(at(operation + 1) + 1);
  all[at(operation + 1)].push_back({++number_, kind, other, from, to});
}

std::vector<PathPart> PathLog::path(int actor, double begin, double end, int64_t lines) const {
  std::vector<PathPart> parts;  // from the last to the first
  double t = end;
  const auto back_to = [&](int a, PathKind kind, int operation, double from) {
    from = std::max(from, begin);
    if (from < t) parts.push_back({a, kind, operation, from, t});
    t = std::min(t, from);
  };
  int64_t limit = lines + 1;  // what was written later has not happened yet
  int operation = kThread;    // on whose way it is
  while (t > begin && at(operation + 1) < marks_[at(actor)].size()) {
    const std::vector<Mark>& list = marks_[at(actor)][at(operation + 1)];
    const auto behind = std::partition_point(list.begin(), list.end(), [&](const Mark& m) { return m.number < limit; });
    if (behind == list.begin()) break;
    const Mark& m = *(behind - 1);
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
        while (g->before >= 0) g = &groups_[at(g->before)];
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
