// Medians of steps, votes, and what they say of a rank beside its like.
#include "engine/run/train/straggler_watch.h"

#include <algorithm>
#include <utility>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

constexpr double kLongWait = 0.25;       // of a step: what a vote needs
constexpr double kLeastExcessMs = 20.0;  // steps of a few milliseconds are disturbed by anything that runs beside them

// The lower one of an even number: half of the ranks are no reason to call the other half slow.
double lower_median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

const StragglerRecord* same_in(const std::vector<StragglerRecord>& list, const StragglerRecord& r) {
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](const StragglerRecord& o) { return o.rank == r.rank && o.waits == r.waits; });
  return found == list.end() ? nullptr : &*found;
}

}  // namespace

std::vector<StragglerRecord> judge_times(const std::vector<RankTimes>& times, const std::vector<int>& kinds,
                                         double ratio, int64_t steps) {
  std::vector<StragglerRecord> records;
  for (size_t r = 0; r < times.size(); ++r) {
    std::vector<double> compute, awaited;
    for (size_t o = 0; o < times.size(); ++o) {
      if (kinds[o] != kinds[r]) continue;
      compute.push_back(times[o].compute_ms);
      awaited.push_back(times[o].awaited);
    }
    if (compute.size() < 2) continue;
    const double usual = lower_median(std::move(compute)), votes = lower_median(std::move(awaited));
    StragglerRecord record;
    record.rank = static_cast<int>(r);
    if (times[r].compute_ms >= ratio * usual && times[r].compute_ms - usual >= kLeastExcessMs) {
      record.ratio = times[r].compute_ms / std::max(usual, 0.01);
      records.push_back(record);
    } else if (times[r].awaited >= 0.5 * static_cast<double>(steps) && times[r].awaited >= 2.0 * votes) {
      record.waits = true;
      record.ratio = std::min(1.0, times[r].awaited / static_cast<double>(steps));
      records.push_back(record);
    }
  }
  return records;
}

StragglerWatch::StragglerWatch(int64_t interval, double ratio, std::vector<int> kinds, std::vector<std::string> hosts,
                               Control& control)
    : interval_(kinds.size() < 2 ? 0 : interval),
      ratio_(ratio),
      kinds_(std::move(kinds)),
      hosts_(std::move(hosts)),
      control_(&control),
      votes_(kinds_.size()) {}

bool StragglerWatch::after_step(int64_t step, double step_ms, double wait_ms, const std::vector<int64_t>& waited_ns,
                                Report& report) {
  if (interval_ == 0) return false;
  if (compute_ms_.empty()) first_step_ = step;
  compute_ms_.push_back(std::max(0.0, step_ms - wait_ms));
  wait_ms_.push_back(wait_ms);
  const auto most = std::max_element(waited_ns.begin(), waited_ns.end());
  if (static_cast<double>(*most) * 1e-6 >= std::max(kLongWait * step_ms, kLeastExcessMs))
    votes_[static_cast<size_t>(most - waited_ns.begin())] += 1.0;
  if (step % interval_ != 0) return false;
  const auto steps = static_cast<int64_t>(compute_ms_.size());
  std::vector<StragglerRecord> suspected = judge_times(gather(), kinds_, ratio_, steps);
  report = {};
  for (StragglerRecord& r : suspected) {
    if (static_cast<size_t>(r.rank) < hosts_.size()) r.host = hosts_[static_cast<size_t>(r.rank)];
    const StragglerRecord* const before = same_in(suspected_, r);
    r.since = before != nullptr ? before->since : first_step_ - 1;
    if (before == nullptr) continue;
    report.named.push_back(r);
    if (same_in(named_, r) == nullptr) report.changes.push_back(r);
  }
  for (StragglerRecord r : named_) {
    if (same_in(report.named, r) != nullptr) continue;
    r.ratio = 0.0;
    report.changes.push_back(r);
  }
  suspected_ = std::move(suspected), named_ = report.named;
  return true;
}

std::vector<RankTimes> StragglerWatch::gather() {
  const size_t n = kinds_.size();
  std::vector<double> all(3 * n);
  all[2 * static_cast<size_t>(control_->rank())] = lower_median(compute_ms_);
  all[2 * static_cast<size_t>(control_->rank()) + 1] = lower_median(wait_ms_);
  std::copy(votes_.begin(), votes_.end(), all.begin() + static_cast<ptrdiff_t>(2 * n));
  compute_ms_.clear(), wait_ms_.clear();
  std::fill(votes_.begin(), votes_.end(), 0.0);
  HostStream host;
  control_->sum(View(all.data(), DType::f64, {static_cast<int64_t>(all.size())}), host).wait(host);
  std::vector<RankTimes> times(n);
  for (size_t r = 0; r < n; ++r) times[r] = {all[2 * r], all[2 * r + 1], all[2 * n + r]};
  return times;
}

}  // namespace thinwire
