// The walk back through the log.
#include "engine/run/plan/critical_path.h"

#include <algorithm>

namespace thinwire {

void PathLog::mark(int actor, int operation, MarkKind kind, int other, double from, double to) {
  auto& all = operations_[at(actor)];
  if (all.size() <= at(operation)) all.resize(at(operation) + 1);
  all[at(operation)].push_back({++number_, kind, other, from, to});
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
  const auto last_of = [&](const auto& list) {
    const auto end_of = std::partition_point(list.begin(), list.end(), [&](const auto& m) { return m.number < limit; });
    return end_of == list.begin() ? nullptr : &*(end_of - 1);
  };
  int operation = -1;  // on whose way it is; -1: the compute thread
  while (t > begin) {
    if (operation < 0) {
      const Stretch* const s = last_of(threads_[at(actor)]);
      if (s == nullptr) break;
      limit = s->number;
      operation = s->waited;
      if (operation < 0) back_to(actor, PathKind::kCompute, -1, s->from);
      continue;
    }
    const Mark* const m = last_of(operations_[at(actor)][at(operation)]);
    if (m == nullptr) break;
    limit = m->number;
    const int mine = operation;
    switch (m->kind) {
      case MarkKind::kIssued:
        operation = -1;
        break;
      case MarkKind::kPacked:
      case MarkKind::kMoved:
        back_to(actor, PathKind::kNotice, mine, m->to);
        back_to(actor, m->kind == MarkKind::kPacked ? PathKind::kIssue : PathKind::kMove, mine, m->from);
        continue;
      case MarkKind::kTurn:
        operation = m->other;
        break;
      case MarkKind::kReady:
        back_to(actor, PathKind::kNotice, mine, m->to);
        const Group* g = &groups_[at(m->other)];
        while (g->before >= 0) g = &groups_[at(g->before)];
        actor = g->actor, operation = g->operation, limit = g->number;
        back_to(actor, PathKind::kWire, operation, g->when);
        continue;
    }
    back_to(actor, PathKind::kNotice, mine, m->to);
  }
  if (t > begin) back_to(actor, PathKind::kNotice, operation, begin);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace thinwire
