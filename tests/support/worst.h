// The largest of several errors, NaN included: std::max(worst, NaN) is `worst`, and a test of it would pass.
#pragma once

#include <cmath>

namespace thinwire::test {

// The larger of the two; NaN once either is NaN.
inline double worse(double worst, double error) {
  return error <= worst || std::isnan(worst) ? worst : error;
}

}  // namespace thinwire::test
