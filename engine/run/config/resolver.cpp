// The resolver's shared helpers, its topic of the run itself (run_dir, save, load ...), and the order of all topics.
#include "engine/run/config/resolver.h"

#include <algorithm>
#include <cmath>

#include "engine/base/core/check.h"
#include "engine/base/core/text.h"
#include "engine/run/config/check_value.h"
#include "engine/run/config/key_table.h"
#include "engine/run/config/megatron_args.h"

namespace thinwire {

const Setting* Resolver::given(const std::string& key) const {
  const auto it = reader_.settings().find(key);
  return it == reader_.settings().end() || broken(key) ? nullptr : &it->second;
}

nlohmann::json Resolver::value(const std::string& key) const {
  if (const auto it = values_.find(key); it != values_.end()) return it->second;
  if (const Setting* s = given(key)) return s->value;
  const KeySpec* spec = key_table().find(key);
  TW_CHECK(spec != nullptr, "no configuration key ", key);
  return key_table().default_of(*spec);
}

bool Resolver::known(std::initializer_list<const char*> keys) const {
  for (const char* key : keys)
    if (broken(key) || value(key).is_null()) return false;
  return true;
}

void Resolver::fail(std::initializer_list<const char*> keys, const std::string& message) {
  for (const char* key : keys) {
    if (const Setting* s = given(key)) {
      reader_.problems().push_back({s->place, s->spelled, message});
      return;
    }
  }
  reader_.problems().push_back({reader_.first_place(), *keys.begin(), message});
}

void Resolver::note_unread(std::initializer_list<const char*> keys, const std::string& why) {
  for (const char* key : keys) {
    const Setting* s = given(key);
    // What Megatron has by default nobody wrote.
    if (s == nullptr || s->place.label.starts_with(kMegatronDefaults)) continue;
    if (s->value != key_table().default_of(*key_table().find(key))) note(key, "has no effect: " + why);
  }
}

void Resolver::check_required() {
  for (const KeyTopic& topic : key_table().topics()) {
    for (const KeySpec& key : topic.keys) {
      if (!key.required || broken(key.name) || !value(key.name).is_null()) continue;
      const std::string also = key.aliases.empty() ? "" : " (or " + join(key.aliases, ", ") + ")";
      fail({key.name.c_str()}, "missing: it has no default" + also);
    }
  }
}

void Resolver::fill_the_rest() {
  for (const KeyTopic& topic : key_table().topics())
    for (const KeySpec& key : topic.keys)
      if (key.status == KeyStatus::kUsed && values_.count(key.name) == 0 && !is_rule_key(key.name))
        set(key.name, value(key.name));
}

ResolvedConfig Resolver::take() {
  ResolvedConfig result;
  result.values = std::move(values_);
  for (const auto& [key, setting] : reader_.settings()) result.given.insert(key);
  std::map<std::string, std::string> notes;  // one per key: a later one replaces it
  for (const ConfigNote& n : reader_.notes()) notes[n.key] = n.text;
  for (const ConfigNote& n : notes_) notes[n.key] = n.text;
  for (const auto& [key, message] : notes) result.notes.push_back({key, message});
  result.run = to_run_config(result.values);
  result.run.layout.found_ranks_per_node = options_.found_ranks_per_node;
  result.run.data.done_iters = options_.done_iters, result.run.data.done_samples = options_.done_samples;
  result.run.compression.rules = std::move(rules_);
  return result;
}

void Resolver::run(const std::string& stem) {
  if (!broken("run_dir") && value("run_dir").is_null()) {
    // Runs without a config file that save to different places must not overwrite each other's metrics.
    const bool saved = stem.empty() && known({"save"}) && !is("save", "");
    set("run_dir", saved ? text("save") : "runs/" + (stem.empty() ? "run" : stem));
  }
  for (const char* key : {"run_dir", "save", "load", "init_from_hf"})
    if (is(key, "")) fail({key}, "must not be empty; leave the key out instead");
  if (known({"run_dir"}) && !broken("save") && value("save").is_null()) set("save", text("run_dir") + "/checkpoints");
  const auto trimmed = [](std::string path) {
    while (path.rfind("./", 0) == 0) path.erase(0, 2);
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
  };
  const bool load_is_save = known({"load", "save"}) && trimmed(text("load")) == trimmed(text("save"));
  if (load_is_save) {
    note("load", "the same path as save: a run resumes from there by itself");
    set("load", nullptr);
  }
  for (const nlohmann::json& step : known({"extra_save_iters"}) ? value("extra_save_iters") : nlohmann::json::array())
    if (const double number = step.get<double>(); number != std::floor(number))
      fail({"extra_save_iters"}, step.dump() + " is not a whole number");
  if (known({"iterations_to_skip"})) {
    const nlohmann::json written = value("iterations_to_skip");
    const nlohmann::json steps = written.is_array() ? written : nlohmann::json::array({written});
    for (const nlohmann::json& step : steps)
      if (const double n = step.is_number() ? step.get<double>() : 0.0; n < 1.0 || n > 1e12 || n != std::floor(n))
        fail({"iterations_to_skip"}, shown(step) + " is no step: they are whole numbers, from 1 on");
    set("iterations_to_skip", steps);
  }
  if (is("spike", "off")) note_unread({"spike_window", "spike_threshold", "spike_budget"}, "spike is off");
  if (is("spike", "warn")) note_unread({"spike_budget"}, "only spike skip reads it");
  if (known({"straggler_interval"}) && integer("straggler_interval") == 0)
    note_unread({"straggler_ratio"}, "straggler_interval is 0");
  if (known({"keep_last_n_checkpoints"}) && integer("keep_last_n_checkpoints") == 1)
    note("keep_last_n_checkpoints", "at least 2 verified checkpoints stay");
  if (known({"prefetch_batches"}) && integer("prefetch_batches") == 0) {
    note("prefetch_batches", "1: a batch is always read while the one before it is computed");
    set("prefetch_batches", 1);
  }
  if (known({"finetune"}) && flag("finetune") && value("load").is_null() && !broken("load")) {
    const std::string missing = load_is_save ? "load is the same path as save, where a run resumes: say in load which "
                                               "checkpoint to take weights from, or leave finetune out"
                                             : "needs load: the checkpoint to take weights from";
    // NeoX's file of local paths, given after one for finetuning, names one directory for load and save.
    if (options_.dry_run)
      note("finetune", "a run is refused, the dry run needs no weights: " + missing);
    else
      fail({"finetune"}, missing);
  }
  if (!broken("load") && value("load").is_null())
    note_unread({"no_load_optim"}, load_is_save
                                       ? "load is the same path as save, where a run resumes with its optimizer; say "
                                         "in load which checkpoint to take, and another run_dir"
                                       : "there is no load");
  if (known({"load", "init_from_hf"})) fail({"init_from_hf"}, "contradicts load: weights come from one place");
  trace_range();
  if (const Setting* faults = given("faults"); faults != nullptr && !faults->value.empty() && !options_.allow_faults)
    fail({"faults"}, "faults are injected only with --allow-faults");
  if (known({"deterministic"}) && is("device", "cpu") && !flag("deterministic"))
    note("deterministic", "the CPU is always deterministic");
  if (known({"product_table"})) {
    if (is("device", "cpu")) note("product_table", "the CPU has no algorithms to choose from");
    if (known({"deterministic"}) && !flag("deterministic"))
      fail({"product_table", "deterministic"}, "without deterministic every run measures anew");
  }
  if (known({"cuda_graphs"}) && is("device", "cpu") && flag("cuda_graphs"))
    note("cuda_graphs", "the CPU has no launches to save");
}

ResolvedConfig resolve(SettingsReader& reader, const std::string& stem, const ConfigOptions& options) {
  ResolvedConfig result;
  if (reader.broken().count("*") != 0) return result;  // a source is missing: all that follows would be guesses
  Resolver resolver(reader, options);
  resolver.model();
  resolver.vocabulary();
  resolver.precision();
  resolver.layout();
  resolver.batch();
  resolver.tokens_for_tensor_ranks();
  resolver.preset();
  resolver.placement();
  resolver.communication();
  resolver.schedule();
  resolver.token_chunks();
  resolver.data();
  resolver.compression();
  resolver.gradient_dtype();
  resolver.run(stem);
  resolver.check_required();
  if (!reader.problems().empty()) return result;
  resolver.fill_the_rest();
  return resolver.take();
}

}  // namespace thinwire
