// Wall time of the parts of a step, for metrics and reports.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <string_view>

#include "engine/base/device/stream.h"

namespace thinwire {

enum class StepPart { kData, kForward, kBackward, kOptimizer, kEvaluation, kCheckpoint, kCount };

inline std::string_view name_of(StepPart part) {
  constexpr std::string_view names[] = {"data", "forward", "backward", "optimizer", "evaluation", "checkpoint"};
  return names[static_cast<size_t>(part)];
}

class StepTimer {
 public:
  using Clock = std::chrono::steady_clock;

  // Adds the time until destruction to one part.
  class Scope {
   public:
    Scope(StepTimer& timer, StepPart part) : timer_(timer), part_(part), start_(Clock::now()) {}
    ~Scope() noexcept(false) {  // a device's error comes where it is waited for
      if (timer_.stream_ != nullptr && std::uncaught_exceptions() == 0) timer_.stream_->synchronize();
      timer_.ms_[static_cast<size_t>(part_)] +=
          std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StepTimer& timer_;
    StepPart part_;
    Clock::time_point start_;
  };

  // Parts last until what they queued there is done; else, on a GPU, until it is queued. (Not while a stream records.)
  void wait_for(Stream& stream) { stream_ = &stream; }
  Scope measure(StepPart part) { return Scope(*this, part); }
  double ms(StepPart part) const { return ms_[static_cast<size_t>(part)]; }
  void reset() { ms_.fill(0.0); }

 private:
  std::array<double, static_cast<size_t>(StepPart::kCount)> ms_{};
  Stream* stream_ = nullptr;
};

}  // namespace thinwire
