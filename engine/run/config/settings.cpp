// Flattens, checks, rewrites and merges what the user wrote.
#include "engine/run/config/settings.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "engine/run/config/check_value.h"
#include "engine/run/config/key_table.h"
#include "engine/run/config/presets.h"
#include "engine/run/config/resolved_json.h"
#include "engine/run/config/yaml_text.h"

namespace thinwire {
namespace {

// The first kind of attention in NeoX's [[["global"], 12]] or [[["flash"], "all"]] that is not plain causal attention;
// empty if there is none.
std::string foreign_attention(const nlohmann::json& value) {
  if (value.is_string()) return value == "global" || value == "flash" ? "" : value.get<std::string>();
  if (!value.is_array()) return "";
  const bool counted = value.size() == 2 && value[0].is_array() && value[1] == "all";
  for (size_t i = 0; i < (counted ? 1 : value.size()); ++i)
    if (const std::string found = foreign_attention(value[i]); !found.empty()) return found;
  return "";
}

// Keys that say the same thing in different words: within one source only one side may be given; a later source that
// gives one side withdraws the others.
const std::vector<std::vector<std::vector<std::string>>>& exclusive_groups() {
  static const std::vector<std::vector<std::vector<std::string>>> groups = {
      {{"ffn_hidden_size"}, {"intermediate_size"}, {"expansion_factor"}},
      {{"warmup"}, {"lr_warmup_iters"}, {"lr_warmup_samples"}},
      {{"lr_decay_iters"}, {"lr_decay_samples"}},
      {{"lr_wsd_decay_iters"}, {"lr_wsd_decay_samples"}},
      {{"virtual_chunks"}, {"num_layers_per_virtual_pipeline_stage"}},
      {{"train_iters"}, {"train_samples"}},
      {{"min_lr"}, {"decay_lr_to"}},
      {{"data_path", "split"},
       {"train_data_paths", "train_data_weights", "valid_data_paths", "valid_data_weights", "test_data_paths",
        "test_data_weights"}}};
  return groups;
}

// Words of other trainers that say something where they are true, or more than 1.
constexpr const char* kWords[] = {"swiglu",
                                  "use_rotary_position_embeddings",
                                  "no_position_embedding",
                                  "openai_gelu",
                                  "no_bias_gelu_fusion",
                                  "disable_bias_linear",
                                  "recompute_activations",
                                  "ds_sequence_parallel_fpdt",
                                  "ds_sequence_parallel_fpdt_offloading",
                                  "zero_optimization.zero_hpz_partition_size"};

}  // namespace

void throw_problems(std::vector<ConfigProblem> problems) {
  const auto place = [](const ConfigProblem& p) {
    return std::tuple(p.place.order, p.place.at.line, p.place.at.column);
  };
  std::stable_sort(problems.begin(), problems.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
  const auto same = [&](const auto& a, const auto& b) {
    return place(a) == place(b) && a.key == b.key && a.message == b.message;
  };
  problems.erase(std::unique(problems.begin(), problems.end(), same), problems.end());
  std::string text = problems.size() == 1 ? "the configuration has 1 problem"
                                          : "the configuration has " + std::to_string(problems.size()) + " problems";
  for (const ConfigProblem& p : problems) text.append("\n").append(p.text());
  throw_bad_config(text);
}

struct SettingsReader::Source {
  int order = 0;
  std::string name;  // file name, or what messages call the override
  bool override = false;
  std::string raw_value;  // of an override
  Settings settings;

  Place place(TextPosition at) const {
    if (override) return {order, {1, 1}, name};
    return {order, at, name + ":" + std::to_string(at.line) + ":" + std::to_string(at.column)};
  }
};

void SettingsReader::problem(const Place& place, const std::string& key, const std::string& message) {
  problems_.push_back({place, key, message});
}

std::optional<JsonTree> SettingsReader::parse_object(const std::string& text, const Source& source) {
  JsonText parsed = is_yaml_name(source.name) ? parse_yaml_text(text) : parse_json_text(text);
  for (const JsonProblem& p : parsed.problems) problem(source.place(p.at), p.key, p.message);
  const bool object = parsed.root.kind == JsonTree::Kind::kObject;
  if (parsed.syntax_ok() && object) return std::move(parsed.root);
  if (parsed.syntax_ok())
    problem(source.place(parsed.root.at), "",
            std::string("a configuration is one object { ... }, not ") + kind_name(parsed.root.kind));
  broken_.insert("*");
  return std::nullopt;
}

void SettingsReader::add_text(const std::string& name, const std::string& text) {
  Source source;
  source.order = sources_++;
  source.name = name;
  if (source.order == 0) first_place_ = source.place({1, 1});
  std::optional<JsonTree> root = parse_object(text, source);
  if (!root) return;
  take_version(*root, source);
  if (const JsonMember* preset = preset_of(*root)) {
    // The preset itself is read when the layout is known: here the file stands for its name.
    const std::string meant = is_shipped(name, text) ? preset_name(name) : name;
    source.settings["compression.preset"] = {meant, source.place(preset->value.at), preset->key, {}};
  } else {
    read_object(*root, "", source);
  }
  read_.push_back(std::move(source.settings));
}

// A resolved file says of which version it is; one that says nothing is of the time when intermediate_size was what
// ffn_hidden_size is now.
void SettingsReader::take_version(JsonTree& root, const Source& source) {
  bool resolved = false;
  int64_t version = 1;
  for (const JsonMember& m : root.members) {
    if (m.key == "_notes") resolved = true;
    if (normalised_key(m.key) != "config_version") continue;
    resolved = true;
    version = m.value.kind == JsonTree::Kind::kInt ? m.value.integer : -1;
    if (version < 1 || version > kConfigVersion)
      problem(source.place(m.value.at), m.key,
              "must be an integer from 1 to " + std::to_string(kConfigVersion) + ", the version of this program");
  }
  if (!resolved || version != 1) return;
  for (JsonMember& m : root.members)
    if (m.key == "intermediate_size") m.key = "ffn_hidden_size";
}

void SettingsReader::add_preset(const std::string& name, const std::string& text) {
  Source source;
  source.order = sources_++;
  source.name = name;
  const std::optional<JsonTree> root = parse_object(text, source);
  if (!root) return;
  if (preset_of(*root) == nullptr)
    problem(source.place(root->at), "", "a preset is an object with \"preset\", a sentence, and \"rules\", a list");
  for (const JsonMember& m : root->members) {
    const std::string key = normalised_key(m.key);
    if (key == "preset") continue;
    if (key == "placement" && m.value.kind == JsonTree::Kind::kList) {
      source.settings[key] = {to_json(m.value), source.place(m.value.at), m.key,
                              read_rules(m.value, key, m.key, source)};
    } else if (key == "placement" || key == "embedding_sync") {
      read_entry(key, m.key, source.place(m.at), m.value, source);
    } else if (key == "rules" || key == "sends") {
      read_entry("compression." + key, m.key, source.place(m.at), m.value, source);
    } else {
      problem(source.place(m.at), m.key, "no key of a preset (preset, rules, placement, embedding_sync, sends)");
    }
  }
  read_.push_back(std::move(source.settings));
}

void SettingsReader::add_unreadable(const std::string& name, const std::string& reason) {
  problem({sources_++, {1, 1}, name + ":1:1"}, "", "cannot be read: " + reason);
  broken_.insert("*");
}

void SettingsReader::add_override(const std::string& text, const std::string& shown) {
  Source source;
  source.order = sources_++;
  source.name = shown.empty() ? "command line: " + (text.size() > 200 ? text.substr(0, 197) + "..." : text) : shown;
  source.override = true;
  if (source.order == 0) first_place_ = {0, {1, 1}, "command line"};
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    problem(source.place({}), "", "an override is key=value");
    return;
  }
  const std::string key = text.substr(0, equals);
  source.raw_value = text.substr(equals + 1);
  JsonText parsed = parse_json_text(source.raw_value);
  if (!parsed.syntax_ok()) {
    parsed = JsonText();
    parsed.root.kind = JsonTree::Kind::kString;
    parsed.root.text = source.raw_value;
  }
  for (const JsonProblem& p : parsed.problems) problem(source.place(p.at), key + "." + p.key, p.message);
  read_entry(normalised_key(key), key, source.place({}), parsed.root, source);
  read_.push_back(std::move(source.settings));
}

void SettingsReader::read_object(const JsonTree& object, const std::string& prefix, Source& source) {
  for (const JsonMember& m : object.members) {
    const std::string name = normalised_key(m.key);
    if (prefix.empty() && (m.key == "$schema" || name == "_notes" || name == "config_version")) continue;
    const std::string path = prefix.empty() ? name : prefix + "." + name;
    const std::string spelled = prefix.empty() ? m.key : prefix + "." + m.key;
    read_entry(path, spelled, source.place(m.at), m.value, source);
  }
}

void SettingsReader::read_entry(const std::string& path, const std::string& spelled, const Place& key_place,
                                const JsonTree& value, Source& source) {
  const KeyTable& table = key_table();
  // Older files, and whoever means both ways.
  const std::string both = "compression.sequence", rest = path.substr(std::min(path.size(), both.size()));
  if (path.rfind(both, 0) == 0 && (rest.empty() || rest[0] == '.') && !table.is_section(path) &&
      table.find(path) == nullptr) {
    for (const char* way : {".forward", ".backward"}) read_entry(both + way + rest, spelled, key_place, value, source);
    return;
  }
  if (const KeySpec* key = table.find(path)) return read_value(*key, spelled, key_place, value, source);
  if (!table.is_section(path)) return unknown_key(path, spelled, key_place);
  if (value.kind == JsonTree::Kind::kObject) return read_object(value, path, source);
  if (value.kind == JsonTree::Kind::kNull) return withdraw(path, spelled, source.place(value.at), source);
  const std::string meant = table.section_value_key(path);
  const KeySpec* key = meant.empty() ? nullptr : table.find(meant);
  const bool fits = key != nullptr && ((value.kind == JsonTree::Kind::kBool && (key->types & kBoolKey) != 0) ||
                                       (value.kind == JsonTree::Kind::kString && (key->types & kStringKey) != 0));
  if (fits) return read_value(*key, spelled, key_place, value, source);
  problem(source.place(value.at), spelled, std::string("must be an object { ... }, not ") + kind_name(value.kind));
  broken_.insert(path);
}

// Each element is read as the object of a site would be, or as the section `prefix`; its fields keep their names
// behind the prefix.
std::vector<WrittenRule> SettingsReader::read_rules(const JsonTree& list, const std::string& prefix,
                                                    const std::string& spelled, const Source& source) {
  // All sites have the same fields.
  const std::string section = prefix.empty() ? "compression." + compression_sites().front() : prefix;
  std::vector<WrittenRule> rules;
  for (const JsonTree& item : list.items) {
    WrittenRule rule{.place = source.place(item.at), .spelled = spelled + "[" + std::to_string(rules.size()) + "]"};
    const size_t problems = problems_.size();
    if (item.kind != JsonTree::Kind::kObject)
      problem(rule.place, rule.spelled, std::string("must be an object { ... }, not ") + kind_name(item.kind));
    Source inside = source;
    inside.settings.clear();
    for (const JsonMember& m : item.members) {
      const std::string name = normalised_key(m.key), full = rule.spelled + "." + m.key;
      if (name == "when") {
        read_when(m.value, full, source, rule.when);
      } else if (name == "site" && prefix.empty()) {
        rule.sites = read_sites(m.value, full, source);
      } else {
        read_entry(section + "." + name, full, source.place(m.at), m.value, inside);
      }
    }
    if (prefix.empty() && rule.sites.empty() && problems == problems_.size())
      problem(rule.place, rule.spelled, "missing: site, one of the sites of compression, a list of them, or \"all\"");
    // The element is what was written, not the section that it was read as.
    const auto as_written = [&](std::string& text) {
      const std::string dotted = section + ".";
      for (size_t at = text.find(dotted); at != std::string::npos; at = text.find(dotted, at + rule.spelled.size()))
        text.replace(at, section.size(), rule.spelled);
    };
    for (size_t p = problems; p < problems_.size(); ++p) as_written(problems_[p].key), as_written(problems_[p].message);
    for (auto& [name, setting] : inside.settings) {
      as_written(setting.spelled);
      if (!setting.value.is_null()) rule.fields[name.substr(section.size() + 1)] = std::move(setting);
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

std::vector<std::string> SettingsReader::read_sites(const JsonTree& value, const std::string& spelled,
                                                    const Source& source) {
  KeySpec site{.name = "site", .types = kStringKey, .allowed = compression_sites()};
  for (const char* several : {"all", "sequence"}) site.allowed.push_back(several);
  std::set<std::string> named;
  const std::vector<JsonTree> one = {value};
  for (const JsonTree& item : value.kind == JsonTree::Kind::kList ? value.items : one) {
    const Checked checked = check_value(site, item);
    if (!checked.error.empty() || checked.value.is_null())
      problem(source.place(item.at), spelled, checked.error.empty() ? "must be a string, not null" : checked.error);
    else
      named.insert(checked.value.get<std::string>());
  }
  std::vector<std::string> sites;
  for (const std::string& s : compression_sites())
    if (named.contains(s) || named.contains("all") || (s.rfind("sequence.", 0) == 0 && named.contains("sequence")))
      sites.push_back(s);
  return sites;
}

void SettingsReader::read_when(const JsonTree& value, const std::string& spelled, const Source& source,
                               Settings& when) {
  if (value.kind != JsonTree::Kind::kObject)
    problem(source.place(value.at), spelled, std::string("must be an object { ... }, not ") + kind_name(value.kind));
  for (const JsonMember& m : value.members) {
    const std::string name = normalised_key(m.key);
    std::string names;
    const KeySpec* condition = nullptr;
    for (const KeySpec& c : when_conditions()) {
      names += (names.empty() ? "" : ", ") + c.name;
      if (c.name == name) condition = &c;
    }
    if (condition == nullptr) {
      problem(source.place(m.at), spelled + "." + m.key, "no such condition (" + names + ")");
      continue;
    }
    const Checked checked = check_value(*condition, m.value);
    if (!checked.error.empty() || checked.value.is_null())
      problem(source.place(checked.at), spelled + "." + m.key, checked.error.empty() ? "needs a value" : checked.error);
    else
      when[name] = {checked.value, source.place(m.value.at), spelled + "." + m.key, {}};
  }
}

// A rule (or all of them) is taken back as a whole; other objects are only headings, and null says nothing.
void SettingsReader::withdraw(const std::string& section, const std::string& spelled, const Place& place,
                              Source& source) {
  if (section.rfind("compression", 0) != 0) return;
  for (const KeyTopic& topic : key_table().topics())
    for (const KeySpec& key : topic.keys)
      if (key.status == KeyStatus::kUsed && key.name.rfind(section + ".", 0) == 0)
        source.settings.emplace(key.name, Setting{nullptr, place, spelled, {}});
}

void SettingsReader::unknown_key(const std::string& path, const std::string& spelled, const Place& place) {
  const std::string near = key_table().nearest(path);
  const std::string shown_key = spelled.size() > 80 ? spelled.substr(0, 77) + "..." : spelled;
  problem(place, shown_key,
          near.empty() ? "unknown key (docs/config.md and train --help-keys list all)"
                       : "unknown key (nearest key: " + near + ")");
  // What was probably meant is not reported as missing on top.
  if (const KeySpec* key = key_table().find(near)) broken_.insert(key->name);
}

void SettingsReader::read_value(const KeySpec& key, const std::string& spelled, const Place& key_place,
                                const JsonTree& value, Source& source) {
  if (const auto it = source.settings.find(key.name); it != source.settings.end() && !it->second.value.is_null()) {
    if (value.kind == JsonTree::Kind::kNull) return;  // not given
    return problem(key_place, spelled,
                   "given twice; the first is \"" + it->second.spelled + "\" at " + it->second.place.label);
  }
  const Place place = source.place(value.at);
  if (value.kind == JsonTree::Kind::kNull) {
    source.settings[key.name] = {nullptr, place, spelled, {}};
    return;
  }
  if (key.status == KeyStatus::kNoted) {
    const std::string foreign = key.name == "attention_config" ? foreign_attention(to_json(value)) : "";
    if (!foreign.empty())
      return problem(place, spelled,
                     "layers of the kind " + shown(foreign) + " are not supported (allowed: global | flash)");
    notes_.push_back({spelled, key.doc});
    return;
  }
  if (key.status == KeyStatus::kRefused) {
    const nlohmann::json given = to_json(value);
    bool neutral = given == nlohmann::json(false) || (given.is_object() && given.empty());
    for (const std::string& text : key.neutral) neutral = neutral || given == nlohmann::json::parse(text);
    // Sections of other trainers that are switched off inside say nothing.
    if (given.is_object() && given.contains("enabled") && given["enabled"] == false) neutral = true;
    if (given.is_object() && given.contains("device") && given["device"] == "none") neutral = true;
    if (neutral) {
      notes_.push_back({spelled, key.doc + "; " + shown(given) + " is how it is here anyway"});
      return;
    }
    problem(place, spelled, "not supported: " + key.doc);
    broken_.insert(key.name);
    return;
  }
  if (key.name == "compression.rules" && value.kind == JsonTree::Kind::kList) {
    const size_t problems = problems_.size();
    source.settings[key.name] = {to_json(value), place, spelled, read_rules(value, "", spelled, source)};
    if (problems != problems_.size()) broken_.insert(key.name);
    return;
  }
  Checked checked = check_value(key, value);
  if (!checked.error.empty() && source.override && (key.types & kStringKey) != 0 &&
      value.kind != JsonTree::Kind::kString) {
    // run_dir=2024: the text was meant, not the number that it happens to be.
    JsonTree text;
    text.kind = JsonTree::Kind::kString;
    text.text = source.raw_value;
    checked = check_value(key, text);
  }
  if (!checked.error.empty()) {
    problem(source.place(checked.at), spelled, checked.error);
    broken_.insert(key.name);
    return;
  }
  source.settings[key.name] = {checked.value, place, spelled, {}};
}

void SettingsReader::merge() {
  // A word that is false (of the partition size: 1) or null takes back what earlier sources said by it, and nothing
  // else.
  for (auto later = read_.begin(); later != read_.end(); ++later)
    for (const char* word : kWords)
      if (const auto it = later->find(word); it != later->end())
        if (const nlohmann::json& v = it->second.value; v.is_null() || v == false || v == 1)
          for (auto earlier = read_.begin(); earlier != later; ++earlier) earlier->erase(word);
  for (Settings& source : read_) rewrite_shorthands(source), merge(source);
}

void SettingsReader::rewrite_shorthands(Settings& s) {
  const auto take = [&](const std::string& key) -> std::optional<Setting> {
    const auto it = s.find(key);
    if (it == s.end()) return std::nullopt;
    const Setting setting = it->second;
    s.erase(it);
    if (setting.value.is_null()) return std::nullopt;
    return setting;
  };
  const auto take_if_true = [&](const std::string& word) -> std::optional<Setting> {
    std::optional<Setting> v = take(word);
    return v && v->value.get<bool>() ? v : std::nullopt;
  };
  const auto put = [&](const std::string& key, const nlohmann::json& value, const Setting& from) {
    const auto it = s.find(key);
    if (it != s.end() && !it->second.value.is_null() && it->second.value != value)
      problem(from.place, from.spelled,
              "contradicts \"" + it->second.spelled + "\" at " + it->second.place.label + ": give one of them");
    else
      s[key] = {value, from.place, from.spelled, {}};
  };
  // A null here takes back what earlier sources said.
  const auto so_far = [&](const std::string& key) -> const Setting* {
    for (const Settings* from : {&s, &merged_})
      if (const auto it = from->find(key); it != from->end()) return it->second.value.is_null() ? nullptr : &it->second;
    return nullptr;
  };
  if (const auto v = take("use_distributed_optimizer"))
    put("zero_optimization.stage", v->value.get<bool>() ? 1 : 0, *v);
  if (const auto v = take("distributed_timeout_minutes")) put("watchdog_seconds", v->value.get<double>() * 60.0, *v);
  if (const auto v = take("zero_optimization.zero_hpz_partition_size"); v && v->value.get<int64_t>() > 1)
    put("placement.secondary", v->value.get<int64_t>() == 2 ? "pair" : "node", *v);
  if (const auto v = take("optimizer.params.max_grad_norm")) put("gradient_clipping", v->value, *v);
  if (const auto v = take("norm_epsilon")) {
    put("layernorm_epsilon", v->value, *v);
    put("rms_norm_epsilon", v->value, *v);
  }
  if (const auto v = take("no_scatter_gather_tensors_in_pipeline"))
    put("scatter_gather_tensors_in_pipeline", !v->value.get<bool>(), *v);
  if (const auto v = take_if_true("swiglu")) put("activation", "swiglu", *v);
  if (const auto v = take_if_true("use_rotary_position_embeddings")) put("pos_emb", "rotary", *v);
  if (const auto v = take_if_true("no_position_embedding")) {
    // The learned table goes: beside other positions the word says nothing. Each flag is a source of its own.
    const Setting* said = so_far("pos_emb");
    if (said == nullptr || said->value == "learned") put("pos_emb", "none", *v);
  }
  if (const auto v = take_if_true("openai_gelu")) put("bias_gelu_fusion", true, *v);
  if (const auto v = take_if_true("no_bias_gelu_fusion")) {
    // Megatron's --openai-gelu wins over its --no-bias-gelu-fusion, in whatever order they come.
    const Setting* said = so_far("bias_gelu_fusion");
    if (said == nullptr || normalised_key(said->spelled) != "openai_gelu") put("bias_gelu_fusion", false, *v);
  }
  if (const auto v = take_if_true("disable_bias_linear")) {
    put("use_bias_in_attn_linear", false, *v);
    put("use_bias_in_mlp", false, *v);
  }
  if (const auto v = take("checkpoint_activations"))
    put("recompute_granularity", v->value.get<bool>() ? "full" : "none", *v);
  if (const auto v = take_if_true("recompute_activations")) put("recompute_granularity", "selective", *v);
  if (const auto v = take("activations_checkpoint_method")) put("recompute_granularity", "full", *v);
  if (const auto v = take_if_true("ds_sequence_parallel_fpdt"); v && so_far("sequence_chunk_size") == nullptr)
    put("sequence_chunk_size", 65536, *v);
  if (const auto v = take_if_true("ds_sequence_parallel_fpdt_offloading")) put("activation_offload", "host", *v);
  if (const auto v = take("initial_loss_scale")) {
    const double power = std::log2(v->value.get<double>());
    if (power != std::floor(power))
      problem(v->place, v->spelled, "must be a power of two");
    else
      put("fp16.initial_scale_power", static_cast<int64_t>(power), *v);
  }
  const auto beta1 = take("adam_beta1"), beta2 = take("adam_beta2");
  if (beta1 || beta2) {
    const Setting* said = so_far("optimizer.params.betas");
    nlohmann::json betas = {0.9, 0.999};
    if (said != nullptr && said->value.is_array() && said->value.size() == 2) betas = said->value;
    if (beta1) betas[0] = beta1->value;
    if (beta2) betas[1] = beta2->value;
    put("optimizer.params.betas", betas, beta1 ? *beta1 : *beta2);
  }

  // Precision: three ways to say it, and `enabled: false` withdraws only its own kind.
  auto half = take("fp16.enabled"), bfloat = take("bf16.enabled");
  if (const auto type = take("fp16.type"); type && type->value == "bfloat16" && half && !bfloat)
    std::swap(half, bfloat);
  const bool half_on = half && half->value.get<bool>(), bfloat_on = bfloat && bfloat->value.get<bool>();
  if (half_on && bfloat_on) {
    problem(bfloat->place, bfloat->spelled,
            "contradicts \"" + half->spelled + "\" at " + half->place.label + ": fp16 or bf16, not both");
    broken_.insert("precision");
    return;
  }
  if (half_on) put("precision", "fp16", *half);
  if (bfloat_on) put("precision", "bf16", *bfloat);
  const auto withdraw = [&](const std::optional<Setting>& off, const char* kind) {
    if (!off || off->value.get<bool>()) return;
    const auto here = s.find("precision");
    if (here != s.end() && here->second.value == kind)
      problem(off->place, off->spelled, "contradicts \"" + here->second.spelled + "\" at " + here->second.place.label);
    const auto before = merged_.find("precision");
    if (here == s.end() && before != merged_.end() && before->second.value == kind) merged_.erase(before);
  };
  withdraw(half, "fp16");
  withdraw(bfloat, "bf16");
}

void SettingsReader::merge(Settings& source) {
  const auto given = [&](const std::string& key) {
    const auto it = source.find(key);
    return it != source.end() && !it->second.value.is_null() ? &it->second : nullptr;
  };
  // A warm-up of 0 is Megatron's default: beside another word for the warm-up it says nothing.
  const std::vector<std::string> warm_ups = {"lr_warmup_iters", "lr_warmup_samples", "warmup"};
  for (const std::string& key : {warm_ups[0], warm_ups[1]}) {
    const auto is_other = [&](const std::string& other) { return other != key && given(other) != nullptr; };
    if (given(key) != nullptr && given(key)->value == 0 && std::any_of(warm_ups.begin(), warm_ups.end(), is_other))
      source.erase(key);
  }
  for (const auto& sides : exclusive_groups()) {
    const Setting* first = nullptr;
    size_t first_side = 0;
    for (size_t side = 0; side < sides.size(); ++side) {
      for (const std::string& key : sides[side]) {
        const Setting* s = given(key);
        if (s == nullptr) continue;
        if (first != nullptr && first_side != side) {
          problem(s->place, s->spelled,
                  "contradicts \"" + first->spelled + "\" at " + first->place.label + ": give one of them");
        } else if (first == nullptr) {
          first = s;
          first_side = side;
        }
      }
    }
    // `split` alone does not withdraw lists per split: that is a contradiction, found when both are resolved.
    const bool only_split =
        first != nullptr && first_side == 0 && sides[0].back() == "split" && given(sides[0].front()) == nullptr;
    if (first == nullptr || only_split) continue;
    for (size_t side = 0; side < sides.size(); ++side) {
      if (side == first_side) continue;
      for (const std::string& key : sides[side]) merged_.erase(key);
    }
  }
  for (auto& [key, setting] : source) {
    if (setting.value.is_null())
      merged_.erase(key);
    else
      merged_[key] = setting;
  }
}

}  // namespace thinwire
