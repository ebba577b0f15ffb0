// The table of shapes.
#include "engine/run/config/named_shapes.h"

namespace thinwire {
namespace {

struct NamedShape {
  const char* name;
  std::vector<std::string> overrides;
};

std::vector<std::string> gpt2_shape(int layers, int heads, int hidden, int vocab, int length, int batch) {
  const auto set = [](const char* key, int value) { return std::string(key) + "=" + std::to_string(value); };
  return {set("num_layers", layers),
          set("num_attention_heads", heads),
          set("hidden_size", hidden),
          set("vocab_size", vocab),
          set("seq_length", length),
          set("max_position_embeddings", length),
          set("train_micro_batch_size_per_gpu", batch),
          set("make_vocab_size_divisible_by", vocab % 128 == 0 ? 128 : 1),
          "train_iters=8",
          "optimizer.params.lr=1e-4",
          "lr_decay_style=constant",
          "warmup=0",
          "bias_gelu_fusion=true"};
}

std::vector<NamedShape> shapes() {
  std::vector<NamedShape> list = {{"tiny", gpt2_shape(4, 4, 128, 256, 64, 16)},
                                  {"char", gpt2_shape(6, 6, 384, 256, 256, 64)},
                                  {"30m", gpt2_shape(6, 8, 512, 8192, 512, 4)},
                                  {"124m", gpt2_shape(12, 12, 768, 50304, 1024, 1)},
                                  {"350m", gpt2_shape(24, 16, 1024, 50304, 1024, 1)}};
  const auto add_llama = [&](const char* name, int layers, int heads, int kv_heads, int hidden, int ffn, int vocab,
                             int length, int batch, bool tied) {
    std::vector<std::string> o = gpt2_shape(layers, heads, hidden, vocab, length, batch);
    o.pop_back();  // bias_gelu_fusion
    o.push_back("num_kv_heads=" + std::to_string(kv_heads));
    o.push_back("ffn_hidden_size=" + std::to_string(ffn));
    o.push_back(std::string("no_weight_tying=") + (tied ? "false" : "true"));
    for (const char* more : {"norm=rmsnorm", "activation=swiglu", "pos_emb=rotary", "use_bias_in_attn_linear=false",
                             "use_bias_in_mlp=false"})
      o.emplace_back(more);
    list.push_back({name, o});
  };
  add_llama("llama_1b", 16, 32, 8, 2048, 5632, 32000, 1024, 1, false);
  // The shapes that GPUs are measured with; their memory is far beyond a laptop's.
  add_llama("llama3_1b", 16, 32, 8, 2048, 8192, 128256, 2048, 8, true);
  add_llama("llama3_3b", 28, 24, 8, 3072, 8192, 128256, 2048, 4, true);
  add_llama("llama2_7b", 32, 32, 32, 4096, 11008, 32000, 2048, 4, false);
  return list;
}

}  // namespace

std::vector<std::string> shape_overrides(const std::string& name) {
  for (const NamedShape& s : shapes()) {
    if (s.name == name) return s.overrides;
  }
  return {};
}

std::string shape_names() {
  std::string text;
  for (const NamedShape& s : shapes()) text += (text.empty() ? "" : " ") + std::string(s.name);
  return text;
}

}  // namespace thinwire
