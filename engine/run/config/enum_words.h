// The words of enumerations: how keys, rules and the model of a checkpoint spell their values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "engine/base/core/check.h"
#include "engine/run/config/run_config.h"

namespace thinwire {

// Of each enumeration, in the order of its enumerators.
struct EnumWords {
  using List = std::vector<std::string>;
  static List of(PositionKind) { return {"learned", "rotary", "none"}; }
  static List of(NormKind) { return {"layernorm", "rmsnorm"}; }
  static List of(ActivationKind) { return {"gelu_tanh", "gelu", "swiglu"}; }
  static List of(InitMethod) { return {"normal", "scaled_normal", "small_init", "wang_init"}; }
  static List of(Recompute) { return {"none", "selective", "full"}; }
  static List of(DType) { return {"fp32", "bf16", "fp16"}; }  // what a model computes in
  static List of(OptimizerKind) { return {"adam", "sgd"}; }
  static List of(LrDecay) { return {"constant", "linear", "cosine", "inverse_square_root", "wsd"}; }
  static List of(WsdDecay) { return {"linear", "cosine", "exponential", "minus_sqrt"}; }
  static List of(WarmupConvention) { return {"neox", "megatron"}; }
  static List of(SpikeAction) { return {"off", "warn", "skip"}; }
  static List of(SequenceWay) { return {"all_gather", "a2a", "p2p"}; }
  static List of(ScheduleKind) { return {"gpipe", "1f1b", "interleaved", "zb_h1"}; }
  static List of(PartitionMethod) { return {"uniform", "parameters", "time"}; }
  static List of(Level) {
    return {name_of(Level::kReplicated), name_of(Level::kPair), name_of(Level::kNode), name_of(Level::kGlobal)};
  }
  static List of(Hold) { return {"unit", "micro_batch", "step"}; }
  static List of(EmbeddingSyncKind) { return {"fused", "two_step"}; }
  static List of(Algorithm) { return {"auto", "direct", "ring", "two_level"}; }
  static List of(ResidualKind) { return {"none", "error_feedback", "lazy", "ema", "value_difference"}; }
  static List of(ResidualDtype) { return {"fp32", "bf16", "int8"}; }
  static List of(OnSkip) { return {"restore", "zero"}; }
  static List of(MicroBatches) { return {"all", "epilogue", "critical"}; }
  static List of(RuleAlgorithm) { return {"direct", "ring", "two_level"}; }
  static List of(TensorClass) { return {"embedding", "attention", "mlp", "norm", "bias", "head"}; }
};

template <typename E>
std::string word_of(E value) {
  return EnumWords::of(value).at(static_cast<size_t>(value));
}

// Of a word that is in the list: whoever reads one has refused all others.
template <typename E>
E from_word(const std::string& word) {
  const EnumWords::List words = EnumWords::of(E());
  const auto at = std::find(words.begin(), words.end(), word);
  TW_CHECK(at != words.end(), "no value is called ", word);
  return static_cast<E>(at - words.begin());
}

}  // namespace thinwire
