// Progressive filling: all rates grow together; who meets a limit or an empty resource stays where it is.
#include "engine/run/plan/fair_pool.h"

#include <algorithm>
#include <limits>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kOver = 1e-9;  // of an amount: rounding

}  // namespace

int FairPool::add_resource(double capacity, double burst, double peak) {
  capacity_.push_back(capacity);
  buckets_.push_back({burst, burst, std::max(peak, capacity), 0.0});
  return static_cast<int>(capacity_.size()) - 1;
}

void FairPool::set_capacity(double now, int resource, double capacity) {
  settle(now);
  capacity_[static_cast<size_t>(resource)] = capacity;
  stale_ = true;
}

int FairPool::add(double now, double amount, double limit, double weight, const Use* uses, int count, int owner,
                  const Slowdown& slowdown) {
  TW_CHECK(count <= kMostUses && amount >= 0.0 && weight > 0.0);
  settle(now);
  int number = static_cast<int>(works_.size());
  if (unused_.empty()) {
    works_.emplace_back();
  } else {
    number = unused_.back();
    unused_.pop_back();
  }
  Work& work = works_[static_cast<size_t>(number)];
  work = Work();
  work.amount = work.left = amount;
  work.limit = limit;
  work.weight = weight;
  work.count = count;
  work.owner = owner;
  work.slowdown = slowdown;
  slows_ = slows_ || slowdown.loaded > 1.0 || slowdown.crowded > 1.0;
  std::copy_n(uses, count, work.uses);
  order_.push_back(number);
  stale_ = true;
  return number;
}

void FairPool::settle(double now) {
  if (now > now_) {
    if (stale_) share_out();
    for (int number : order_) {
      Work& work = works_[static_cast<size_t>(number)];
      work.left = std::max(0.0, work.left - work.rate * (now - now_));
    }
    for (size_t r = 0; r < buckets_.size(); ++r) {
      Bucket& b = buckets_[r];
      if (b.size > 0.0) b.left = std::clamp(b.left + (capacity_[r] - b.used) * (now - now_), 0.0, b.size);
    }
    now_ = now;
  }
}

void FairPool::share_out() {
  stale_ = false;
  free_.resize(capacity_.size());
  const auto given = [&](size_t r) { return buckets_[r].open() ? buckets_[r].peak : capacity_[r]; };
  for (size_t r = 0; r < buckets_.size(); ++r) free_[r] = given(r);
  for (int number : order_)
    works_[static_cast<size_t>(number)].fixed = false, works_[static_cast<size_t>(number)].rate = 0.0;
  size_t open = order_.size();
  double level = 0.0;  // rate per weight that all open works have reached
  while (open > 0) {
    demand_.assign(capacity_.size(), 0.0);
    double step = kNever;
    for (int number : order_) {
      const Work& work = works_[static_cast<size_t>(number)];
      if (work.fixed) continue;
      step = std::min(step, work.limit / work.weight - level);
      for (int u = 0; u < work.count; ++u)
        demand_[static_cast<size_t>(work.uses[u].resource)] += work.weight * work.uses[u].share;
    }
    for (size_t r = 0; r < capacity_.size(); ++r)
      if (demand_[r] > 0.0) step = std::min(step, free_[r] / demand_[r]);
    if (step == kNever) {  // nothing holds them
      for (int number : order_) {
        Work& work = works_[static_cast<size_t>(number)];
        if (!work.fixed) work.fixed = true, work.rate = kNever;
      }
      break;
    }
    step = std::max(step, 0.0);
    level += step;
    for (size_t r = 0; r < capacity_.size(); ++r) free_[r] = std::max(0.0, free_[r] - step * demand_[r]);
    size_t fixed = 0;
    for (int number : order_) {
      Work& work = works_[static_cast<size_t>(number)];
      if (work.fixed) continue;
      bool stops = level * work.weight >= work.limit * (1.0 - 1e-12);
      for (int u = 0; u < work.count && !stops; ++u) {
        const auto r = static_cast<size_t>(work.uses[u].resource);
        stops = work.uses[u].share > 0.0 && free_[r] <= 1e-12 * capacity_[r];
      }
      if (stops) work.fixed = true, work.rate = level * work.weight, ++fixed;
    }
    if (fixed == 0) {  // rounding: the nearest one stops
      for (int number : order_) {
        Work& work = works_[static_cast<size_t>(number)];
        if (!work.fixed) work.fixed = true, work.rate = level * work.weight, ++fixed;
      }
    }
    open -= fixed;
  }
  slow_down();
  next_ = kNever;
  for (size_t r = 0; r < buckets_.size(); ++r) {
    Bucket& b = buckets_[r];
    b.used = given(r) - free_[r];
    if (b.open() && b.used > capacity_[r])
      next_ = std::min(next_, now_ + (b.left - 0.9 * kLeastBurst) / (b.used - capacity_[r]));
  }
  for (int number : order_) {
    const Work& work = works_[static_cast<size_t>(number)];
    if (work.left <= 0.0 || work.rate == kNever) {
      next_ = now_;
    } else if (work.rate > 0.0) {
      next_ = std::min(next_, now_ + work.left / work.rate);
    }
  }
}

void FairPool::slow_down() {
  if (!slows_) return;
  double all = 0.0, busy = 0.0;
  for (size_t r = 0; r < capacity_.size(); ++r) all += capacity_[r], busy += capacity_[r] - free_[r];
  const double part = all > 1.0 ? std::clamp((busy - 1.0) / (all - 1.0), 0.0, 1.0) : 0.0;
  crowd_.assign(capacity_.size(), 0);
  const auto each_crowded = [&](const auto& what) {
    for (int number : order_) {
      Work& work = works_[static_cast<size_t>(number)];
      if (work.slowdown.crowded <= 1.0 || work.rate >= work.limit * (1.0 - 1e-9)) continue;
      for (int u = 0; u < work.count; ++u) what(work, static_cast<size_t>(work.uses[u].resource));
    }
  };
  each_crowded([&](Work&, size_t r) { ++crowd_[r]; });
  each_crowded([&](Work& work, size_t r) {
    if (crowd_[r] > 1) work.rate /= work.slowdown.crowded;
  });
  for (int number : order_) {
    Work& work = works_[static_cast<size_t>(number)];
    work.rate /= 1.0 + (work.slowdown.loaded - 1.0) * part;
  }
}

double FairPool::next() {
  if (order_.empty()) return kNever;
  if (stale_) share_out();
  return next_;
}

double FairPool::rate(int work) {
  if (stale_) share_out();
  return works_[static_cast<size_t>(work)].rate;
}

bool FairPool::full(int resource) {
  if (stale_) share_out();
  return free_[static_cast<size_t>(resource)] <= 1e-9 * capacity_[static_cast<size_t>(resource)];
}

std::vector<int> FairPool::advance(double now) {
  std::vector<int> ended;
  const double due = next();
  settle(now);
  if (due > now) return ended;
  for (int number : order_) {
    Work& work = works_[static_cast<size_t>(number)];
    const bool over = work.rate == kNever || work.left <= kOver * work.amount ||
                      (work.rate > 0.0 && now + work.left / work.rate <= now);
    if (over) ended.push_back(number);
  }
  std::sort(ended.begin(), ended.end());
  for (int& number : ended) {
    std::erase(order_, number);
    unused_.push_back(number);
    number = works_[static_cast<size_t>(number)].owner;
  }
  stale_ = true;
  return ended;
}

}  // namespace thinwire
