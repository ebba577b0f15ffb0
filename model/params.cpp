// Builds the parameter list from the architecture's numbers.
#include "model/params.h"

#include <cmath>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

class Builder {
 public:
  explicit Builder(const ModelConfig& config) : config_(config) {}

  void matrix(const std::string& name, int64_t rows, int64_t cols, TensorClass tensor_class, TpAxis axis,
              InitMethod init, int unit, int64_t valid_rows = -1) {
    ParamSpec p;
    p.name = name, p.rows = rows, p.cols = cols, p.tensor_class = tensor_class, p.tp_axis = axis, p.unit = unit;
    p.init = InitKind::kNormal;
    p.init_std = static_cast<float>(init_deviation(init, config_));
    p.decay = tensor_class != TensorClass::kEmbedding || config_.decay_all_matrices;
    p.valid_rows = valid_rows < 0 ? rows : valid_rows;
    push(p);
  }

  void vector(const std::string& name, int64_t count, TensorClass tensor_class, TpAxis axis, InitKind init, int unit) {
    ParamSpec p;
    p.name = name, p.rows = 1, p.cols = count, p.is_vector = true, p.tensor_class = tensor_class, p.tp_axis = axis,
    p.unit = unit;
    p.init = init;
    p.valid_rows = 1;
    push(p);
  }

  void norm(const std::string& prefix, int unit) {
    if (!config_.gain_norm) return;
    vector(prefix + ".weight", config_.hidden, TensorClass::kNorm, TpAxis::kNone, InitKind::kOne, unit);
    if (config_.bias_norm)
      vector(prefix + ".bias", config_.hidden, TensorClass::kNorm, TpAxis::kNone, InitKind::kZero, unit);
  }

  ParamList take() { return std::move(list_); }

 private:
  void push(ParamSpec& p) {
    p.id = static_cast<uint32_t>(list_.size());
    p.local = {{0, p.rows, 0, p.cols}};
    list_.push_back(p);
  }

  const ModelConfig& config_;
  ParamList list_;
};

}  // namespace

double init_deviation(InitMethod method, const ModelConfig& config) {
  const double layers = static_cast<double>(config.layers), hidden = static_cast<double>(config.hidden);
  switch (method) {
    case InitMethod::kNormal:
      return config.init_std;
    case InitMethod::kScaledNormal:
      return config.init_std / std::sqrt(2.0 * layers);
    case InitMethod::kSmallInit:
      return std::sqrt(2.0 / (5.0 * hidden));
    case InitMethod::kWangInit:
      return 2.0 / (layers * std::sqrt(hidden));
  }
  return 0.0;
}

ParamList list_parameters(const ModelConfig& c) {
  Builder b(c);
  b.matrix("embedding.word.weight", c.padded_vocab, c.hidden, TensorClass::kEmbedding, TpAxis::kVocab, c.init,
           kEmbeddingUnit, c.vocab);
  if (c.positions == PositionKind::kLearned) {
    b.matrix("embedding.position.weight", c.max_positions, c.hidden, TensorClass::kEmbedding, TpAxis::kNone, c.init,
             position_unit(c));
  }
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const std::string p = "layers." + std::to_string(layer) + ".";
    int unit = attention_unit(layer);
    b.norm(p + "norm1", unit);
    b.matrix(p + "attention.qkv.weight", c.qkv_width(), c.hidden, TensorClass::kAttention, TpAxis::kKvGroups, c.init,
             unit);
    if (c.bias_attention)
      b.vector(p + "attention.qkv.bias", c.qkv_width(), TensorClass::kBias, TpAxis::kKvGroups, InitKind::kZero, unit);
    b.matrix(p + "attention.out.weight", c.hidden, c.attention_width(), TensorClass::kAttention, TpAxis::kCols,
             c.output_init, unit);
    if (c.bias_attention)
      b.vector(p + "attention.out.bias", c.hidden, TensorClass::kBias, TpAxis::kNone, InitKind::kZero, unit);
    unit = mlp_unit(layer);
    b.norm(p + "norm2", unit);
    const TpAxis fc1_axis = c.activation == ActivationKind::kSwiglu ? TpAxis::kGateUp : TpAxis::kRows;
    b.matrix(p + "mlp.fc1.weight", c.ffn_in_width(), c.hidden, TensorClass::kMlp, fc1_axis, c.init, unit);
    if (c.bias_mlp) b.vector(p + "mlp.fc1.bias", c.ffn_in_width(), TensorClass::kBias, fc1_axis, InitKind::kZero, unit);
    b.matrix(p + "mlp.fc2.weight", c.hidden, c.ffn, TensorClass::kMlp, TpAxis::kCols, c.output_init, unit);
    if (c.bias_mlp) b.vector(p + "mlp.fc2.bias", c.hidden, TensorClass::kBias, TpAxis::kNone, InitKind::kZero, unit);
  }
  const int head = head_unit(c);
  b.norm("final_norm", head);
  if (!c.tied_head)
    b.matrix("head.weight", c.padded_vocab, c.hidden, TensorClass::kHead, TpAxis::kVocab, c.init, head, c.vocab);
  return b.take();
}

const ParamSpec& find_parameter(const ParamList& params, const std::string& name) {
  for (const ParamSpec& p : params) {
    if (p.name == name) return p;
  }
  check_failed(__FILE__, __LINE__, "parameter exists", name);
}

int64_t count_parameters(const ParamList& params, bool padded) {
  int64_t n = 0;
  for (const ParamSpec& p : params) n += padded ? p.count() : p.valid_rows * p.cols;
  return n;
}

}  // namespace thinwire
