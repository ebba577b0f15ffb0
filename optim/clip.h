// Gradient clipping by global norm, by the rule of the field.
#pragma once

namespace thinwire {

// Factor for every gradient: max_norm / (norm + 1e-6) if that is below 1, else 1. max_norm 0 switches clipping off.
inline double clip_coefficient(double norm, double max_norm) {
  if (max_norm <= 0.0) return 1.0;
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient < 1.0 ? coefficient : 1.0;
}

}  // namespace thinwire
