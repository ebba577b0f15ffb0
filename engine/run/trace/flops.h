// Arithmetic of a model on paper: floating-point operations per token by the formulas that tables quote.
#pragma once

#include "model/model_config.h"

namespace thinwire {

// All formulas count the matrix products only (2 operations per multiply-add), per token of a full sequence, for one
// forward and one backward pass (backward = 2 x forward). V is padded_vocab: the products run over the padded rows.
// With L layers, width h, attention width a = heads * head_dim, key/value width k = kv_heads * head_dim, feed-forward
// width f, length s:
//   forward = L * [2h(a + 2k) + 2ah + 4sa (full) or 2sa (causal half) + 2hf * (2, gated 3)] + 2hV
// which is 72Lh^2 (1 + s/6h + V/12Lh) over three passes for a plain GPT with full attention.

// Causal half of the attention products counted: the formula of Megatron-LM since March 2025. Base of
// `model_tflops_per_rank` and MFU.
double model_flops_per_token(const ModelConfig& config);

// All s x s attention products counted: comparable with tables of 2021-2024. Base of `model_tflops_full_attn`.
double full_attention_flops_per_token(const ModelConfig& config);

// full_attention_flops_per_token plus what recomputation repeats: the attention products once (selective) or the
// forward pass of every block once (full; the head is never recomputed). Base of `hw_tflops`; the counting of published
// HFU figures, so it does not know whether a kernel skips the masked half.
double hardware_flops_per_token(const ModelConfig& config);

}  // namespace thinwire
