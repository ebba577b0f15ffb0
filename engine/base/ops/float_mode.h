// How a thread's vector arithmetic treats subnormal numbers: kept, or taken and given as zero.
#pragma once

#include <xmmintrin.h>

namespace thinwire {

// A thread's mode is its own: the threads of an OpenMP team do not take over the caller's. Whoever opens a parallel
// region reads the mode before it and sets it on every thread inside.
inline unsigned float_mode() {
  return _mm_getcsr();
}
inline void set_float_mode(unsigned mode) {
  _mm_setcsr(mode);
}

// The calling thread has `mode` until this object ends.
class FloatModeScope {
 public:
  explicit FloatModeScope(unsigned mode) : before_(float_mode()) { set_float_mode(mode); }
  ~FloatModeScope() { set_float_mode(before_); }
  FloatModeScope(const FloatModeScope&) = delete;
  FloatModeScope& operator=(const FloatModeScope&) = delete;

 private:
  unsigned before_;
};

// CPUs take many times longer for an operation with a subnormal number than for any other, and training makes more of
// them as attention grows sharp: without this steps take longer and longer.
class SubnormalsAreZero : public FloatModeScope {
 public:
  SubnormalsAreZero() : FloatModeScope(float_mode() | kFlushToZero | kDenormalsAreZero) {}

 private:
  static constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
};

}  // namespace thinwire
