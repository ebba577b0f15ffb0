// Keys of the architecture and of its numerics.
#include "engine/run/config/key_table.h"

namespace thinwire {

KeyTopic model_keys() {
  const KeyScope model = KeyScope::kModel;
  KeyTopic t;
  t.title = "Model";
  t.intro = "One block covers GPT-2, GPT-NeoX and Llama; these keys choose among them.";
  t.keys = {
      {.name = "num_layers", .types = kIntKey, .bounds = {1, 10000}, .unit = "blocks",
       .doc = "Transformer blocks.", .scope = model, .required = true},
      {.name = "hidden_size", .types = kIntKey, .bounds = {1, 1 << 18}, .unit = "elements",
       .doc = "Width of the residual stream.", .scope = model, .required = true},
      {.name = "num_attention_heads", .types = kIntKey, .bounds = {1, 16384}, .unit = "heads",
       .doc = "Query heads.", .scope = model, .required = true},
      {.name = "num_kv_heads", .aliases = {"num_query_groups"}, .types = kIntKey,
       .default_text = "num_attention_heads", .bounds = {1, 16384}, .unit = "heads",
       .doc = "Key / value heads; fewer than the query heads is grouped-query attention.", .scope = model},
      {.name = "head_dim", .aliases = {"kv_channels"}, .types = kIntKey, .default_text = "hidden_size / num_attention_heads",
       .bounds = {1, 65536}, .unit = "elements", .doc = "Width of one head.", .scope = model},
      {.name = "intermediate_size", .aliases = {"ffn_hidden_size"}, .types = kIntKey,
       .default_text = "4 * hidden_size; 2/3 of that, rounded up to mlp_multiple_of, for swiglu", .bounds = {1, 1 << 21},
       .unit = "elements",
       .doc = "Width of the feed-forward part: columns of its second matrix, as Megatron and Hugging Face count it. For swiglu gate "
              "and up have this width each (NeoX divides the number given for gated activations by 3: give a third here).",
       .scope = model},
      {.name = "expansion_factor", .types = kRealKey, .bounds = {0, 1024, true}, .unit = "x hidden_size",
       .doc = "Feed-forward width as a multiple of hidden_size, instead of intermediate_size; times 2/3 for swiglu.", .scope = model},
      {.name = "mlp_multiple_of", .types = kIntKey, .default_json = "1", .bounds = {1, 1 << 20}, .unit = "elements",
       .doc = "The feed-forward width is rounded up to a multiple of this (Llama: 256).", .scope = model},
      {.name = "seq_length", .types = kIntKey, .bounds = {1, 1 << 24}, .unit = "tokens", .doc = "Tokens per sequence.",
       .scope = model, .required = true},
      {.name = "max_position_embeddings", .types = kIntKey, .default_text = "seq_length", .bounds = {1, 1 << 24},
       .unit = "tokens", .doc = "Rows of a learned position table; length of the rotary tables.", .scope = model},
      {.name = "vocab_size", .types = kIntKey, .default_text = "from the tokenizer", .bounds = {1, 100000000}, .unit = "ids",
       .doc = "Token ids that exist.", .scope = model},
      {.name = "make_vocab_size_divisible_by", .types = kIntKey, .default_json = "128", .bounds = {1, 1 << 20}, .unit = "rows",
       .doc = "The embedding is padded to a multiple of this alone, whatever the layout; pad columns never enter the loss.",
       .scope = model},
      {.name = "norm", .aliases = {"normalization"}, .types = kStringKey, .default_json = "\"layernorm\"",
       .allowed = {"layernorm", "rmsnorm"}, .doc = "Normalisation.", .scope = model},
      {.name = "layernorm_epsilon", .types = kRealKey, .default_json = "1e-5", .bounds = {0, 1, true, true},
       .doc = "Added to the variance in LayerNorm.", .scope = model},
      {.name = "rms_norm_epsilon", .types = kRealKey, .default_json = "1e-8", .bounds = {0, 1, true, true},
       .doc = "Added to the mean square in RMSNorm (Megatron's and Llama's value is 1e-5).", .scope = model},
      {.name = "norm_epsilon", .types = kRealKey, .bounds = {0, 1, true, true},
       .doc = "Megatron: sets layernorm_epsilon and rms_norm_epsilon.", .scope = model, .status = KeyStatus::kShorthand},
      {.name = "pos_emb", .aliases = {"position_embedding_type"}, .types = kStringKey, .default_json = "\"learned\"",
       .allowed = {"learned", "rotary", "none"}, .value_aliases = {{"learned_absolute", "learned"}, {"rope", "rotary"}},
       .doc = "How positions enter.", .scope = model},
      {.name = "use_rotary_position_embeddings", .types = kBoolKey, .doc = "Megatron: true is pos_emb rotary.", .scope = model,
       .status = KeyStatus::kShorthand},
      {.name = "rotary_pct", .aliases = {"rotary_percent"}, .types = kRealKey, .default_json = "1.0", .bounds = {0, 1, true},
       .doc = "Part of each head that is rotated.", .scope = model},
      {.name = "rotary_emb_base", .aliases = {"rotary_base"}, .types = kRealKey, .default_json = "10000",
       .bounds = {1, 1e12, true}, .doc = "Base of the rotary frequencies.", .scope = model},
      {.name = "no_weight_tying", .aliases = {"untie_embeddings_and_output_weights"}, .types = kBoolKey, .default_json = "false",
       .doc = "true: the head has a matrix of its own instead of the embedding's.", .scope = model},
      {.name = "gpt_j_residual", .types = kBoolKey, .default_json = "false",
       .doc = "Parallel residual: x + attention(norm1(x)) + mlp(norm2(x)).", .scope = model},
      {.name = "activation", .types = kStringKey, .default_json = "\"gelu\"", .allowed = {"gelu", "swiglu", "silu"},
       .doc = "Activation of the feed-forward part; silu only together with mlp_type llama, where it means swiglu.", .scope = model},
      {.name = "swiglu", .types = kBoolKey, .doc = "Megatron: true is activation swiglu.", .scope = model,
       .status = KeyStatus::kShorthand},
      {.name = "mlp_type", .types = kStringKey, .allowed = {"regular", "llama"},
       .doc = "NeoX: llama is activation swiglu, mlp_multiple_of 256 and no bias in the feed-forward part.", .scope = model,
       .status = KeyStatus::kShorthand},
      {.name = "bias_gelu_fusion", .types = kBoolKey, .default_json = "false",
       .doc = "true: gelu is its tanh approximation, which is what the fused kernel of NeoX and Megatron computes; false: exact (erf).",
       .scope = model},
      {.name = "openai_gelu", .types = kBoolKey, .doc = "Megatron: the tanh approximation, as bias_gelu_fusion.", .scope = model,
       .status = KeyStatus::kShorthand},
      {.name = "use_bias_in_attn_linear", .types = kBoolKey, .default_json = "true",
       .doc = "Biases on the QKV and output projections.", .scope = model},
      {.name = "use_bias_in_mlp", .types = kBoolKey, .default_json = "true", .default_text = "true; false for mlp_type llama",
       .doc = "Biases in the feed-forward part.", .scope = model},
      {.name = "use_bias_in_norms", .types = kBoolKey, .default_json = "true", .doc = "Shift of LayerNorm (RMSNorm has none).",
       .scope = model},
      {.name = "disable_bias_linear", .types = kBoolKey,
       .doc = "Megatron: true is use_bias_in_attn_linear and use_bias_in_mlp false.", .scope = model,
       .status = KeyStatus::kShorthand},
      {.name = "init_method", .types = kStringKey, .default_json = "\"normal\"",
       .allowed = {"normal", "scaled_normal", "small_init", "wang_init"},
       .doc = "Initial weights of all matrices but the residual outputs: normal(init_method_std), scaled_normal std / sqrt(2L), "
              "small_init sqrt(2 / 5h), wang_init 2 / (L sqrt(h)).",
       .scope = model},
      {.name = "output_layer_init_method", .types = kStringKey, .default_json = "\"scaled_normal\"",
       .allowed = {"normal", "scaled_normal", "small_init", "wang_init"},
       .doc = "Initial weights of the attention output and the second feed-forward matrix.", .scope = model},
      {.name = "init_method_std", .types = kRealKey, .default_json = "0.02", .bounds = {0, 100},
       .doc = "Standard deviation for normal and scaled_normal.", .scope = model},
      {.name = "init_from_hf", .types = kStringKey, .unit = "path",
       .doc = "Directory with Hugging Face safetensors that the initial weights come from.", .scope = KeyScope::kRuntime},
  };
  return t;
}

KeyTopic numerics_keys() {
  const KeyScope model = KeyScope::kModel;
  KeyTopic t;
  t.title = "Precision, regularisation, recomputation";
  t.keys = {
      {.name = "precision", .types = kStringKey, .default_json = "\"fp32\"", .allowed = {"fp32", "fp16", "bf16"},
       .value_aliases = {{"bfloat16", "bf16"}, {"float32", "fp32"}, {"float16", "fp16"}, {"half", "fp16"}},
       .doc = "Compute dtype; bf16 and fp16 keep fp32 master weights and accumulate gradients in fp32.", .scope = model},
      {.name = "fp16.enabled", .types = kBoolKey, .doc = "true is precision fp16; \"fp16\": true means the same.", .scope = model,
       .status = KeyStatus::kShorthand},
      {.name = "bf16.enabled", .types = kBoolKey, .doc = "true is precision bf16; \"bf16\": true means the same.", .scope = model,
       .status = KeyStatus::kShorthand},
      {.name = "fp16.loss_scale", .aliases = {"loss_scale"}, .types = kRealKey, .default_json = "0", .bounds = {0, 1e12},
       .doc = "Static loss scale of fp16; 0: dynamic."},
      {.name = "fp16.initial_scale_power", .types = kIntKey, .default_json = "16", .bounds = {0, 64},
       .doc = "The dynamic loss scale starts at 2 to this power (Megatron: 32).", .scope = KeyScope::kRuntime},
      {.name = "initial_loss_scale", .types = kRealKey, .bounds = {1, 2e19},
       .doc = "Megatron: the initial scale itself, a power of two.", .status = KeyStatus::kShorthand},
      {.name = "fp16.loss_scale_window", .aliases = {"loss_scale_window"}, .types = kIntKey, .default_json = "1000",
       .bounds = {1, 1e9}, .unit = "updates", .doc = "Clean updates after which the scale doubles."},
      {.name = "fp16.hysteresis", .aliases = {"hysteresis"}, .types = kIntKey, .default_json = "2", .bounds = {1, 1e6},
       .unit = "updates", .doc = "Overflows before the scale halves."},
      {.name = "fp16.min_loss_scale", .aliases = {"min_loss_scale", "min_scale"}, .types = kRealKey, .default_json = "1",
       .bounds = {0, 1e12, true}, .doc = "The dynamic scale never falls below this."},
      {.name = "non_finite_budget", .types = kIntKey, .default_json = "50", .bounds = {0, 1e9}, .unit = "updates",
       .doc = "Skipped (non-finite) updates in a row before the run stops with exit code 76."},
      {.name = "hidden_dropout", .types = kRealKey, .default_json = "0.0", .bounds = {0, 1, false, true},
       .doc = "Dropout after the embedding and on each branch (Megatron's default is 0.1).", .scope = model},
      {.name = "attention_dropout", .types = kRealKey, .default_json = "0.0", .bounds = {0, 1, false, true},
       .doc = "Dropout on the attention probabilities (Megatron's default is 0.1).", .scope = model},
      {.name = "recompute_granularity", .types = kStringKey, .default_json = "\"none\"", .allowed = {"none", "selective", "full"},
       .doc = "Activations that are computed again in the backward pass: none, the attention's, all but the blocks' inputs. "
              "Changes memory and time, never values.",
       .scope = KeyScope::kLayout},
      {.name = "checkpoint_activations", .types = kBoolKey, .doc = "NeoX: true is recompute_granularity full.",
       .scope = KeyScope::kLayout, .status = KeyStatus::kShorthand},
      {.name = "deterministic", .aliases = {"deterministic_mode"}, .types = kBoolKey, .default_json = "true",
       .doc = "Same configuration, layout and kind of machine: same bits. false only buys speed on GPUs."},
      {.name = "seed", .types = kIntKey, .default_json = "1234", .bounds = {0, 4294967295.0},
       .doc = "Seeds initial weights, dropout and the order of the data.", .scope = KeyScope::kData},
  };
  return t;
}

}  // namespace thinwire
