// Work that shares resources: bytes on links, and threads on cores. Rates are max-min fair at every moment.
#pragma once

#include <cstdint>
#include <vector>

namespace thinwire {

// Time in seconds, amounts in what a resource gives per second. Nothing happens by itself: the caller asks when the
// next work ends, moves the pool there, and takes what has ended.
class FairPool {
 public:
  struct Use {
    int resource = 0;
    double share = 1.0;  // of the resource, per unit of the work's rate
  };

  // By what factors a work takes longer: with every resource in full use (1 while one unit is, linear between), and
  // where it shares a resource that is short with another work whose `crowded` is above 1.
  struct Slowdown {
    double loaded = 1.0, crowded = 1.0;
  };

  // burst: amount beyond the capacity that passes at `peak` after a pause in which less was used: a token bucket, full
  // at first.
  int add_resource(double capacity, double burst = 0.0, double peak = 0.0);
  void set_capacity(double now, int resource, double capacity);
  // Work of `amount` at a rate of at most `limit`. The rates of all works grow together, each `weight` times as fast,
  // until a resource of theirs is used up. uses: at most kMostUses; none: at `limit`. owner: what advance() says has
  // ended. Returns the number by which rate() knows it until then.
  static constexpr int kMostUses = 6;
  int add(double now, double amount, double limit, double weight, const Use* uses, int count, int owner = 0,
          const Slowdown& slowdown = {1.0, 1.0});

  // When the first work ends, or infinity.
  double next();
  // Moves to `now` (not beyond next()). The owners of what has ended then, in order of its number.
  std::vector<int> advance(double now);
  double rate(int work);    // now
  bool full(int resource);  // nothing of it is left

 private:
  struct Work {
    double amount = 0.0, left = 0.0, limit = 0.0, weight = 1.0, rate = 0.0;
    Slowdown slowdown;
    Use uses[kMostUses];
    int count = 0, owner = 0;
    bool fixed = false;
  };
  struct Bucket {
    double size = 0.0, left = 0.0, peak = 0.0, used = 0.0;
    bool open() const { return left > kLeastBurst; }
  };
  static constexpr double kLeastBurst = 1500.0;  // less than a packet does not leave
  void settle(double now);
  void share_out();
  void slow_down();

  std::vector<double> capacity_, free_, demand_;
  std::vector<Bucket> buckets_;  // by resource
  std::vector<Work> works_;
  std::vector<int> unused_, order_;
  std::vector<int> crowd_;  // crowded works that want more of a resource
  double now_ = 0.0, next_ = 0.0;
  bool stale_ = true, slows_ = false;
};

}  // namespace thinwire
