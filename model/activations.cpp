// Names, shapes and keep levels of a block's activations, and the views of a slot.
#include "model/activations.h"

#include <map>

namespace thinwire {

std::vector<ActivationSpec> list_block_activations(const ModelConfig& c, const BatchShape& s) {
  const int64_t n = s.tokens();
  const bool centred = c.norm == NormKind::kLayerNorm;
  const DType t = c.dtype;
  std::vector<ActivationSpec> list = {
      {"x_in", t, n, c.hidden, Recompute::kFull},
      {"norm1_out", t, n, c.hidden, Recompute::kNone},
      {"rstd1", DType::f32, n, 1, Recompute::kSelective},
      {"qkv", t, n, c.qkv_width(), Recompute::kSelective},
      {"attention_out", t, n, c.attention_width(), Recompute::kSelective},
      {"lse", DType::f32, s.batch * c.heads, s.length, Recompute::kSelective},
      {"norm2_out", t, n, c.hidden, Recompute::kNone},
      {"rstd2", DType::f32, n, 1, Recompute::kSelective},
      {"mlp_in", t, n, c.ffn_in_width(), Recompute::kSelective},
      {"mlp_act", t, n, c.ffn, Recompute::kNone},
  };
  if (centred) {
    list.push_back({"mean1", DType::f32, n, 1, Recompute::kSelective});
    list.push_back({"mean2", DType::f32, n, 1, Recompute::kSelective});
  }
  if (!c.parallel_residual) list.push_back({"x_mid", t, n, c.hidden, Recompute::kSelective});
  return list;
}

std::vector<BlockActivations> take_block_activations(const ModelConfig& c, const BatchShape& shape, int64_t blocks,
                                                     Arena& arena) {
  std::map<std::string, View BlockActivations::*> field = {{"x_in", &BlockActivations::x_in},
                                                           {"norm1_out", &BlockActivations::norm1_out},
                                                           {"mean1", &BlockActivations::mean1},
                                                           {"rstd1", &BlockActivations::rstd1},
                                                           {"qkv", &BlockActivations::qkv},
                                                           {"attention_out", &BlockActivations::attention_out},
                                                           {"lse", &BlockActivations::lse},
                                                           {"x_mid", &BlockActivations::x_mid},
                                                           {"norm2_out", &BlockActivations::norm2_out},
                                                           {"mean2", &BlockActivations::mean2},
                                                           {"rstd2", &BlockActivations::rstd2},
                                                           {"mlp_in", &BlockActivations::mlp_in},
                                                           {"mlp_act", &BlockActivations::mlp_act}};
  std::vector<BlockActivations> slots(static_cast<size_t>(blocks));
  for (const ActivationSpec& spec : list_block_activations(c, shape)) {
    const bool kept = c.recompute <= spec.kept_up_to;
    View shared;
    for (BlockActivations& slot : slots) {
      if (kept || !shared) shared = arena.take(MemoryCategory::kActivations, spec.dtype, {spec.rows, spec.cols});
      slot.*field.at(spec.name) = shared;
    }
  }
  return slots;
}

}  // namespace thinwire
