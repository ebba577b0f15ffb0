// Reads presets, and turns the rules written in them and in compression.rules into SiteRules.
#include "engine/run/config/presets.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "compression/codec_table.h"
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/run/config/rule_fields.h"

namespace thinwire {
namespace {

constexpr int64_t kAssumedIters = 1000;  // what shares of the run's steps refer to where train_iters is not known
constexpr size_t kMaxPresetBytes = 1 << 20;

// Conditions of `when` on a number of the layout.
constexpr std::pair<const char*, int64_t RuleContext::*> kLayoutNumbers[] = {
    {"pipeline", &RuleContext::stages},
    {"data", &RuleContext::data},
    {"tensor", &RuleContext::tensor},
    {"ranks_per_node", &RuleContext::ranks_per_node},
    {"data_per_node", &RuleContext::data_on_node}};

// The field's value; shares become numbers: of the run's steps (warm-up, places of a ramp), or lists of stages.
nlohmann::json value_of(const KeySpec& field, const nlohmann::json& written, const RuleContext& context) {
  const auto steps_of = [&](const nlohmann::json& share) {
    const int64_t steps = context.train_iters > 0 ? context.train_iters : kAssumedIters;
    // The small addend undoes the binary rounding of fractions like 0.1.
    return static_cast<int64_t>(std::floor(share.get<double>() * static_cast<double>(steps) + 1e-6));
  };
  if (field.name == "warmup_steps" && written.is_number_float()) return steps_of(written);
  if (field.ramp && written.is_array()) {
    nlohmann::json ramp = written;
    for (nlohmann::json& pair : ramp)
      if (pair.front().is_number_float()) pair.front() = steps_of(pair.front());
    return ramp;
  }
  if (field.name == "select.stages" && written.is_number()) {
    const auto count = static_cast<int64_t>(written.get<double>() * static_cast<double>(context.stages) + 1e-6);
    nlohmann::json stages = nlohmann::json::array();
    for (int64_t s = 0; s < std::max<int64_t>(1, count); ++s) stages.push_back(s);
    return stages;
  }
  return written;
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names = {"none"};
  for (const ShippedPreset& p : shipped_presets()) names.emplace_back(p.name);
  return names;
}

const std::vector<KeySpec>& when_conditions() {
  static const std::vector<KeySpec> conditions = [] {
    std::vector<KeySpec> list = {{.name = "two_level", .types = kBoolKey},
                                 {.name = "weights_persist", .types = kBoolKey}};
    for (const auto& [name, member] : kLayoutNumbers)
      list.push_back({.name = name, .types = kIntKey | kStringKey, .allowed = {"even", "odd"}});
    return list;
  }();
  return conditions;
}

bool holds(const Settings& when, const RuleContext& c) {
  return std::all_of(when.begin(), when.end(), [&](const auto& condition) {
    const auto& [name, setting] = condition;
    const nlohmann::json& value = setting.value;
    if (value.is_boolean()) return value == (name == "two_level" ? c.two_level() : c.weights_persist);
    const auto number = std::ranges::find(kLayoutNumbers, name, [](const auto& each) { return each.first; });
    const int64_t n = c.*number->second;
    return value.is_string() ? (n % 2 == 0) == (value == "even") : value == n;
  });
}

bool is_preset_path(const std::string& name) {
  return name.size() > 5 && name.ends_with(".json");
}

std::string preset_name(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

bool is_shipped(const std::string& path, const std::string& text) {
  for (const ShippedPreset& p : shipped_presets())
    if (preset_name(path) == p.name) return text == p.text;
  return false;
}

const JsonMember* preset_of(const JsonTree& root) {
  const JsonMember *preset = nullptr, *rules = nullptr;
  for (const JsonMember& m : root.members) {
    if (m.key == "preset" && m.value.kind == JsonTree::Kind::kString) preset = &m;
    if (m.key == "rules" && m.value.kind == JsonTree::Kind::kList) rules = &m;
  }
  return rules != nullptr ? preset : nullptr;
}

Settings read_preset(const std::string& name, std::vector<ConfigProblem>& problems) {
  if (name == "none") return {};
  SettingsReader reader;
  const auto shipped = std::find_if(shipped_presets().begin(), shipped_presets().end(),
                                    [&](const ShippedPreset& p) { return name == p.name; });
  if (shipped != shipped_presets().end())
    reader.add_preset("configs/compression/" + name + ".json", shipped->text);
  else if (is_preset_path(name))
    reader.add_preset(name, read_file(name, kMaxPresetBytes));
  else
    throw_bad_config("there is no compression preset \"" + name + "\" (docs/presets.md lists all)");
  reader.merge();
  if (reader.problems().empty()) return reader.settings();
  problems.insert(problems.end(), reader.problems().begin(), reader.problems().end());
  return {};
}

Settings placement_of(const Settings& preset, const RuleContext& context) {
  Settings levels;
  const std::string prefix = "placement.";
  for (const auto& [key, setting] : preset)
    if (key.starts_with(prefix)) levels[key.substr(prefix.size())] = setting;
  if (const auto list = preset.find("placement"); list != preset.end())
    for (const WrittenRule& entry : list->second.rules)
      if (holds(entry.when, context)) return entry.fields;
  return levels;
}

void apply_fields(SiteRule& rule, const GivenField& given, const RuleContext& context) {
  const auto text = [&](const char* field) {
    const nlohmann::json* value = given(field);
    return value == nullptr ? std::string() : value->get<std::string>();
  };
  if (const std::string codec = text("codec"); !codec.empty() && codec != rule.codec.codec) {
    rule.codec = codec_spec(codec);
    rule.sum_codec = CodecSpec();
    rule.residual = rule.sum_residual = ResidualSpec();
    rule.has_sum_codec = false;
  }
  bool gives_sum = false;
  for (const KeySpec& field : rule_fields())
    gives_sum = gives_sum || (field.name.starts_with("sum.") && given(field.name) != nullptr);
  const auto set_fields = [&](bool of_sum) {
    for (const KeySpec& field : rule_fields())
      if (const nlohmann::json* value = given(field.name); value && field.name.starts_with("sum.") == of_sum)
        set_rule_value(rule, field.name, value_of(field, *value, context));
  };
  set_fields(false);
  if (gives_sum && !rule.has_sum_codec)
    rule.sum_codec = rule.codec;  // fields that `sum` does not give are the rule's own
  if (const std::string codec = text("sum.codec"); !codec.empty() && codec != rule.sum_codec.codec) {
    rule.sum_codec = codec_spec(codec);
    rule.sum_residual = ResidualSpec();
  }
  set_fields(true);
}

SiteRule rule_of(const WrittenRule& written, const RuleContext& context) {
  SiteRule rule;
  const auto given = [&](const std::string& field) {
    const auto it = written.fields.find(field);
    return it == written.fields.end() ? nullptr : &it->second.value;
  };
  apply_fields(rule, given, context);
  return rule;
}

}  // namespace thinwire
