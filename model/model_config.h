// The architecture's numbers and nothing else: what a GPT-2, GPT-NeoX or Llama is to us.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/core/dtype.h"
#include "engine/base/ops/ops.h"

namespace thinwire {

enum class PositionKind { kLearned, kRotary, kNone };
enum class ActivationKind { kGeluTanh, kGeluExact, kSwiglu };
enum class InitMethod { kNormal, kScaledNormal, kSmallInit, kWangInit };
enum class Recompute { kNone, kSelective, kFull };
enum class Offload { kNone, kHost, kDisk };  // kHost: of a device whose memory is its own

// Llama-3's scaling of the rotary frequencies, for contexts longer than the one trained on (make_rotary_tables).
struct RopeScaling {
  float factor = 1.0f;  // 1: none
  float low_freq_factor = 1.0f, high_freq_factor = 4.0f;
  int64_t original_positions = 8192;  // context length before the scaling
};

struct ModelConfig {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // == heads unless grouped-query attention
  int64_t head_dim = 0;  // hidden / heads unless said (then the attention's inner width is heads * head_dim)
  int64_t ffn = 0;       // width of the feed-forward part (one of gate and up for SwiGLU)
  int64_t vocab = 0;     // ids that exist
  int64_t padded_vocab =
      0;  // rows of the embedding: vocab rounded up to make_vocab_size_divisible_by; pads are masked out
  int64_t seq_length = 0;
  int64_t max_positions = 0;  // rows of a learned position table, length of the rotary tables

  PositionKind positions = PositionKind::kLearned;
  float rotary_fraction = 1.0f;  // part of each head that is rotated: rot_dim = int(head_dim * fraction), even
  float rotary_base = 10000.0f;
  RopeScaling rope_scaling;
  int64_t window = kNoWindow;  // keys in front of its own that a token sees (AttentionForward)
  NormKind norm = NormKind::kLayerNorm;
  float norm_eps = 1e-5f;
  ActivationKind activation = ActivationKind::kGeluExact;
  bool parallel_residual = false;  // x + attn(norm1(x)) + mlp(norm2(x)) instead of two residual steps
  bool tied_head = true;
  bool bias_attention = true;  // on qkv and the output projection
  bool bias_mlp = true;
  bool bias_norm = true;  // LayerNorm's shift
  bool gain_norm = true;  // false: norms have no parameters, so no shift either (OLMo)

  InitMethod init = InitMethod::kNormal;               // all matrices but the residual outputs
  InitMethod output_init = InitMethod::kScaledNormal;  // attention output and the second feed-forward matrix
  float init_std = 0.02f;

  float hidden_dropout = 0.0f;     // after the embedding, and on each branch before it joins the residual stream
  float attention_dropout = 0.0f;  // on the attention probabilities
  Recompute recompute = Recompute::kNone;
  Offload offload = Offload::kNone;  // where what waits for its use, chunk by chunk, waits (token_store.h)
  int64_t sequence_chunk = 0;        // most tokens of a sequence that layers take at once (block.h); 0: all
  DType dtype = DType::f32;          // compute dtype: fp32, bf16, fp16
  bool fp8 = false;  // products of linear layers, but for the head's, round their operands to fp8 (Matmul::fp8)
  // Logits are made for as many rows at once as fit in so many bytes, 16 rows at least.
  int64_t head_chunk_bytes = int64_t{64} << 20;
  bool decay_all_matrices = true;  // false: embeddings take no weight decay (Megatron with embedding_init_method_std)

  int64_t heads_per_group() const { return heads / kv_heads; }
  int64_t attention_width() const { return heads * head_dim; }
  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t ffn_in_width() const { return activation == ActivationKind::kSwiglu ? 2 * ffn : ffn; }
  // int(head_dim * fraction), as the frameworks cut it; the slack undoes the fraction's rounding to float, and no more.
  int64_t rotary_length() const {
    if (positions != PositionKind::kRotary) return 0;
    const double d = static_cast<double>(head_dim);
    return static_cast<int64_t>(d * static_cast<double>(rotary_fraction) + d * 1.2e-7);
  }
  // Elements of a head that turn, in pairs: transformers gives an odd length one pair more (frequencies
  // base^(-2i/length)).
  int64_t rotary_dim() const { return (rotary_length() + 1) / 2 * 2; }
};

}  // namespace thinwire
