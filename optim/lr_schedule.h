// Learning-rate schedules: constant, linear, cosine, inverse square root, warm-up-stable-decay; with the two
// conventions of Megatron and NeoX.
#pragma once

#include <cstdint>

#include "optim/optim_config.h"

namespace thinwire {

// The rate of the step that begins after `finished` steps, or samples where the schedule counts those (by_samples).
// Skipped steps do not count.
//
// With w warm-up and D decay steps, and t the number of steps finished before this one:
//   warm-up       t <= w, Megatron: init + (lr - init) * t / w
//                 t <= w, NeoX:     lr * max(1, t) / w, so that steps 1 and 2 both use lr / w; by samples step 1 alone
//   constant      lr, also after D
//   after D       min_lr for t > D, in all schedules below
//   inverse-sqrt  max(min_lr, lr * sqrt(max(w, 1) / max(t, 1)))
//   linear        Megatron: min + (lr - min) * (1 - x),  x = (t - w) / (D - w)
//                 NeoX:     max(min_lr, lr * (1 - x)): it heads for zero and stops at min_lr
//   cosine        min + (lr - min) * (1 + cos(pi x)) / 2
//   WSD           lr until D - n, n = wsd_decay_iters; then min + (lr - min) * f(z),  z = (t - (D - n)) / n,
//                 f: linear 1 - z,  cosine (1 + cos(pi z)) / 2,  exponential 2 * 0.5^z - 1,  minus-sqrt 1 - sqrt(z)
// Source: Megatron-LM's optimizer_param_scheduler and GPT-NeoX's learning_rates, re-derived from the formulas above.
double learning_rate(const OptimConfig& config, int64_t finished);

}  // namespace thinwire
