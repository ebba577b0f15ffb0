// Keys of the architecture and of its numerics.
#include "engine/run/config/enum_words.h"
#include "engine/run/config/key_table.h"

namespace thinwire {

KeyTopic model_keys() {
  const KeysOf key{KeyScope::kModel}, run{KeyScope::kRuntime};
  KeyTopic t;
  t.title = "Model";
  t.intro = "One block covers GPT-2, GPT-NeoX and Llama; these keys choose among them.";
  t.keys = {
      key("num_layers", kIntKey, "null", "Transformer blocks.",
          {.bounds = {1, 10000}, .unit = "blocks", .required = true}),
      key("hidden_size", kIntKey, "null", "Width of the residual stream.",
          {.bounds = {1, 1 << 18}, .unit = "elements", .required = true}),
      key("num_attention_heads", kIntKey, "null", "Query heads.",
          {.bounds = {1, 16384}, .unit = "heads", .required = true}),
      key("num_kv_heads", kIntKey, "null", "Key / value heads; fewer than the query heads is grouped-query attention.",
          {.aliases = {"num_query_groups"},
           .default_text = "num_attention_heads",
           .bounds = {1, 16384},
           .unit = "heads"}),
      key("head_dim", kIntKey, "null", "Width of one head.",
          {.aliases = {"kv_channels"},
           .default_text = "hidden_size / num_attention_heads",
           .bounds = {1, 65536},
           .unit = "elements"}),
      key("ffn_hidden_size", kIntKey, "null",
          "Width of the feed-forward part: columns of its second matrix, as Megatron counts it. With swiglu gate and "
          "up have this width each.",
          {.default_text = "4 * hidden_size, by the rule of intermediate_size",
           .bounds = {1, 1 << 21},
           .unit = "elements"}),
      key("intermediate_size", kIntKey, "null",
          "NeoX: the width that a feed-forward part without a gate would have, rounded up to 2 * mlp_multiple_of. With "
          "swiglu gate and up have a third of it each, rounded up to mlp_multiple_of; a number whose two projections "
          "do not fit each other in NeoX is refused. Becomes ffn_hidden_size.",
          {.bounds = {1, 1 << 23}, .unit = "elements"}),
      key("expansion_factor", kRealKey, "null", "NeoX: intermediate_size as a multiple of hidden_size.",
          {.bounds = {0, 1024, true}, .unit = "x hidden_size"}),
      key("mlp_multiple_of", kIntKey, "1", "See intermediate_size (Llama: 256).",
          {.bounds = {1, 1 << 20}, .unit = "elements"}),
      key("seq_length", kIntKey, "null", "Tokens per sequence.",
          {.bounds = {1, 1 << 24}, .unit = "tokens", .required = true}),
      key("max_position_embeddings", kIntKey, "null", "Rows of a learned position table; length of the rotary tables.",
          {.default_text = "seq_length", .bounds = {1, 1 << 24}, .unit = "tokens"}),
      key("vocab_size", kIntKey, "null", "Token ids that exist.",
          {.default_text = "from the tokenizer", .bounds = {1, 100000000}, .unit = "ids"}),
      key("make_vocab_size_divisible_by", kIntKey, "128",
          "The embedding is padded to a multiple of this alone, whatever the layout; pad columns never enter the loss.",
          {.bounds = {1, 1 << 20}, .unit = "rows"}),
      key("norm", kStringKey, "\"layernorm\"",
          "Normalisation; non_parametric_layernorm is LayerNorm without gain and shift, as in OLMo.",
          {.aliases = {"normalization"},
           .allowed = {"layernorm", "rmsnorm", "non_parametric_layernorm"},
           .value_aliases = {{"te_layernorm", "layernorm"}, {"te_rmsnorm", "rmsnorm"}}}),
      key("layernorm_epsilon", kRealKey, "1e-5", "Added to the variance in LayerNorm.", {.bounds = {0, 1, true, true}}),
      key("rms_norm_epsilon", kRealKey, "1e-8",
          "Added to the mean square in RMSNorm (Megatron's and Llama's value is 1e-5).",
          {.bounds = {0, 1, true, true}}),
      key.word("norm_epsilon", kRealKey, "Megatron: sets layernorm_epsilon and rms_norm_epsilon.",
               {.bounds = {0, 1, true, true}}),
      key("pos_emb", kStringKey, "\"learned\"", "How positions enter.",
          {.aliases = {"position_embedding_type"},
           .allowed = EnumWords::of(PositionKind()),
           .value_aliases = {{"learned_absolute", "learned"}, {"rope", "rotary"}}}),
      key.word("no_position_embedding", kBoolKey, "Megatron: true leaves the learned table of positions out."),
      key.word("use_rotary_position_embeddings", kBoolKey, "Megatron: true is pos_emb rotary."),
      key("rotary_pct", kRealKey, "1.0", "Part of each head that is rotated.",
          {.aliases = {"rotary_percent"}, .bounds = {0, 1, true}}),
      key("rotary_emb_base", kRealKey, "10000", "Base of the rotary frequencies.",
          {.aliases = {"rotary_base"}, .bounds = {1, 1e12, true}}),
      key("use_rope_scaling", kBoolKey, "false",
          "Llama-3's scaling of the rotary frequencies, for contexts longer than the one trained on."),
      key("rope_scaling_factor", kRealKey, "8.0",
          "use_rope_scaling: what the frequencies of waves longer than rope_original_max_position_embeddings / "
          "rope_low_freq_factor are divided by.",
          {.bounds = {1, 1e6}}),
      key("rope_low_freq_factor", kRealKey, "1.0", "use_rope_scaling: see rope_scaling_factor.",
          {.bounds = {0, 1e6, true}}),
      key("rope_high_freq_factor", kRealKey, "4.0",
          "use_rope_scaling: waves shorter than rope_original_max_position_embeddings / this stay as they are. More "
          "than rope_low_freq_factor.",
          {.bounds = {0, 1e6, true}}),
      key("rope_original_max_position_embeddings", kIntKey, "8192",
          "use_rope_scaling: context length before the scaling.", {.bounds = {1, 1e9}}),
      key("sliding_window_width", kIntKey, "null",
          "Keys in front of its own that a token sees, so one less than Hugging Face's sliding_window.",
          {.bounds = {0, 1e9}, .unit = "tokens"}),
      key("no_weight_tying", kBoolKey, "false", "true: the head has a matrix of its own instead of the embedding's.",
          {.aliases = {"untie_embeddings_and_output_weights"}}),
      key("gpt_j_residual", kBoolKey, "false", "Parallel residual: x + attention(norm1(x)) + mlp(norm2(x))."),
      key("activation", kStringKey, "\"gelu\"",
          "Activation of the feed-forward part; silu only together with mlp_type llama, where it means swiglu.",
          {.allowed = {"gelu", "swiglu", "silu"}}),
      key.word("swiglu", kBoolKey,
               "Megatron: true is activation swiglu; the default of ffn_hidden_size is then 8/3 hidden_size, rounded "
               "down to 64."),
      key.word("mlp_type", kStringKey,
               "NeoX: llama is activation swiglu, mlp_multiple_of 256 and no bias in the feed-forward part; "
               "intermediate_size is then the width of gate and of up each, by default 8/3 hidden_size.",
               {.allowed = {"regular", "llama"}}),
      key("bias_gelu_fusion", kBoolKey, "false",
          "true: gelu is its tanh approximation, which is what the fused kernel of NeoX and Megatron computes; false: "
          "exact (erf)."),
      key.word("openai_gelu", kBoolKey, "Megatron: the tanh approximation, as bias_gelu_fusion."),
      key.word("no_bias_gelu_fusion", kBoolKey,
               "Megatron: true is bias_gelu_fusion false, the exact gelu, unless openai_gelu says otherwise."),
      key("use_bias_in_attn_linear", kBoolKey, "true", "Biases on the QKV and output projections."),
      key("use_bias_in_mlp", kBoolKey, "true", "Biases in the feed-forward part.",
          {.default_text = "true; false for mlp_type llama"}),
      key("use_bias_in_norms", kBoolKey, "true", "Shift of LayerNorm (RMSNorm has none)."),
      key.word("disable_bias_linear", kBoolKey, "Megatron: true is use_bias_in_attn_linear and use_bias_in_mlp false."),
      key("init_method", kStringKey, "\"normal\"",
          "Initial weights of all matrices but the residual outputs: normal(init_method_std), scaled_normal std / "
          "sqrt(2L), small_init sqrt(2 / 5h), wang_init 2 / (L sqrt(h)).",
          {.allowed = EnumWords::of(InitMethod())}),
      key("output_layer_init_method", kStringKey, "\"scaled_normal\"",
          "Initial weights of the attention output and the second feed-forward matrix.",
          {.allowed = EnumWords::of(InitMethod())}),
      key("init_method_std", kRealKey, "0.02", "Standard deviation for normal and scaled_normal.",
          {.bounds = {0, 100}}),
      run("init_from_hf", kStringKey, "null",
          "Directory with Hugging Face safetensors that the initial weights come from, and their config.json, which "
          "must describe this model.",
          {.unit = "path"}),
  };
  return t;
}

KeyTopic numerics_keys() {
  const KeysOf key{KeyScope::kRuntime}, model{KeyScope::kModel}, layout{KeyScope::kLayout}, data{KeyScope::kData};
  KeyTopic t;
  t.title = "Precision, regularisation, recomputation";
  t.keys = {
      key("precision", kStringKey, "\"fp32\"",
          "Compute dtype; bf16 and fp16 keep fp32 master weights and accumulate gradients in fp32. Checkpoints hold "
          "those, so it may change on resume.",
          {.allowed = {"fp32", "fp16", "bf16"},
           .value_aliases = {{"bfloat16", "bf16"}, {"float32", "fp32"}, {"float16", "fp16"}, {"half", "fp16"}}}),
      model("fp8_format", kStringKey, "\"none\"",
            "hybrid: linear layers (not the head) round the operands of their products to fp8 by one scale per tensor: "
            "e4m3 forward, e5m2 for gradients. For precision bf16 on a GPU from sm_90 on.",
            {.allowed = {"none", "hybrid"}}),
      key("grad_dtype", kStringKey, "\"fp32\"",
          "bf16: a unit's gradients are summed in fp32, rounded once and kept in bf16 until the optimizer reads them, "
          "2 bytes a parameter less. For one micro-batch per step, one data-parallel rank, one stage, precision bf16.",
          {.aliases = {"main_grads_dtype", "data_types.grad_accum_dtype", "data_types.grad_accum_type"},
           .allowed = {"fp32", "bf16"},
           .value_aliases = {{"bfloat16", "bf16"}, {"float32", "fp32"}}}),
      key.word("fp16.enabled", kBoolKey, "true is precision fp16; \"fp16\": true means the same."),
      key.word("bf16.enabled", kBoolKey, "true is precision bf16; \"bf16\": true means the same.",
               {.aliases = {"bfloat16.enabled"}}),
      key.word("fp16.type", kStringKey, "Older NeoX: bfloat16 makes precision bf16 of fp16.enabled.",
               {.allowed = {"fp16", "bfloat16"}}),
      key("fp16.loss_scale", kRealKey, "0", "Static loss scale of fp16; 0: dynamic.",
          {.aliases = {"loss_scale"}, .bounds = {0, 1e12}}),
      key("fp16.initial_scale_power", kIntKey, "16", "The dynamic loss scale starts at 2 to this power (Megatron: 32).",
          {.bounds = {0, 64}}),
      key.word("initial_loss_scale", kRealKey, "Megatron: the initial scale itself, a power of two.",
               {.bounds = {1, 2e19}}),
      key("fp16.loss_scale_window", kIntKey, "1000", "Clean steps after which the scale doubles.",
          {.aliases = {"loss_scale_window"}, .bounds = {1, 1e9}, .unit = "steps"}),
      key("fp16.hysteresis", kIntKey, "2", "Overflows before the scale halves.",
          {.aliases = {"hysteresis"}, .bounds = {1, 1e6}, .unit = "steps"}),
      key("fp16.min_loss_scale", kRealKey, "1", "The dynamic scale never falls below this.",
          {.aliases = {"min_loss_scale", "min_scale"}, .bounds = {0, 1e12, true}}),
      key("non_finite_budget", kIntKey, "50",
          "Skipped (non-finite) steps in a row before the run stops with exit code 76.",
          {.bounds = {0, 1e9}, .unit = "steps"}),
      key("spike", kStringKey, "\"warn\"",
          "What becomes of a step whose loss jumps: off, nothing; warn, a line in the log, metrics.jsonl and "
          "status.json; skip, that and the step is dropped, as a non-finite one is.",
          {.allowed = EnumWords::of(SpikeAction())}),
      key("spike_window", kIntKey, "128", "Losses of applied steps that a loss is compared with; part of checkpoints.",
          {.bounds = {8, 1e5}, .unit = "steps"}),
      key("spike_threshold", kRealKey, "10",
          "How far above the window's median a loss jumps: so many spreads, each 1.4826 MADs and at least 1 % of the "
          "median.",
          {.bounds = {0, 1e9, true}, .unit = "spreads"}),
      key("spike_budget", kIntKey, "5",
          "Steps in a row that spike skip drops; the next one is taken for a real shift: it is applied, and the window "
          "begins anew.",
          {.bounds = {1, 1e9}, .unit = "steps"}),
      key("iterations_to_skip", kListKey | kIntKey, "[]",
          "Steps, counted from 1, that read their batch and do nothing else: samples count, the learning rate stands "
          "still.",
          {.bounds = {1, 1e12}, .unit = "steps"}),
      model("hidden_dropout", kRealKey, "0.0",
            "Dropout after the embedding and on each branch (Megatron's default is 0.1).",
            {.bounds = {0, 1, false, true}}),
      model("attention_dropout", kRealKey, "0.0", "Dropout on the attention probabilities (Megatron's default is 0.1).",
            {.bounds = {0, 1, false, true}}),
      layout("recompute_granularity", kStringKey, "\"none\"",
             "Activations that are computed again in the backward pass: none, the attention's, all but the blocks' "
             "inputs. Changes memory and time, never values.",
             {.allowed = EnumWords::of(Recompute())}),
      layout.word("recompute_activations", kBoolKey, "Megatron: true is recompute_granularity selective."),
      layout.word("activations_checkpoint_method", kStringKey, "Older Megatron: any is recompute_granularity full.",
                  {.aliases = {"activation_checkpoint_method"}}),
      layout.word("checkpoint_activations", kBoolKey, "NeoX: true is recompute_granularity full."),
      key("deterministic", kBoolKey, "true",
          "Same configuration, layout and kind of machine: same bits. false only buys speed on GPUs.",
          {.aliases = {"deterministic_mode"}}),
      key("product_table", kStringKey, "null",
          "With device cuda: file of the fastest algorithm of each matrix product, by GPU and version of cuBLASLt. "
          "What it lacks is measured before the first step and added; all runs with the same file, and restarts, take "
          "the same algorithms and have the same bits. Needs deterministic.",
          {.default_text = "none: cuBLASLt's first suggestion", .unit = "path"}),
      key("cuda_graphs", kBoolKey, "false",
          "Queues a step's forward and backward passes, norms and optimizer as CUDA graphs where nothing is "
          "communicated within them; what is not, and why, is logged. Changes time, never values."),
      data("seed", kIntKey, "1234", "Seeds initial weights, dropout and the order of the data.",
           {.bounds = {0, 4294967295.0}}),
  };
  return t;
}

}  // namespace thinwire
