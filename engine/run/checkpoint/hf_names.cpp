// The table of names and the piecewise copies, see hf_names.h.
#include "engine/run/checkpoint/hf_names.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/shallow_json.h"
#include "engine/base/core/text.h"

namespace thinwire {
namespace {

constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

std::filesystem::path hf_directory(const std::filesystem::path& source) {
  return source.extension() == ".safetensors" ? source.parent_path() : source;
}

const char* prefix_of(HfFamily family) {
  constexpr const char* kPrefixes[] = {"transformer.", "gpt_neox.", "model."};
  return kPrefixes[static_cast<size_t>(family)];
}

// Constants that old files carry beside the weights: masks and rotary tables.
bool is_constant_buffer(const std::string& name) {
  for (const char* end :
       {".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

}  // namespace

HfTensors::HfTensors(const std::string& path) : path_(path) {
  std::vector<std::string> names;
  std::error_code ignored;
  const auto is_here = [&](const char* name) {
    std::error_code error;  // none where the file is merely absent
    const bool found = std::filesystem::exists(path + "/" + name, error);
    if (error) throw_io(path + "/" + name + ": " + error.message());
    return found;
  };
  if (!std::filesystem::is_directory(path, ignored)) {
    names.push_back(path);
  } else if (is_here(kSingle)) {
    names.push_back(path + "/" + kSingle);
  } else if (is_here(kIndex)) {
    const std::string index = path + "/" + kIndex;
    const auto root = parse_shallow(read_file(index, size_t{256} << 20));
    if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
      throw_bad_data(index + ": not a safetensors index (an object with \"weight_map\" is expected)");
    }
    std::set<std::string> unique;
    for (const auto& [tensor, file] : root["weight_map"].items()) {
      // The file comes from outside: it may only name its neighbours.
      if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos ||
          !is_valid_tensor_name(file.get<std::string>())) {
        throw_bad_data(index + ": tensor \"" + tensor + "\" is in " + file.dump() + ", a plain file name is expected");
      }
      unique.insert(file.get<std::string>());
    }
    for (const std::string& file : unique) names.push_back(path + "/" + file);
  } else {
    throw_bad_data(path + ": neither " + kSingle + " nor " + kIndex + " is here (other formats are not read)");
  }
  for (const std::string& name : names) {
    files_.emplace_back(name);
    for (const SafetensorsEntry& entry : files_.back().entries()) {
      if (!file_of_.emplace(entry.name, files_.size() - 1).second)
        throw_bad_data(name + ": tensor \"" + entry.name + "\" is in another file too");
    }
  }
}

const SafetensorsFile* HfTensors::find(const std::string& name) const {
  const auto found = file_of_.find(name);
  return found == file_of_.end() ? nullptr : &files_[found->second];
}

std::vector<std::string> HfTensors::names() const {
  std::vector<std::string> list;
  for (const auto& [name, file] : file_of_) list.push_back(name);
  return list;
}

nlohmann::json read_hf_config(const std::string& source) {
  const std::string path = (hf_directory(source) / "config.json").string();
  auto root = parse_shallow(read_file(path, size_t{16} << 20));
  if (!root.is_object()) throw_bad_data(path + ": not a JSON object");
  return root;
}

ModelConfig read_hf_model(const std::string& source, int64_t vocab_multiple) {
  const nlohmann::json root = read_hf_config(source);
  try {
    return model_config_from_hf(root, vocab_multiple);
  } catch (const Error& e) {  // which begins with "config.json: "
    throw Error(e.code(), (hf_directory(source) / e.what()).string());
  }
}

HfMapping::HfMapping(const ModelConfig& config, const ParamList& params, int transformers)
    : config_(config), params_(params), family_(hf_family_of(config)), transformers_(transformers) {
  for (size_t i = 0; i < params_.size(); ++i) {
    if (params_[i].tied_to.empty()) map_parameter(i);
  }
}

void HfMapping::add(size_t index, const std::string& hf_name, std::vector<HfPiece> pieces, bool transposed) {
  const ParamSpec& param = params_[index];
  HfTensor tensor;
  tensor.name = hf_name;
  tensor.param = index;
  tensor.is_vector = param.is_vector;
  tensor.cols = param.is_vector ? 1 : param.cols;
  tensor.transposed = transposed && !param.is_vector;
  for (const HfPiece& piece : pieces) tensor.rows += piece.rows;
  tensor.pieces = std::move(pieces);
  tensors_.push_back(std::move(tensor));
}

void HfMapping::add_whole(size_t index, const std::string& hf_name, bool transposed) {
  const ParamSpec& param = params_[index];
  const int64_t rows = param.is_vector ? param.cols : (param.valid_rows > 0 ? param.valid_rows : param.rows);
  add(index, hf_name, {{0, 0, rows}}, transposed);
}

// q, k and v of each KV group. gpt2: thirds of one tensor; llama: three tensors; gpt_neox: our own order.
void HfMapping::add_attention(size_t index, const std::string& prefix, const std::string& kind) {
  const int64_t d = config_.head_dim, r = config_.heads_per_group(), groups = config_.kv_heads;
  std::vector<HfPiece> q, k, v;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t start = g * (r + 2) * d;
    q.push_back({start, g * r * d, r * d});
    k.push_back({start + r * d, g * d, d});
    v.push_back({start + (r + 1) * d, g * d, d});
  }
  if (family_ == HfFamily::kLlama) {
    add(index, prefix + "self_attn.q_proj." + kind, q);
    add(index, prefix + "self_attn.k_proj." + kind, k);
    add(index, prefix + "self_attn.v_proj." + kind, v);
    return;
  }
  const int64_t third = groups * d;  // gpt2 has as many KV heads as heads
  for (HfPiece& piece : k) piece.hf_row += third;
  for (HfPiece& piece : v) piece.hf_row += 2 * third;
  std::vector<HfPiece> all = q;
  all.insert(all.end(), k.begin(), k.end());
  all.insert(all.end(), v.begin(), v.end());
  add(index, prefix + "attn.c_attn." + kind, all, true);
}

bool HfMapping::map_layer_parameter(size_t index, const std::string& layer, const std::string& rest) {
  const auto dot = rest.rfind('.');
  const std::string what = rest.substr(0, dot), kind = rest.substr(dot + 1);
  struct Row {
    const char *ours, *gpt2, *neox, *llama;
  };
  static constexpr Row kRows[] = {
      {"norm1", "ln_1", "input_layernorm", "input_layernorm"},
      {"norm2", "ln_2", "post_attention_layernorm", "post_attention_layernorm"},
      {"attention.qkv", "", "attention.query_key_value", ""},
      {"attention.out", "attn.c_proj", "attention.dense", "self_attn.o_proj"},
      {"mlp.fc1", "mlp.c_fc", "mlp.dense_h_to_4h", ""},
      {"mlp.fc2", "mlp.c_proj", "mlp.dense_4h_to_h", "mlp.down_proj"},
  };
  for (const Row& row : kRows) {
    if (what != row.ours) continue;
    const bool gpt2 = family_ == HfFamily::kGpt2, llama = family_ == HfFamily::kLlama;
    const std::string prefix = prefix_of(family_) + std::string(gpt2 ? "h." : "layers.") + layer + ".";
    if (const std::string theirs = gpt2 ? row.gpt2 : llama ? row.llama : row.neox; !theirs.empty()) {
      // gpt2's Conv1D keeps matrices as [in, out].
      add_whole(index, prefix + theirs + "." + kind, gpt2);
    } else if (what == "attention.qkv") {
      add_attention(index, prefix, kind);
    } else {
      add(index, prefix + "mlp.gate_proj." + kind, {{0, 0, config_.ffn}});
      add(index, prefix + "mlp.up_proj." + kind, {{config_.ffn, 0, config_.ffn}});
    }
    return true;
  }
  return false;
}

void HfMapping::map_parameter(size_t index) {
  const std::string& name = params_[index].name;
  const std::string prefix = prefix_of(family_);
  const auto pick = [&](const char* gpt2, const char* neox, const char* llama) {
    return prefix + (family_ == HfFamily::kGpt2 ? gpt2 : family_ == HfFamily::kNeox ? neox : llama);
  };
  if (name.starts_with("layers.")) {
    const auto dot = name.find('.', 7);
    TW_CHECK(dot != std::string::npos && map_layer_parameter(index, name.substr(7, dot - 7), name.substr(dot + 1)),
             name);
  } else if (name == "embedding.word.weight") {
    add_whole(index, pick("wte.weight", "embed_in.weight", "embed_tokens.weight"));
  } else if (name == "embedding.position.weight" && family_ == HfFamily::kGpt2) {
    add_whole(index, prefix + "wpe.weight");
  } else if (name.starts_with("final_norm.")) {
    add_whole(index, pick("ln_f.", "final_layer_norm.", "norm.") + name.substr(11));
  } else if (name == "head.weight") {
    add_whole(index, family_ == HfFamily::kNeox && transformers_ == 4 ? "embed_out.weight" : "lm_head.weight");
  } else {
    TW_CHECK(false, "no Hugging Face name for ", name);
  }
}

std::string HfMapping::name_in(const HfTensors& source, const HfTensor& tensor) const {
  std::vector<std::string> candidates{tensor.name};
  if (tensor.name.starts_with(prefix_of(family_)))
    candidates.push_back(tensor.name.substr(std::string(prefix_of(family_)).size()));
  if (tensor.name == "lm_head.weight") candidates.push_back("embed_out.weight");  // gpt_neox in files of the library
  for (const std::string& name : candidates) {
    if (source.find(name) != nullptr) return name;
  }
  throw_bad_data(source.path() + ": tensor \"" + tensor.name + "\" is missing (needed for " +
                 params_[tensor.param].name + ")");
}

void HfMapping::refuse_strangers(const HfTensors& source, const std::set<std::string>& used) const {
  for (const std::string& name : source.names()) {
    if (used.contains(name) || is_constant_buffer(name)) continue;
    if (config_.tied_head && (name == "lm_head.weight" || name == "embed_out.weight")) {
      // Some writers store the tied head again. A different one would be another model.
      const auto embedding = std::find_if(tensors_.begin(), tensors_.end(), [&](const HfTensor& t) {
        return params_[t.param].name == "embedding.word.weight";
      });
      TW_CHECK(embedding != tensors_.end());
      const std::string other = name_in(source, *embedding);
      if (source.find(name)->read_bytes(name) == source.find(other)->read_bytes(other)) continue;
      throw_bad_data(source.path() + ": config.json ties the head to the embedding, but \"" + name +
                     "\" differs from \"" + other + "\"");
    }
    throw_bad_data(source.path() + ": tensor \"" + name +
                   "\" belongs to no parameter of the model that config.json describes");
  }
}

void HfMapping::read_hf(const HfTensors& source,
                        const std::function<void(const ParamSpec& param, std::vector<float> values)>& take) const {
  std::set<std::string> used;
  // All shapes before the memory for any tensor: what config.json says may be out of all reason.
  for (const HfTensor& tensor : tensors_) {
    const std::string name = name_in(source, tensor);
    const SafetensorsFile& file = *source.find(name);
    const std::vector<int64_t> shape = tensor.shape(), stored = file.at(name).shape;
    if (stored != shape) {
      throw_bad_data(file.path() + ": tensor \"" + name + "\" has shape " + file.at(name).shape_text() +
                     ", config.json makes it " + SafetensorsEntry{"", StDtype::kF32, shape, 0, 0}.shape_text());
    }
    used.insert(name);
  }
  refuse_strangers(source, used);
  for (size_t t = 0; t < tensors_.size();) {
    const ParamSpec& param = params_[tensors_[t].param];
    std::vector<float> values(static_cast<size_t>(param.count()), 0.0f);  // padding rows stay zero
    for (const size_t index = tensors_[t].param; t < tensors_.size() && tensors_[t].param == index; ++t) {
      const HfTensor& tensor = tensors_[t];
      const std::string name = name_in(source, tensor);
      const SafetensorsFile& file = *source.find(name);
      std::vector<float> theirs(static_cast<size_t>(file.at(name).count()));
      file.read_f32(name, theirs);
      tensor.for_each([&](int64_t our, int64_t their) { values[our] = theirs[their]; });
    }
    take(param, std::move(values));
  }
}

void HfMapping::write_hf(const std::string& directory,
                         const std::function<std::vector<float>(const std::string& name)>& source, StDtype dtype,
                         uint64_t shard_bytes) const {
  const char* torch_name = dtype == StDtype::kF32 ? "float32" : dtype == StDtype::kBF16 ? "bfloat16" : "float16";
  TW_CHECK(dtype == StDtype::kF32 || dtype == StDtype::kBF16 || dtype == StDtype::kF16);
  make_directories(directory);
  std::vector<std::vector<SafetensorsItem>> shards(1);
  uint64_t bytes = 0, total = 0;
  for (const HfTensor& tensor : tensors_) {
    const uint64_t size = static_cast<uint64_t>(tensor.rows * tensor.cols) * bits_of(dtype) / 8;
    if (!shards.back().empty() && bytes + size > shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += size;
    total += size;
    SafetensorsItem item{tensor.name, dtype, tensor.shape(), {}, {}};
    item.make = [this, &tensor, &source, dtype] {
      const ParamSpec& param = params_[tensor.param];
      const std::vector<float> ours = source(param.name);
      TW_CHECK(static_cast<int64_t>(ours.size()) == param.count(), param.name);
      std::vector<float> theirs(static_cast<size_t>(tensor.rows * tensor.cols));
      tensor.for_each([&](int64_t our, int64_t their) { theirs[their] = ours[our]; });
      if (dtype == StDtype::kF16) {
        // 65520 and more round to infinity: a model that was silently broken on its way out.
        const auto large = std::find_if(theirs.begin(), theirs.end(),
                                        [](float v) { return std::isfinite(v) && std::fabs(v) >= 65520.0f; });
        if (large != theirs.end())
          throw_bad_data("export: " + param.name + " holds " + std::to_string(*large) +
                         ", too large for f16; use bf16 or f32");
      }
      return encode_floats(theirs, dtype);
    };
    shards.back().push_back(std::move(item));
  }
  nlohmann::ordered_json index{{"metadata", {{"total_size", total}}}, {"weight_map", nlohmann::ordered_json::object()}};
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string file =
        shards.size() == 1 ? kSingle : printed("model-%05zu-of-%05zu.safetensors", s + 1, shards.size());
    for (const SafetensorsItem& item : shards[s]) index["weight_map"][item.name] = file;
    replace_safetensors(directory + "/" + file, std::move(shards[s]), {{"format", "pt"}});
  }
  // Never both: readers prefer the single file, which would then be an older model.
  if (shards.size() > 1) {
    write_file_atomic(directory + "/" + kIndex, index.dump(2) + "\n");
    ::unlink((directory + "/" + kSingle).c_str());
  } else {
    ::unlink((directory + "/" + kIndex).c_str());
  }
  write_file_atomic(directory + "/config.json",
                    hf_config_from_model(config_, torch_name, end_of_document_).dump(2) + "\n");
}

}  // namespace thinwire
