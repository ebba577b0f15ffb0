// Numbers of a model's units: the parameters that are gathered, reduced and published at once.
//
// 0 = word embedding; for each block its attention with the norm in front, then its mlp with the norm in front; the
// head (final norm and, untied, the head matrix); learned positions (a unit of their own, because a tied word embedding
// lives on two stages and they do not). Halves of blocks, because nothing can hide what the first unit of a forward
// pass is waited for and what the last one of a backward pass leaves to be sent: the smaller they are the better.
#pragma once

#include <cstdint>

namespace thinwire {

inline constexpr int kEmbeddingUnit = 0;
inline int attention_unit(int64_t layer) {
  return static_cast<int>(2 * layer) + 1;
}
inline int mlp_unit(int64_t layer) {
  return static_cast<int>(2 * layer) + 2;
}
inline int head_unit(int64_t layers) {
  return static_cast<int>(2 * layers) + 1;
}
inline int position_unit(int64_t layers) {
  return static_cast<int>(2 * layers) + 2;
}
// The block that the unit is a half of; -1: of none.
inline int64_t layer_of_unit(int unit, int64_t layers) {
  return unit >= 1 && unit <= 2 * layers ? (unit - 1) / 2 : -1;
}

}  // namespace thinwire
