// Assembles the table of keys, and finds the key that an unknown name may have meant.
#include "engine/run/config/key_table.h"

#include <algorithm>
#include <string_view>

#include "engine/base/core/check.h"
#include "engine/base/core/text.h"
#include "engine/run/config/check_value.h"

namespace thinwire {
namespace {

using Names = std::map<std::string, std::string>;

// rows: a key of ours, and the words of other programs for it. Returns our key by their word.
Names by_their_name(const std::vector<std::pair<std::string, std::string>>& rows) {
  Names names;
  for (const auto& [ours, theirs] : rows)
    for (const std::string& word : split_words(theirs)) names[word] = ours;
  return names;
}

// What other programs call our keys: for hints in messages; none is accepted as a key.
const Names& foreign_names() {
  static const Names names = by_their_name({
      {"num_layers", "n_layer n_layers num_hidden_layers"},
      {"hidden_size", "n_embd d_model dim"},
      {"num_attention_heads", "n_head n_heads num_heads"},
      {"num_kv_heads", "n_kv_heads num_key_value_heads"},
      {"max_position_embeddings", "n_positions"},
      {"seq_length", "block_size context_length max_seq_len sequence_length"},
      {"rms_norm_epsilon", "rms_norm_eps"},
      {"layernorm_epsilon", "layer_norm_eps layer_norm_epsilon"},
      {"rotary_emb_base", "rope_theta"},
      {"rotary_pct", "partial_rotary_factor"},
      {"no_weight_tying", "tie_word_embeddings"},
      {"gpt_j_residual", "use_parallel_residual"},
      {"activation", "hidden_act activation_function"},
      {"lr", "learning_rate"},
      {"train_iters", "max_steps num_steps steps"},
      {"train_micro_batch_size_per_gpu", "batch_size micro_batch"},
      {"train_batch_size", "global_batch"},
      {"gradient_accumulation_steps", "accumulation"},
      {"model_parallel_size", "tp tp_size tensor_parallel tensor_parallel_size"},
      {"pipe_parallel_size", "pp pp_size pipeline_parallel_size"},
      {"virtual_chunks", "vpp num_chunks"},
      {"schedule", "interleave pipeline_schedule pipe_schedule"},
      {"global_num_gpus", "dp dp_size data_parallel_size num_ranks"},
      {"zero_optimization.stage", "sharding_strategy zero"},
      {"ranks_per_node", "gpus_per_node nproc_per_node"},
      {"watchdog_seconds", "timeout"},
      {"precision", "dtype"},
      {"hidden_dropout", "dropout"},
      {"gradient_clipping", "max_grad_norm grad_clip"},
      {"run_dir", "output_dir"},
      {"lr_warmup_iters", "warmup_steps"},
      {"threads_per_rank", "threads"},
      {"optimizer.params.eps", "eps"},
      {"optimizer.params.betas", "betas"},
  });
  return names;
}

// The same for fields of compression rules.
const Names& foreign_fields() {
  static const Names names = by_their_name({
      {"format", "dtype"},
      {"codec", "type quantiser quantizer compressor"},
      {"bits", "bit_width num_bits"},
      {"block", "group group_size block_size"},
      {"beta", "err_beta"},
      {"reset_every", "reset_t"},
      {"residual", "error_feedback use_error_feedback"},
      {"density", "k sparsity"},
      {"hadamard", "transform"},
      {"checksum", "crc"},
      {"warmup_steps", "warmup freeze_step start_powersgd_iter"},
      {"rank", "matrix_approximation_rank"},
      {"algorithm", "recipe"},
      {"min_bytes", "threshold"},
      {"select.stages", "stages"},
      {"select.layers", "layers"},
      {"select.tensor_classes", "tensor_classes"},
      {"select.micro_batches", "micro_batches"},
  });
  return names;
}

std::string_view leaf_of(std::string_view name) {
  return name.substr(name.rfind('.') + 1);  // the whole name where there is no dot
}

}  // namespace

std::string normalised_key(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<std::string> key_path(const std::string& name) {
  std::vector<std::string> path;
  std::string rest = name;
  if (rest.rfind("compression.", 0) == 0) {
    path.push_back("compression");
    rest = rest.substr(12);
    for (const std::string& site : compression_sites()) {
      if (rest.rfind(site + ".", 0) != 0) continue;
      path.push_back(site);
      rest = rest.substr(site.size() + 1);
    }
  }
  for (size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
    path.push_back(rest.substr(0, dot));
    rest = rest.substr(dot + 1);
  }
  path.push_back(rest);
  return path;
}

bool is_rule_key(const std::string& name) {
  return name == "compression.rules" || (name.starts_with("compression.") && key_path(name).size() > 2);
}

std::vector<std::string> type_words(unsigned types) {
  std::vector<std::string> words;
  unsigned bit = kBoolKey;
  for (const char* word : {"boolean", "integer", "number", "string", "list", "object"}) {
    if ((types & bit) != 0) words.emplace_back(word);
    bit *= 2;
  }
  return words;
}

std::string types_text(unsigned types) {
  if (types == kAnyKey) return "any";
  if (types == (kListKey | kRealKey)) return "list of numbers";
  return join(type_words(types), " or ");
}

KeyTable::KeyTable()
    : topics_{model_keys(),  numerics_keys(),    optimizer_keys(), batch_keys(), data_keys(),
              layout_keys(), compression_keys(), run_keys(),       noted_keys(), refused_keys()} {
  for (const KeyTopic& topic : topics_) {
    for (const KeySpec& key : topic.keys) {
      std::vector<std::string> names = key.aliases;
      names.push_back(key.name);
      for (const std::string& name : names) {
        TW_CHECK(by_name_.emplace(name, &key).second, "configuration key ", name, " is in the table twice");
        std::vector<std::string> objects = key_path(name);
        for (objects.pop_back(); !objects.empty(); objects.pop_back()) sections_.insert(join(objects, "."));
      }
      nlohmann::json value = nlohmann::json::parse(key.default_json);
      if (value.is_number_integer() && (key.types & kRealKey) != 0) value = value.get<double>();
      defaults_.emplace(&key, std::move(value));
    }
  }
  for (const std::string& section : sections_)
    TW_CHECK(by_name_.count(section) == 0, section, " is a key and a section");
}

const KeySpec* KeyTable::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

std::string KeyTable::section_value_key(const std::string& section) const {
  if (section == "optimizer") return "optimizer.type";
  if (section == "fp16") return "fp16.enabled";
  if (section == "bf16") return "bf16.enabled";
  if (section == "compression") return "compression.preset";
  if (section.rfind("compression.", 0) == 0 && !section.ends_with(".select")) return section + ".codec";
  return "";
}

std::string KeyTable::nearest(const std::string& name) const {
  if (name.size() > 80) return "";  // no key is that long, and the time is quadratic in the length
  // An object in an object where the name has a dot: {"dp": {"gradient": ...}}. tp and pp have two sites, and which is
  // meant stands further in.
  const auto inside = sections_.lower_bound(name + ".");
  if (inside != sections_.end() && inside->starts_with(name + ".") &&
      std::all_of(inside, sections_.end(), [&](const std::string& s) {
        return !s.starts_with(name + ".") || s == *inside || s.starts_with(*inside + ".");
      }))
    return *inside;
  const std::string leaf(leaf_of(name));
  const bool rule = name.rfind("compression.", 0) == 0;
  const Names& foreign = rule ? foreign_fields() : foreign_names();
  if (const auto it = foreign.find(leaf); it != foreign.end()) {
    const std::string other = rule ? name.substr(0, name.size() - leaf.size()) + it->second : it->second;
    if (find(other) != nullptr) return other;
  }
  const int limit = leaf.size() <= 3 ? 1 : leaf.size() <= 6 ? 2 : std::min(static_cast<int>(leaf.size()) / 3, 7);
  std::string best;
  int best_distance = limit + 1, best_rank = 0;
  const auto consider = [&](const std::string& candidate, int rank) {
    if (!rule && candidate.rfind("compression.", 0) == 0) return;  // else bits, rate ... are near to anything
    const int most = std::min(limit, best_distance), full = edit_distance(name, candidate, most);
    const int by_leaf = edit_distance(leaf, leaf_of(candidate), most) + 1;  // the right name in another section
    const int distance = std::min(full, by_leaf);
    if (full > by_leaf) rank += 100;  // of two equally near names, the one in the same section
    if (distance < best_distance || (distance == best_distance && distance <= limit && rank < best_rank)) {
      best = candidate;
      best_distance = distance;
      best_rank = rank;
    }
  };
  for (const auto& [candidate, key] : by_name_)
    consider(candidate, 2 * static_cast<int>(key->status) + (candidate == key->name ? 0 : 1));
  for (const std::string& section : sections_) consider(section, 1);
  return best;
}

const KeyTable& key_table() {
  static const KeyTable table;
  return table;
}

}  // namespace thinwire
