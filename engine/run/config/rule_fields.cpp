// The fields of a rule, one entry each: key, when it has a meaning, and its value to and from JSON.
#include "engine/run/config/rule_fields.h"

#include <algorithm>
#include <functional>
#include <set>
#include <type_traits>
#include <utility>

#include "engine/base/core/check.h"
#include "engine/run/config/enum_words.h"
#include "engine/run/config/key_table.h"

namespace thinwire {
namespace {

using nlohmann::json;

// A field of a rule, to and from JSON.
struct Field {
  KeySpec key;
  std::function<json(const SiteRule&)> get;
  std::function<void(SiteRule&, const json&)> set;
  std::function<bool(const SiteRule&)> matters = nullptr;  // has the field a meaning in this rule? nullptr: always
};

// at(rule): reference to the value: a number, a flag or an enumerator.
template <typename At>
Field field(KeySpec key, const At& at, std::function<bool(const SiteRule&)> matters = nullptr) {
  using Value = std::remove_cvref_t<decltype(at(std::declval<SiteRule&>()))>;
  if constexpr (std::is_enum_v<Value>) {
    key.allowed = EnumWords::of(Value());
    return {std::move(key), [at](const SiteRule& r) { return json(word_of(at(r))); },
            [at](SiteRule& r, const json& v) { at(r) = from_word<Value>(v.get<std::string>()); }, std::move(matters)};
  } else {
    return {std::move(key), [at](const SiteRule& r) { return json(at(r)); },
            [at](SiteRule& r, const json& v) { v.get_to(at(r)); }, std::move(matters)};
  }
}

json value_json(const CodecValue& value) {
  return std::visit([](const auto& v) { return json(v); }, value);
}

json ramp_json(const Ramp& ramp) {
  json list = json::array();
  for (const auto& [place, value] : ramp) list.push_back(json::array({place, value_json(value)}));
  return list;
}

// Fields of the rule's codec and residual; sum: of its second ones, for sums.
std::vector<Field> compression_fields(bool sum) {
  const auto codec = [sum](auto& r) -> auto& {
    return sum ? r.sum_codec : r.codec;
  };
  const auto residual = [sum](auto& r) -> auto& {
    return sum ? r.sum_residual : r.residual;
  };
  const auto coded = [codec](const SiteRule& r) { return codec(r).codec != "identity"; };
  const auto any_residual = [residual](const SiteRule& r) { return residual(r).kind != ResidualKind::kNone; };
  const auto ema = [residual](const SiteRule& r) { return residual(r).kind == ResidualKind::kEma; };
  std::vector<Field> f;
  f.push_back(
      {key("codec", kStringKey, "null",
           "How the site's messages are coded (docs/codecs.md). A codec other than the preset's starts from its "
           "own defaults and without residual and sum.",
           {.default_text = "identity", .allowed = codec_names()}),
       [codec](const SiteRule& r) { return json(codec(r).codec); },
       [codec](SiteRule& r, const json& v) {
         if (v != codec(r).codec) codec(r) = codec_spec(v.get<std::string>());
       }});
  // In a rule whose codec lacks a parameter, get() gives the default of the codecs that have it, if they agree on one.
  for (const KeySpec& parameter : codec_keys()) {
    const auto has = [codec, name = parameter.name](const SiteRule& r) { return codec(r).parameters.contains(name); };
    std::set<CodecValue> defaults;
    for (const CodecRow& row : codec_table())
      if (const CodecParameter* p = row.find(parameter.name)) defaults.insert(p->otherwise);
    const CodecValue otherwise = defaults.size() == 1 ? *defaults.begin() : CodecValue();
    f.push_back({parameter,
                 [=, name = parameter.name](const SiteRule& r) {
                   const CodecSpec& c = codec(r);
                   if (const auto ramp = c.ramps.find(name); ramp != c.ramps.end()) return ramp_json(ramp->second);
                   return value_json(has(r) ? c.parameters.at(name) : otherwise);
                 },
                 [=, name = parameter.name](SiteRule& r, const json& v) {
                   if (!has(r)) return;
                   CodecSpec& c = codec(r);
                   Ramp ramp;  // a single value is a ramp of one place
                   for (const json& pair : v.is_array() ? v : json::array({{0, v}})) {
                     CodecValue value = c[name];  // for its type
                     std::visit([&](auto& typed) { pair.back().get_to(typed); }, value);
                     ramp.push_back({pair.front().get<int64_t>(), value});
                   }
                   c[name] = ramp.front().second;
                   c.ramps.erase(name);
                   if (ramp.size() > 1) c.ramps[name] = ramp;
                 },
                 has});
  }
  f.push_back(field(
      key("hadamard", kBoolKey, "null", "Transform in front of the codec: orthonormal, blocks of 32; spreads outliers.",
          {.default_text = "false"}),
      [codec](auto& r) -> auto& { return codec(r).hadamard; }, coded));
  f.push_back(field(
      key("checksum", kBoolKey, "null",
          "Every message of the rule carries a CRC-32C, coded or not, whatever the key checksum says of others.",
          {.default_text = "false"}),
      [codec](auto& r) -> auto& { return codec(r).checksum; },
      [codec, coded](const SiteRule& r) { return codec(r).checksum || coded(r); }));
  f.push_back(field(
      key("residual", kStringKey, "null",
          "What becomes of the coding error: lost; added to the next message (error_feedback; lazy: that of the next "
          "coded micro-batch); a moving average of it is (ema); or the difference to what the receivers have is sent "
          "instead of the value (value_difference).",
          {.default_text = "none"}),
      [residual](auto& r) -> auto& { return residual(r).kind; }));
  f.push_back(field(
      key("residual_dtype", kStringKey, "null",
          "What residual error_feedback or lazy is kept in. bf16, and int8 with a scale per 256 elements, are rounded "
          "up or down at random, so that nothing is lost on average.",
          {.default_text = "fp32"}),
      [residual](auto& r) -> auto& { return residual(r).dtype; },
      [residual](const SiteRule& r) {
        return residual(r).kind == ResidualKind::kErrorFeedback || residual(r).kind == ResidualKind::kLazy;
      }));
  f.push_back(field(
      key("beta", kRealKey, "null",
          "residual ema: share of the average that stays; 1 - beta of the new error joins it.",
          {.default_text = "0.8", .bounds = {.min = 0, .max = 1, .open_max = true}}),
      [residual](auto& r) -> auto& { return residual(r).beta; }, ema));
  f.push_back(field(
      key("reset_every", kIntKey, "null", "residual ema: steps between resets to zero; 0: never.",
          {.default_text = "0", .bounds = {0, 1e12}, .unit = "steps"}),
      [residual](auto& r) -> auto& { return residual(r).reset_every; }, ema));
  f.push_back(field(
      key("on_skip", kStringKey, "null",
          "What a residual is after a skipped step: as before it (costs a second copy), or "
          "zero.",
          {.default_text = "restore"}),
      [residual](auto& r) -> auto& { return residual(r).on_skip; }, any_residual));
  if (!sum) return f;
  for (Field& each : f) {
    if (each.key.name == "codec") {
      each.key.default_text = "the rule's own, without residual";
      each.key.doc =
          "sum: {codec, bits, ..., residual, ...}, the same fields as the rule's: the second coding, of sums on "
          "their way "
          "back (all-reduce) and between nodes (two_level). Fields that are left out are the rule's.";
    }
    each.key.name = "sum." + each.key.name;
    each.set = [set = each.set](SiteRule& r, const json& v) { set(r, v), r.has_sum_codec = true; };
    each.matters = [matters = each.matters](const SiteRule& r) {
      return r.has_sum_codec && (matters == nullptr || matters(r));
    };
  }
  return f;
}

std::vector<int> numbers_of(const json& list) {
  std::vector<int> numbers;
  for (const json& n : list) numbers.push_back(static_cast<int>(n.get<double>()));
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::vector<Field> selection_fields() {
  std::vector<Field> f;
  f.push_back(
      {key("select.stages", kListKey | kRealKey, "null",
           "Pipeline stages that the rule is for, from 0; at pp sites those that send. A share: the first of them.",
           {.default_text = "[] (all)", .bounds = {0, 65535}, .unit = "stages", .share = true}),
       [](const SiteRule& r) { return json(r.select.stages); },
       [](SiteRule& r, const json& v) { r.select.stages = numbers_of(v); }});
  f.push_back({key("select.layers", kListKey | kRealKey, "null",
                   "Blocks that the rule is for, from 0; without a list embedding and head, too.",
                   {.default_text = "[] (all)", .bounds = {0, 9999}, .unit = "layers"}),
               [](const SiteRule& r) { return json(r.select.layers); },
               [](SiteRule& r, const json& v) { r.select.layers = numbers_of(v); }});
  f.push_back(
      {key("select.tensor_classes", kListKey, "null",
           "Tensors that the rule is for: embedding, attention, mlp, norm, bias, head.", {.default_text = "[] (all)"}),
       [](const SiteRule& r) {
         json list = json::array();
         for (TensorClass c : r.select.tensor_classes) list.push_back(word_of(c));
         return list;
       },
       [](SiteRule& r, const json& v) {
         r.select.tensor_classes.clear();
         for (const std::string& word : EnumWords::of(TensorClass()))  // in the order of the enumeration, each once
           if (std::find(v.begin(), v.end(), json(word)) != v.end())
             r.select.tensor_classes.push_back(from_word<TensorClass>(word));
       }});
  f.push_back(field(
      key("select.micro_batches", kStringKey, "null",
          "pp sites: all messages; backward ones of a stage that has no forward left (epilogue); those that would make "
          "the step longer (critical): by the layers and the head of every stage, and a message's time from "
          "link_gbps and pipe_partition_costs, or a tenth of a stage's forward where these are not given; of several "
          "critical rules the one with the most bits that a message's slack hides. dp.gradient: "
          "all, or critical: gradients that nothing hides, by the same times, which must be given; hidden ones fall "
          "under the rules after it, with more bits, as far as the step does not get longer, first where "
          "compression.sensitivities say. List critical rules with rising bits.",
          {.default_text = "all"}),
      [](auto& r) -> auto& { return r.select.micro_batches; }));
  f.push_back(field(
      key("min_bytes", kIntKey, "null", "Smaller messages are sent as they are.",
          {.default_text = "0", .bounds = {0, 1e15}, .unit = "bytes"}),
      [](auto& r) -> auto& { return r.min_bytes; }));
  f.push_back(field(
      key("warmup_steps", kIntKey, "null", "Steps before the rule starts. A share: of train_iters.",
          {.default_text = "0", .bounds = {0, 1e12}, .unit = "steps", .share = true}),
      [](auto& r) -> auto& { return r.warmup_steps; }));
  f.push_back(field(
      key("algorithm", kStringKey, "null",
          "Shape of the collective: every contribution is coded once (direct); partial sums are coded again at every "
          "hop (ring); inside nodes by the rule's codec, then between them by sum's (two_level). Large "
          "all-gathers forward payloads in two levels by themselves.",
          {.default_text = "direct"}),
      [](auto& r) -> auto& { return r.algorithm; }));
  return f;
}

const std::vector<Field>& all_fields() {
  static const std::vector<Field> all = [] {
    std::vector<Field> list;
    for (const std::vector<Field>& part : {compression_fields(false), compression_fields(true), selection_fields()})
      list.insert(list.end(), part.begin(), part.end());
    for (Field& each : list) each.key.scope = KeyScope::kLayout;
    return list;
  }();
  return all;
}

const Field& field_of(const std::string& name) {
  for (const Field& f : all_fields())
    if (f.key.name == name) return f;
  TW_CHECK(false, "a rule has no field ", name);
  return all_fields().front();
}

bool matters(const Field& field, const SiteRule& rule) {
  return field.matters == nullptr || field.matters(rule);
}

json rule_json(const SiteRule& rule) {
  json object = json::object();
  for (const Field& f : all_fields()) {
    if (!matters(f, rule)) continue;
    const std::string& name = f.key.name;
    const size_t dot = name.find('.');
    (dot == std::string::npos ? object[name] : object[name.substr(0, dot)][name.substr(dot + 1)]) = f.get(rule);
  }
  return object;
}

}  // namespace

const std::vector<KeySpec>& rule_fields() {
  static const std::vector<KeySpec> keys = [] {
    std::vector<KeySpec> all;
    for (const Field& f : all_fields()) all.push_back(f.key);
    return all;
  }();
  return keys;
}

json rule_value(const SiteRule& rule, const std::string& field) {
  return field_of(field).get(rule);
}

void set_rule_value(SiteRule& rule, const std::string& field, const json& value) {
  field_of(field).set(rule, value);
}

bool field_matters(const SiteRule& rule, const std::string& field) {
  return matters(field_of(field), rule);
}

SiteRule canonical(const SiteRule& rule) {
  SiteRule result;
  for (const Field& f : all_fields())
    if (matters(f, rule)) f.set(result, f.get(rule));
  return result;
}

json rules_json(const CompressionConfig& config) {
  json all = json::object();
  for (const auto& [site, rules] : config.rules) {
    const std::string name(name_of(site));
    if (rules.size() == 1) {
      all[name] = rule_json(rules.front());
      continue;
    }
    for (const SiteRule& rule : rules) all["rules"].push_back(rule_json(rule)), all["rules"].back()["site"] = name;
    // Selects all other messages, so that a preset's rules, which come after these, select none.
    all["rules"].push_back({{"site", name}, {"codec", "identity"}});
  }
  return all;
}

}  // namespace thinwire
