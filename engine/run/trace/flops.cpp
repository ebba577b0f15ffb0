// The sums behind flops.h, layer part by layer part.
#include "engine/run/trace/flops.h"

#include <algorithm>

namespace thinwire {
namespace {

// Forward operations per token.
struct Forward {
  double projections = 0.0;  // qkv, output and feed-forward products of all blocks
  double attention = 0.0;    // scores and weighted values of all blocks, the full square, or the window's full width
  double seen = 0.0;         // the same for the keys that tokens see
  double head = 0.0;
};

Forward forward_flops(const ModelConfig& c) {
  const double layers = static_cast<double>(c.layers);
  const double hidden = static_cast<double>(c.hidden);
  const double attention_width = static_cast<double>(c.attention_width());
  Forward f;
  const double qkv = 2.0 * hidden * static_cast<double>(c.qkv_width());
  const double out = 2.0 * attention_width * hidden;
  const double mlp = 2.0 * hidden * static_cast<double>(c.ffn_in_width()) + 2.0 * static_cast<double>(c.ffn) * hidden;
  f.projections = layers * (qkv + out + mlp);
  const double length = static_cast<double>(c.seq_length),
               width = c.window == kNoWindow ? length : std::min(length, static_cast<double>(c.window) + 1.0);
  f.attention = layers * 4.0 * width * attention_width;
  f.seen = f.attention * (1.0 - 0.5 * width / length);  // the first tokens see less than a window
  f.head = 2.0 * hidden * static_cast<double>(c.padded_vocab);
  return f;
}

}  // namespace

double model_flops_per_token(const ModelConfig& config) {
  const Forward f = forward_flops(config);
  return 3.0 * (f.projections + f.seen + f.head);
}

double full_attention_flops_per_token(const ModelConfig& config) {
  const Forward f = forward_flops(config);
  return 3.0 * (f.projections + f.attention + f.head);
}

double hardware_flops_per_token(const ModelConfig& config) {
  const Forward f = forward_flops(config);
  const double plain = 3.0 * (f.projections + f.attention + f.head);
  switch (config.recompute) {
    case Recompute::kNone:
      return plain;
    case Recompute::kSelective:
      return plain + f.attention;
    case Recompute::kFull:
      return plain + f.projections + f.attention;
  }
  return plain;
}

}  // namespace thinwire
