// The resolver's topics of compression: what a preset says of the layout, and the rule of every site.
#include <algorithm>
#include <cmath>

#include "compression/codecs/ecsq.h"
#include "compression/presets.h"
#include "engine/run/config/resolver.h"
#include "engine/run/config/rule_check.h"
#include "engine/run/config/rule_fields.h"

namespace thinwire {
namespace {

std::string prefix_of(Site site) {
  return "compression." + std::string(name_of(site)) + ".";
}

}  // namespace

void Resolver::preset() {
  if (!known({"compression.preset"})) return;
  PresetContext c;
  const auto number = [&](const char* key) { return known({key}) ? integer(key) : 0; };
  const int64_t stages = number("pipe_parallel_size"), tensor = number("model_parallel_size"),
                ranks = number("global_num_gpus");
  if (stages < 1 || tensor < 1 || ranks < stages * tensor) return;
  c.pipeline = static_cast<int>(stages);
  c.tensor = static_cast<int>(tensor);
  c.data = static_cast<int>(ranks / (stages * tensor));
  c.ranks_per_node = static_cast<int>(ranks_per_node());
  c.layers = number("num_layers");
  c.train_iters = number("train_iters");
  const int64_t local = c.ranks_per_node > 0 ? data_ranks_on_node(ranks, c.data, tensor, c.ranks_per_node) : 0;
  c.data_per_node = static_cast<int>(local);
  c.two_level = local > 1 && local < c.data;
  const std::string name = text("compression.preset");
  preset_ = expand_preset(name, c);
  const auto place = [&](const char* key, const std::optional<std::string>& level) {
    if (!level || broken(key) || !value(key).is_null()) return;
    // An explicit level of another kind may not nest with the preset's: then the explicit one is refused as usual.
    set(key, *level);
  };
  place("placement.weights", preset_.weights);
  place("placement.gradients", preset_.gradients);
  place("placement.optimizer", preset_.optimizer);
  if (!is("placement.weights", "replicated")) place("placement.secondary", preset_.secondary);
  if (preset_.embedding_sync && given("embedding_sync") == nullptr && !broken("embedding_sync"))
    set("embedding_sync", *preset_.embedding_sync);
  if (preset_.weights && given("zero_optimization.stage") != nullptr && given("placement.optimizer") == nullptr)
    note("zero_optimization.stage", "compression.preset " + name + " says which state is sharded");
  // What is sharded is known now, and some presets look at it.
  c.weights_persist = weights_persist();
  preset_ = expand_preset(name, c);
}

// Gathered weights lie where another unit's were, and a difference would be one between two layers. (A secondary copy
// is a part of each unit: nothing to add a whole one's difference to. Held for a step units have memory of their own,
// but no checkpoint has what is in it.)
bool Resolver::weights_persist() const {
  const bool by_stage = known({"zero_optimization.stage"}) && integer("zero_optimization.stage") == 3;
  const bool sharded = known({"placement.weights"}) ? !is("placement.weights", "replicated") : by_stage;
  return !sharded;
}

// The preset's rule for the site, overridden by what was given; nullopt: neither says anything.
std::optional<SiteRule> Resolver::site_rule(Site site) {
  const auto of_preset = preset_.rules.find(site);
  bool any = of_preset != preset_.rules.end();
  SiteRule rule = any ? of_preset->second : SiteRule();
  const auto given_text = [&](const char* field) {
    const Setting* s = given(prefix_of(site) + field);
    return s == nullptr ? std::string() : s->value.get<std::string>();
  };
  // Parameters belong to a codec: another codec starts from its own.
  if (const std::string codec = given_text("codec"); !codec.empty() && codec != rule.codec.codec) {
    rule.codec = default_codec(codec);
    rule.sum_codec = CodecSpec();
    rule.residual = rule.sum_residual = ResidualSpec();
    rule.has_sum_codec = false;
  }
  bool sum = false;
  for (const KeySpec& field : rule_fields())
    sum = sum || (field.name.rfind("sum.", 0) == 0 && given(prefix_of(site) + field.name) != nullptr);
  if (sum && !rule.has_sum_codec) rule.sum_codec = rule.codec;
  if (const std::string codec = given_text("sum.codec"); !codec.empty() && codec != rule.sum_codec.codec) {
    rule.sum_codec = default_codec(codec);
    rule.sum_residual = ResidualSpec();
  }
  for (const KeySpec& field : rule_fields()) {
    const Setting* s = given(prefix_of(site) + field.name);
    if (s == nullptr) continue;
    any = true;
    set_rule_value(rule, field.name, s->value);
  }
  if (!any) return std::nullopt;
  // A preset's light coding does not stand in the way of a rate that it does not have.
  const auto leave_light = [&](CodecSpec& codec, const char* key) {
    codec.light = codec.light && (codec.rate <= kHighestLightRate || given(prefix_of(site) + key) != nullptr);
  };
  leave_light(rule.codec, "light");
  leave_light(rule.sum_codec, "sum.light");
  return rule;
}

void Resolver::compression() {
  RuleContext context;
  const auto number = [&](const char* key, int64_t otherwise) { return known({key}) ? integer(key) : otherwise; };
  // Where a size is not known (it was refused), nothing is out of range.
  context.stages = number("pipe_parallel_size", 65536);
  context.layers = number("num_layers", 10000);
  context.tensor = number("model_parallel_size", 1);
  context.data = std::max<int64_t>(1, number("global_num_gpus", 1) / (context.stages * context.tensor));
  context.ranks_per_node = ranks_per_node();
  context.train_iters = number("train_iters", 0);
  context.weights_persist = weights_persist();
  if (context.ranks_per_node > 0 && known({"global_num_gpus", "pipe_parallel_size"}))
    context.data_on_node =
        data_ranks_on_node(integer("global_num_gpus"), context.data, context.tensor, context.ranks_per_node);
  for (size_t i = 0; i < kSiteNames.size(); ++i) {
    const Site site = static_cast<Site>(i);
    if (site == Site::kControl) continue;
    select_lists(site);
    if (const std::optional<SiteRule> rule = site_rule(site)) check_site(site, *rule, context);
  }
  sends();
}

// Lists hold numbers, or any JSON: whole numbers and names are left to us.
void Resolver::select_lists(Site site) {
  for (const char* field : {"select.stages", "select.layers"}) {
    const Setting* s = given(prefix_of(site) + field);
    if (s == nullptr) continue;
    for (const auto& n : s->value)
      if (n.get<double>() != std::floor(n.get<double>()))
        refuse(prefix_of(site) + field, "holds " + n.dump() + ", which is no whole number");
  }
  const std::string key = prefix_of(site) + "select.tensor_classes";
  const Setting* s = given(key);
  if (s == nullptr) return;
  for (const auto& name : s->value) {
    bool found = false;
    for (TensorClass c : {TensorClass::kEmbedding, TensorClass::kAttention, TensorClass::kMlp, TensorClass::kNorm,
                          TensorClass::kBias, TensorClass::kHead})
      found = found || name == word_of(c);
    if (!found)
      refuse(key, shown(name) + " is no class of tensors (allowed: embedding | attention | mlp | norm | bias | head)");
  }
}

void Resolver::check_site(Site site, const SiteRule& rule, const RuleContext& context) {
  const std::string prefix = prefix_of(site);
  const std::string preset = "compression.preset";
  for (const RuleFault& fault : check_rule(site, rule, context)) {
    std::string key;
    for (const std::string& field : fault.fields)
      if (key.empty() && given(prefix + field) != nullptr) key = prefix + field;
    if (fault.note)
      note(key.empty() ? prefix + fault.fields.front() : key, fault.message);
    else if (!key.empty())
      refuse(key, fault.message);
    else  // nobody wrote it: the preset's, under a layout that it does not go with
      refuse(preset, prefix + fault.fields.front() + ": " + fault.message);
  }
  const std::string why = absent(site, context);
  if (!why.empty() && rule.codec.codec != "identity" && given(prefix + "codec") != nullptr)
    note(prefix + "codec", "has no effect: " + why);
  for (const KeySpec& field : rule_fields()) {
    const std::string key = prefix + field.name;
    if (field_matters(rule, field.name))
      set(key, rule_value(rule, field.name));
    else {
      if (const Setting* s = given(key); s != nullptr && rule_value(SiteRule(), field.name) != s->value)
        note(key, "has no effect beside " + std::string(field.name.rfind("sum.", 0) == 0
                                                            ? "sum.codec " + rule.sum_codec.codec
                                                            : "codec " + rule.codec.codec));
      set(key, nullptr);
    }
  }
}

// What dp.gradient carries.
void Resolver::sends() {
  if (!broken("compression.adapt") && value("compression.adapt").is_null()) set("compression.adapt", preset_.adapt);
  if (broken("compression.sends")) return;
  if (value("compression.sends").is_null()) {
    if (!preset_.sends) return;
    set("compression.sends", *preset_.sends);
  }
  if (!is("compression.sends", "momentum")) return;
  const auto blame = [&](const std::string& why) {
    refuse(given("compression.sends") != nullptr ? "compression.sends" : "compression.preset",
           "momentum instead of gradients " + why);
  };
  if (known({"optimizer.type"}) && !is("optimizer.type", "adam")) blame("is for optimizer.type adam");
  if (known({"placement.optimizer"}) && !is("placement.optimizer", "replicated"))
    blame("needs the whole momentum on every rank: placement.optimizer replicated (zero_optimization.stage 0)");
  if (given("gradient_clipping") != nullptr && known({"gradient_clipping"}) && real("gradient_clipping") > 0.0)
    note("gradient_clipping", "momenta are not clipped: it ends with compression.dp.gradient.warmup_steps");
}

}  // namespace thinwire
