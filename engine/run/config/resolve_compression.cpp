// The resolver's topics of compression: what a preset says of the layout, and the rules of every site.
#include <algorithm>
#include <cmath>
#include <set>

#include "compression/codec_table.h"
#include "engine/base/core/error.h"
#include "engine/base/core/text.h"
#include "engine/run/config/check_value.h"
#include "engine/run/config/enum_words.h"
#include "engine/run/config/presets.h"
#include "engine/run/config/resolver.h"
#include "engine/run/config/rule_fields.h"

namespace thinwire {
namespace {

std::string prefix_of(Site site) {
  return "compression." + std::string(name_of(site)) + ".";
}

const Setting* find(const Settings& settings, const std::string& key) {
  const auto it = settings.find(key);
  return it == settings.end() ? nullptr : &it->second;
}

// Lists ascend; an empty one is everything.
template <typename T>
bool covers(const std::vector<T>& a, const std::vector<T>& b) {
  return a.empty() || (!b.empty() && std::includes(a.begin(), a.end(), b.begin(), b.end()));
}

// Whether every message that b selects is selected by a. A critical rule leaves gradients that are hidden to those
// behind it, which may be critical, too.
bool covers(const SelectSpec& a, const SelectSpec& b) {
  return covers(a.stages, b.stages) && covers(a.layers, b.layers) && covers(a.tensor_classes, b.tensor_classes) &&
         (a.micro_batches == MicroBatches::kAll ||
          (a.micro_batches == b.micro_batches && a.micro_batches != MicroBatches::kCritical));
}

bool is_plain(const SiteRule& rule) {
  return rule.codec.codec == "identity" && !rule.codec.checksum && !rule.has_sum_codec;
}

// What a field depends on that has no effect in the rule: its codec, or its residual.
std::string beside(const SiteRule& rule, const std::string& field) {
  const bool sum = field.starts_with("sum.");
  static const std::set<std::string> of_residual = {"residual_dtype", "beta", "reset_every", "on_skip"};
  const std::string of = of_residual.contains(sum ? field.substr(4) : field)
                             ? "residual " + word_of((sum ? rule.sum_residual : rule.residual).kind)
                             : "codec " + (sum ? rule.sum_codec : rule.codec).codec;
  return (sum ? "sum." : "") + of;
}

}  // namespace

RuleContext Resolver::rule_context() const {
  RuleContext context;
  const auto number = [&](const char* key, int64_t otherwise) { return known({key}) ? integer(key) : otherwise; };
  // Where a size is not known (it was refused), nothing is out of range.
  context.stages = number("pipe_parallel_size", 65536);
  context.layers = number("num_layers", 10000);
  context.tensor = number("model_parallel_size", 1);
  context.context = number("context_parallel_size", 1);
  context.data = std::max<int64_t>(1, number("global_num_gpus", 1) / (context.stages * context.tensor));
  context.ranks_per_node = ranks_per_node();
  context.train_iters = number("train_iters", 0);
  context.weights_persist = weights_persist();
  context.sums_return = known({"placement.optimizer"}) && is("placement.optimizer", "replicated");
  context.timed = known({"link_gbps", "pipe_partition_costs"}) && real("link_gbps") > 0.0;
  if (context.ranks_per_node > 0 && known({"global_num_gpus", "pipe_parallel_size"}))
    context.data_on_node =
        data_ranks_on_node(integer("global_num_gpus"), context.data, context.tensor, context.ranks_per_node);
  return context;
}

void Resolver::preset() {
  if (!known({"compression.preset", "pipe_parallel_size", "model_parallel_size", "global_num_gpus"})) return;
  if (integer("global_num_gpus") < integer("pipe_parallel_size") * integer("model_parallel_size")) return;
  const std::string name = text("compression.preset");
  try {
    preset_ = read_preset(name, reader_.problems());
  } catch (const Error& e) {
    return refuse("compression.preset", std::string("cannot be read: ") + e.what());
  }
  const Settings levels = placement_of(preset_, rule_context());
  const auto place = [&](const std::string& level) {
    const Setting* said = find(levels, level);
    const std::string key = "placement." + level;
    if (said == nullptr || broken(key) || !value(key).is_null()) return;
    // An explicit level of another kind may not nest with the preset's: then the explicit one is refused as usual.
    set(key, said->value);
  };
  place("weights");
  place("gradients");
  place("optimizer");
  if (!is("placement.weights", "replicated")) place("secondary");
  const Setting* sync = find(preset_, "embedding_sync");
  if (sync != nullptr && given("embedding_sync") == nullptr && !broken("embedding_sync"))
    set("embedding_sync", sync->value);
  if (find(levels, "weights") != nullptr && given("zero_optimization.stage") != nullptr &&
      given("placement.optimizer") == nullptr)
    note("zero_optimization.stage", "compression.preset " + name + " says which state is sharded");
}

// Gathered weights lie where another unit's were, and a difference would be one between two layers. (A secondary copy
// is a part of each unit: nothing to add a whole one's difference to. Held for a step units have memory of their own,
// but no checkpoint has what is in it.)
bool Resolver::weights_persist() const {
  const bool by_stage = known({"zero_optimization.stage"}) && integer("zero_optimization.stage") == 3;
  const bool sharded = known({"placement.weights"}) ? !is("placement.weights", "replicated") : by_stage;
  return !sharded;
}

// The site's rules in their order: those of compression.rules, then the preset's; over each of them what the site's own
// object says.
std::vector<ListedRule> Resolver::rules_of(Site site, const RuleContext& context) const {
  std::vector<ListedRule> list;
  const auto append = [&](const Setting* rules, bool of_preset) {
    if (rules == nullptr) return;
    for (const WrittenRule& w : rules->rules)
      if (std::find(w.sites.begin(), w.sites.end(), name_of(site)) != w.sites.end() && holds(w.when, context))
        list.push_back({rule_of(w, context), &w, of_preset});
  };
  append(given("compression.rules"), false);
  append(find(preset_, "compression.rules"), true);
  const GivenField object = [&](const std::string& field) {
    const Setting* s = given(prefix_of(site) + field);
    return s == nullptr ? nullptr : &s->value;
  };
  const auto& fields = rule_fields();
  if (list.empty() && site == Site::kDpGradient && known({"grad_reduce_in_bf16"}) && flag("grad_reduce_in_bf16"))
    list.push_back({{.codec = codec_spec("cast")}});
  else if (list.empty() && std::any_of(fields.begin(), fields.end(), [&](const KeySpec& f) { return object(f.name); }))
    list.push_back({});
  for (ListedRule& listed : list) {
    apply_fields(listed.rule, object, context);
    // A preset's parameter does not stand in the way of what a user says of others, be it for a part of the run.
    const auto give_way = [&](CodecSpec& codec, const std::string& prefix) {
      std::set<int64_t> places = ramp_places(codec);
      places.insert(0);
      for (const CodecParameter& p : codec_row(codec.codec).parameters) {
        if (p.goes_with == nullptr || said(site, listed, prefix + p.key.name) != nullptr) continue;
        if (!std::ranges::all_of(places, [&](int64_t place) { return p.goes_with(codec_at(codec, place)); }))
          codec[p.key.name] = p.otherwise, codec.ramps.erase(p.key.name);
      }
    };
    give_way(listed.rule.codec, "");
    give_way(listed.rule.sum_codec, "sum.");
  }
  return list;
}

// What the configuration, not the preset, says of a field of the rule.
const Setting* Resolver::said(Site site, const ListedRule& rule, const std::string& field) const {
  if (const Setting* s = given(prefix_of(site) + field)) return s;
  return rule.written != nullptr && !rule.of_preset ? find(rule.written->fields, field) : nullptr;
}

// Rules behind one that selects all that they do select nothing, and what no rule selects is sent as it is: identity at
// the end says nothing.
std::vector<ListedRule> Resolver::effective(std::vector<ListedRule> list) {
  std::vector<ListedRule> kept;
  for (ListedRule& listed : list)
    if (std::none_of(kept.begin(), kept.end(),
                     [&](const ListedRule& k) { return covers(k.rule.select, listed.rule.select); }))
      kept.push_back(std::move(listed));
  while (kept.size() > 1 && is_plain(kept.back().rule)) kept.pop_back();
  return kept;
}

void Resolver::compression() {
  const RuleContext context = rule_context();
  for (const Setting* rules : {given("compression.rules"), find(preset_, "compression.rules")})
    for (const WrittenRule& written : rules != nullptr ? rules->rules : std::vector<WrittenRule>())
      select_lists([&](const std::string& field) { return find(written.fields, field); });
  std::set<const WrittenRule*> listed, reached;  // those of the configuration that code something
  for (size_t i = 0; i < kSiteNames.size(); ++i) {
    const Site site = static_cast<Site>(i);
    if (site == Site::kControl) continue;
    select_lists([&](const std::string& field) { return given(prefix_of(site) + field); });
    const std::vector<ListedRule> rules = rules_of(site, context);
    for (const ListedRule& rule : rules)
      if (!rule.of_preset && !is_plain(rule.rule)) listed.insert(rule.written);
    for (const ListedRule& rule : effective(rules)) reached.insert(rule.written), check_site(site, rule, context);
  }
  for (const WrittenRule* rule : listed)
    if (!reached.contains(rule))
      note(rule->spelled, "has no effect: rules before it select all that it does; put it in front of them");
  if (known({"grad_reduce_in_bf16"}) && flag("grad_reduce_in_bf16") &&
      rules_[Site::kDpGradient].front().codec != codec_spec("cast"))
    note("grad_reduce_in_bf16", "has no effect: the preset or a rule says how dp.gradient is coded");
  else if (const std::string why = absent(Site::kDpGradient, context); !why.empty())
    note_unread({"grad_reduce_in_bf16"}, why);
  if (given("compression.adapt_interval") != nullptr && known({"compression.adapt"}) && !flag("compression.adapt"))
    note("compression.adapt_interval", "has no effect without compression.adapt");
  const auto is_coded = [&](const auto& of_site) {
    return absent(of_site.first, context).empty() && !std::ranges::all_of(of_site.second, is_plain);
  };
  if (known({"compression.adapt"}) && flag("compression.adapt") && std::ranges::none_of(rules_, is_coded))
    note("compression.adapt", "has nothing to decide: nothing that this layout sends is coded");
  sends();
  sensitivities();
}

// Lists hold numbers, or any JSON: whole numbers and names are left to us.
void Resolver::select_lists(const std::function<const Setting*(const std::string&)>& setting) {
  const auto wrong = [&](const Setting& s, const std::string& message) {
    reader_.problems().push_back({s.place, s.spelled, message});
  };
  for (const char* field : {"select.stages", "select.layers"}) {
    const Setting* s = setting(field);
    if (s == nullptr || !s->value.is_array()) continue;
    for (const auto& n : s->value)
      if (n.get<double>() != std::floor(n.get<double>())) wrong(*s, "holds " + n.dump() + ", which is no whole number");
  }
  const Setting* s = setting("select.tensor_classes");
  if (s == nullptr) return;
  const std::vector<std::string> classes = EnumWords::of(TensorClass());
  for (const nlohmann::json& name : s->value)
    if (std::ranges::none_of(classes, [&](const std::string& c) { return name == c; }))
      wrong(*s, shown(name) + " is no class of tensors (allowed: " + join(classes, " | ") + ")");
}

void Resolver::check_site(Site site, const ListedRule& listed, const RuleContext& context) {
  const SiteRule& rule = listed.rule;
  const std::string prefix = prefix_of(site);
  const auto note_at = [&](const std::string& field, const std::string& message) {
    const bool in_list = given(prefix + field) == nullptr && said(site, listed, field) != nullptr;
    note(in_list ? listed.written->spelled + "." + field : prefix + field, message);
  };
  for (const RuleFault& fault : check_rule(site, rule, context)) {
    // What a field that was refused is by default is not what was meant.
    if (std::ranges::any_of(fault.fields, [&](const std::string& field) { return broken(prefix + field); })) continue;
    const auto found = std::find_if(fault.fields.begin(), fault.fields.end(),
                                    [&](const std::string& field) { return said(site, listed, field) != nullptr; });
    const std::string field = found == fault.fields.end() ? fault.fields.front() : *found, name = prefix + field;
    const Setting* blamed = said(site, listed, field);
    if (fault.note)
      note_at(field, fault.message);
    else if (blamed != nullptr)
      reader_.problems().push_back({blamed->place, blamed->spelled, fault.message});
    else if (listed.written != nullptr && !listed.of_preset)
      reader_.problems().push_back({listed.written->place, listed.written->spelled, name + ": " + fault.message});
    else  // nobody wrote it: the preset's, under a layout that it does not go with
      refuse("compression.preset", name + ": " + fault.message);
  }
  // A rule for several sites has an effect where one of them is there.
  const auto is_absent = [&](const std::string& name) {
    const auto at = std::ranges::find(kSiteNames, name);
    return !absent(static_cast<Site>(at - kSiteNames.begin()), context).empty();
  };
  const bool elsewhere = given(prefix + "codec") == nullptr && listed.written != nullptr &&
                         !std::ranges::all_of(listed.written->sites, is_absent);
  const std::string why = absent(site, context);
  if (!why.empty() && !elsewhere && rule.codec.codec != "identity" && said(site, listed, "codec") != nullptr)
    note_at("codec", "has no effect: " + why);
  for (const KeySpec& field : rule_fields()) {
    const Setting* s = said(site, listed, field.name);
    if (s != nullptr && !field_matters(rule, field.name) && rule_value(SiteRule(), field.name) != s->value)
      note_at(field.name, "has no effect beside " + beside(rule, field.name));
  }
  rules_[site].push_back(canonical(rule));
}

void Resolver::sensitivities() {
  if (!known({"compression.sensitivities"})) return;
  if (value("compression.sensitivities").size() != 4)
    return fail({"compression.sensitivities"}, "must hold four numbers: embedding, attention, mlp, the rest");
  const std::vector<SiteRule>& rules = rules_[Site::kDpGradient];
  if (std::ranges::none_of(rules, [](const SiteRule& r) { return r.select.micro_batches == MicroBatches::kCritical; }))
    note("compression.sensitivities", "has no effect without rules of dp.gradient for critical micro_batches");
}

// What dp.gradient carries.
void Resolver::sends() {
  const Setting* sent = find(preset_, "compression.sends");
  if (broken("compression.sends")) return;
  if (value("compression.sends").is_null()) {
    if (sent == nullptr) return;
    set("compression.sends", sent->value);
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
  // No rule keeps a residual before momenta are sent: it would be of gradients, and count in a momentum 1 / (1 - beta1)
  // times as much as the gradient itself.
  int64_t warm_up = 1;  // as MomentumSender counts it
  if (const auto rules = rules_.find(Site::kDpGradient); rules != rules_.end())
    for (const SiteRule& rule : rules->second) warm_up = std::max(warm_up, rule.warmup_steps);
  for (auto& [site, rules] : rules_) {
    if (site != Site::kDpGradient && site != Site::kEmbedding) continue;
    for (SiteRule& rule : rules)
      if (rule.residual.kind != ResidualKind::kNone || rule.sum_residual.kind != ResidualKind::kNone)
        rule.warmup_steps = std::max(rule.warmup_steps, warm_up);
  }
}

}  // namespace thinwire
