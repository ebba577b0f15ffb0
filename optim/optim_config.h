// The optimizer's numbers: its kind, learning-rate schedule, clipping, loss scale.
#pragma once

#include <cstdint>

namespace thinwire {

enum class OptimizerKind { kAdamW, kSgd };
enum class LrDecay { kConstant, kLinear, kCosine, kInverseSqrt, kWsd };
enum class WsdDecay { kLinear, kCosine, kExponential, kMinusSqrt };
// Which step sees which learning rate: NeoX gives steps 1 and 2 lr/warmup and decays linearly towards zero until
// min_lr, Megatron starts at warmup_init (0) and decays linearly towards min_lr.
enum class WarmupConvention { kNeox, kMegatron };

struct OptimConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double lr = 0.0;
  double min_lr = 0.0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double momentum = 0.0;  // SGD
  double weight_decay = 0.1;
  double clip = 1.0;  // global L2 norm; 0 switches clipping off

  LrDecay decay = LrDecay::kLinear;
  bool by_samples = false;   // the numbers of iterations below are numbers of samples
  int64_t decay_iters = 0;   // defaults to train_iters
  int64_t warmup_iters = 0;  // resolved from the fraction `warmup` of decay_iters or lr_warmup_iters
  double warmup_init = 0.0;
  WarmupConvention warmup_convention = WarmupConvention::kNeox;
  WsdDecay wsd_decay = WsdDecay::kLinear;
  int64_t wsd_decay_iters = 0;  // length of the final decay

  // fp16 loss scale
  bool dynamic_loss_scale = true;
  double loss_scale = 1.0;  // static value, or the initial one
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  double min_loss_scale = 1.0;
  // Law 8: consecutive skipped (non-finite) steps before the run stops with code 76.
  int64_t non_finite_budget = 50;
};

}  // namespace thinwire
