// Medians of steps, votes, and what they say of a rank beside its like.
#include "engine/run/train/straggler_watch.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
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

// Of doubles, or of what is made of nothing else; between ranks of one build.
template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <typename T>
std::vector<T> values_in(const std::string& bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

const StragglerRecord* same_in(const std::vector<StragglerRecord>& list, const StragglerRecord& r) {
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](const StragglerRecord& o) { return o.rank == r.rank && o.waits == r.waits; });
  return found == list.end() ? nullptr : &*found;
}

}  // namespace

std::vector<StragglerRecord> judge_times(const std::vector<RankTimes>& times, const std::vector<int>& kinds,
                                         double ratio, int64_t steps) {
  struct Kind {
    std::vector<double> compute, awaited;
    double usual = 0.0, votes = 0.0;
  };
  std::map<int, Kind> all;
  for (size_t r = 0; r < times.size(); ++r) {
    all[kinds[r]].compute.push_back(times[r].compute_ms);
    all[kinds[r]].awaited.push_back(times[r].awaited);
  }
  for (auto& [number, kind] : all) kind.usual = lower_median(kind.compute), kind.votes = lower_median(kind.awaited);
  std::vector<StragglerRecord> records;
  for (size_t r = 0; r < times.size(); ++r) {
    const Kind& kind = all[kinds[r]];
    if (kind.compute.size() < 2) continue;
    const double usual = kind.usual, votes = kind.votes;
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

std::optional<StragglerWatch::Report> StragglerWatch::after_step(int64_t step, double step_ms, double wait_ms,
                                                                 const std::vector<int64_t>& waited_ns) {
  if (interval_ == 0) return std::nullopt;
  if (compute_ms_.empty()) first_step_ = step;
  compute_ms_.push_back(std::max(0.0, step_ms - wait_ms));
  wait_ms_.push_back(wait_ms);
  const auto most = std::max_element(waited_ns.begin(), waited_ns.end());
  if (static_cast<double>(*most) * 1e-6 >= std::max(kLongWait * step_ms, kLeastExcessMs))
    votes_[static_cast<size_t>(most - waited_ns.begin())] += 1.0;
  if (step % interval_ != 0) return std::nullopt;
  const auto steps = static_cast<int64_t>(compute_ms_.size());
  std::vector<StragglerRecord> suspected = judge_times(gather(), kinds_, ratio_, steps);
  Report report;
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
  return report;
}

// By way of rank 0. As a sum, a vector as long as the job has ranks would be too long for doubling steps, and a direct
// exchange would open connections from a fifth of the ranks to all.
std::vector<RankTimes> StragglerWatch::gather() {
  const size_t n = kinds_.size();
  // Behind the medians: each rank that this one votes for, and how often.
  std::vector<double> mine = {lower_median(compute_ms_), lower_median(wait_ms_)};
  for (size_t r = 0; r < n; ++r)
    if (votes_[r] > 0.0) mine.insert(mine.end(), {static_cast<double>(r), votes_[r]});
  compute_ms_.clear(), wait_ms_.clear();
  std::fill(votes_.begin(), votes_.end(), 0.0);
  const std::vector<std::string> of_ranks = control_->collect(bytes_of(mine));
  std::vector<RankTimes> times(n);
  for (size_t from = 0; from < of_ranks.size(); ++from) {
    const auto told = values_in<double>(of_ranks[from]);
    times[from].compute_ms = told.at(0), times[from].wait_ms = told.at(1);
    for (size_t i = 2; i + 1 < told.size(); i += 2) times.at(static_cast<size_t>(told[i])).awaited += told[i + 1];
  }
  return values_in<RankTimes>(control_->share(bytes_of(times)));
}

}  // namespace thinwire
