// One line per field of a rule: its key, the codecs that read it, and the way to and from JSON.
#include "engine/run/config/rule_fields.h"

#include <algorithm>
#include <functional>
#include <set>

#include "engine/base/core/check.h"
#include "engine/run/config/key_table.h"

namespace thinwire {
namespace {

using nlohmann::json;

template <typename E>
using Word = std::pair<const char*, E>;

constexpr Word<ResidualKind> kResidualWords[] = {{"none", ResidualKind::kNone},
                                                 {"error_feedback", ResidualKind::kErrorFeedback},
                                                 {"lazy", ResidualKind::kLazy},
                                                 {"ema", ResidualKind::kEma},
                                                 {"value_difference", ResidualKind::kValueDifference}};
constexpr Word<MicroBatches> kMicroBatchWords[] = {
    {"all", MicroBatches::kAll}, {"epilogue", MicroBatches::kEpilogue}, {"critical", MicroBatches::kCritical}};
constexpr Word<ResidualDtype> kResidualDtypeWords[] = {
    {"fp32", ResidualDtype::kFp32}, {"bf16", ResidualDtype::kBf16}, {"int8", ResidualDtype::kInt8}};
constexpr Word<RuleAlgorithm> kAlgorithmWords[] = {
    {"direct", RuleAlgorithm::kDirect}, {"ring", RuleAlgorithm::kRing}, {"two_level", RuleAlgorithm::kTwoLevel}};
constexpr Word<TensorClass> kClassWords[] = {
    {"embedding", TensorClass::kEmbedding}, {"attention", TensorClass::kAttention}, {"mlp", TensorClass::kMlp},
    {"norm", TensorClass::kNorm},           {"bias", TensorClass::kBias},           {"head", TensorClass::kHead}};
constexpr Word<OnSkip> kSkipWords[] = {{"restore", OnSkip::kRestore}, {"zero", OnSkip::kZero}};

template <typename E, size_t N>
const char* word(const Word<E> (&words)[N], E value) {
  for (const auto& [name, v] : words)
    if (v == value) return name;
  TW_CHECK(false, "a value without a word");
  return "";
}

template <typename E, size_t N>
E meaning(const Word<E> (&words)[N], const std::string& name) {
  for (const auto& [w, value] : words)
    if (w == name) return value;
  TW_CHECK(false, "no value is called ", name);
  return words[0].second;
}

// One of the two compressions of a rule, in place: every field of every rule is looked at at every start.
template <typename Codec, typename Residual>
struct CodecAndResidual {
  Codec& codec;
  Residual& residual;
};
using Compression = CodecAndResidual<const CodecSpec, const ResidualSpec>;
using NewCompression = CodecAndResidual<CodecSpec, ResidualSpec>;

// A field of a whole (a compression, or a rule), to and from JSON; Target: the same whole to be written to.
template <typename Whole, typename Target = Whole>
struct Field {
  KeySpec key;
  std::function<json(const Whole&)> get;
  std::function<void(Target&, const json&)> set;
  std::function<bool(const Whole&)> matters = nullptr;  // nullptr: always
};

// at(whole) is the number or flag itself, or a value that has words.
template <typename Whole, typename Target = Whole, typename At>
Field<Whole, Target> field(KeySpec key, const At& at, std::function<bool(const Whole&)> matters = nullptr) {
  return {std::move(key), [at](const Whole& w) { return json(at(w)); },
          [at](Target& w, const json& v) { v.get_to(at(w)); }, std::move(matters)};
}
template <typename Whole, typename Target = Whole, typename E, size_t N, typename At>
Field<Whole, Target> field(KeySpec key, const Word<E> (&words)[N], const At& at,
                           std::function<bool(const Whole&)> matters = nullptr) {
  for (const auto& [name, value] : words) key.allowed.push_back(name);
  return {std::move(key), [&words, at](const Whole& w) { return json(word(words, at(w))); },
          [&words, at](Target& w, const json& v) { at(w) = meaning(words, v.get<std::string>()); }, std::move(matters)};
}

json value_json(const CodecValue& value) {
  return std::visit([](const auto& v) { return json(v); }, value);
}

json ramp_json(const Ramp& ramp) {
  json list = json::array();
  for (const auto& [place, value] : ramp) list.push_back(json::array({place, value_json(value)}));
  return list;
}

using CompressionField = Field<Compression, NewCompression>;

std::vector<CompressionField> make_compression_fields() {
  const auto coded = [](const Compression& c) { return c.codec.codec != "identity"; };
  const auto any_residual = [](const Compression& c) { return c.residual.kind != ResidualKind::kNone; };
  const auto ema = [](const Compression& c) { return c.residual.kind == ResidualKind::kEma; };
  std::vector<CompressionField> f;
  f.push_back(
      {key("codec", kStringKey, "null",
           "How the site's messages are coded (docs/codecs.md). A codec other than the preset's starts from its "
           "own defaults and without residual and sum.",
           {.default_text = "identity", .allowed = codec_names()}),
       [](const Compression& c) { return json(c.codec.codec); },
       [](NewCompression& c, const json& v) {
         if (v != c.codec.codec) c.codec = codec_spec(v.get<std::string>());
       }});
  // A codec's parameters mean nothing to another, where they are what they are to all that have them.
  for (const KeySpec& own : codec_keys()) {
    const auto has = [name = own.name](const auto& c) { return c.codec.parameters.count(name) > 0; };
    std::set<CodecValue> defaults;
    for (const CodecRow& row : codec_table())
      if (const CodecParameter* p = row.find(own.name)) defaults.insert(p->otherwise);
    const CodecValue otherwise = defaults.size() == 1 ? *defaults.begin() : CodecValue();
    f.push_back({own,
                 [=, name = own.name](const Compression& c) {
                   if (const auto ramp = c.codec.ramps.find(name); ramp != c.codec.ramps.end())
                     return ramp_json(ramp->second);
                   return value_json(has(c) ? c.codec.parameters.at(name) : otherwise);
                 },
                 [=, name = own.name](NewCompression& c, const json& v) {
                   if (!has(c)) return;
                   Ramp ramp;  // a value is a ramp of one place
                   for (const json& pair : v.is_array() ? v : json::array({{0, v}})) {
                     CodecValue value = c.codec[name];  // of the same type
                     std::visit([&](auto& of) { pair.back().get_to(of); }, value);
                     ramp.push_back({pair.front().get<int64_t>(), value});
                   }
                   c.codec[name] = ramp.front().second;
                   c.codec.ramps.erase(name);
                   if (ramp.size() > 1) c.codec.ramps[name] = ramp;
                 },
                 has});
  }
  f.push_back(field<Compression, NewCompression>(
      key("hadamard", kBoolKey, "null", "Transform in front of the codec: orthonormal, blocks of 32; spreads outliers.",
          {.default_text = "false"}),
      [](auto& c) -> auto& { return c.codec.hadamard; }, coded));
  f.push_back(field<Compression, NewCompression>(
      key("checksum", kBoolKey, "null",
          "Every message of the rule carries a CRC-32C, coded or not, whatever the key checksum says of others.",
          {.default_text = "false"}),
      [](auto& c) -> auto& { return c.codec.checksum; },
      [coded](const Compression& c) { return c.codec.checksum || coded(c); }));
  f.push_back(field<Compression, NewCompression>(
      key("residual", kStringKey, "null",
          "What becomes of the coding error: lost; added to the next message (error_feedback; lazy: that of the next "
          "coded micro-batch); a moving average of it is (ema); or the difference to what the receivers have is sent "
          "instead of the value (value_difference).",
          {.default_text = "none"}),
      kResidualWords, [](auto& c) -> auto& { return c.residual.kind; }));
  f.push_back(field<Compression, NewCompression>(
      key("residual_dtype", kStringKey, "null",
          "What residual error_feedback or lazy is kept in. bf16, and int8 with a scale per 256 elements, are rounded "
          "up or down at random, so that nothing is lost on average.",
          {.default_text = "fp32"}),
      kResidualDtypeWords, [](auto& c) -> auto& { return c.residual.dtype; },
      [](const Compression& c) {
        return c.residual.kind == ResidualKind::kErrorFeedback || c.residual.kind == ResidualKind::kLazy;
      }));
  f.push_back(field<Compression, NewCompression>(
      key("beta", kRealKey, "null",
          "residual ema: share of the average that stays; 1 - beta of the new error joins it.",
          {.default_text = "0.8", .bounds = {.min = 0, .max = 1, .open_max = true}}),
      [](auto& c) -> auto& { return c.residual.beta; }, ema));
  f.push_back(field<Compression, NewCompression>(
      key("reset_every", kIntKey, "null", "residual ema: steps between resets to zero; 0: never.",
          {.default_text = "0", .bounds = {0, 1e12}, .unit = "steps"}),
      [](auto& c) -> auto& { return c.residual.reset_every; }, ema));
  f.push_back(field<Compression, NewCompression>(
      key("on_skip", kStringKey, "null",
          "What a residual is after a skipped step: as before it (costs a second copy), or "
          "zero.",
          {.default_text = "restore"}),
      kSkipWords, [](auto& c) -> auto& { return c.residual.on_skip; }, any_residual));
  for (CompressionField& each : f) each.key.scope = KeyScope::kLayout;
  return f;
}

const std::vector<CompressionField>& compression_fields() {
  static const std::vector<CompressionField> fields = make_compression_fields();
  return fields;
}

const CompressionField* compression_field(const std::string& name) {
  for (const CompressionField& f : compression_fields())
    if (f.key.name == name) return &f;
  return nullptr;
}

json list_of(const std::vector<int>& numbers) {
  return numbers.empty() ? json::array() : json(numbers);
}

std::vector<int> numbers_of(const json& list) {
  std::vector<int> numbers;
  for (const json& n : list) numbers.push_back(static_cast<int>(n.get<double>()));
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::vector<Field<SiteRule>> make_site_fields() {
  std::vector<Field<SiteRule>> f;
  f.push_back({key("select.stages", kListKey | kRealKey, "null",
                   "Pipeline stages that the rule is for, from 0; at pp sites those that send.",
                   {.default_text = "[] (all)", .bounds = {0, 65535}, .unit = "stages"}),
               [](const SiteRule& r) { return list_of(r.select.stages); },
               [](SiteRule& r, const json& v) { r.select.stages = numbers_of(v); }});
  f.push_back({key("select.layers", kListKey | kRealKey, "null",
                   "Blocks that the rule is for, from 0; without a list embedding and head, too.",
                   {.default_text = "[] (all)", .bounds = {0, 9999}, .unit = "layers"}),
               [](const SiteRule& r) { return list_of(r.select.layers); },
               [](SiteRule& r, const json& v) { r.select.layers = numbers_of(v); }});
  f.push_back(
      {key("select.tensor_classes", kListKey, "null",
           "Tensors that the rule is for: embedding, attention, mlp, norm, bias, head.", {.default_text = "[] (all)"}),
       [](const SiteRule& r) {
         json list = json::array();
         for (TensorClass c : r.select.tensor_classes) list.push_back(word(kClassWords, c));
         return list;
       },
       [](SiteRule& r, const json& v) {
         r.select.tensor_classes.clear();
         for (const auto& [name, value] : kClassWords)  // in the order of the enumeration, each once
           if (std::find(v.begin(), v.end(), json(name)) != v.end()) r.select.tensor_classes.push_back(value);
       }});
  f.push_back(field<SiteRule>(
      key("select.micro_batches", kStringKey, "null",
          "pp sites: all messages; backward ones of a stage that has no forward left (epilogue); those that would make "
          "the step longer (critical): by the layers and the head of every stage, and a message's time from "
          "link_gbps and pipe_partition_costs, or a tenth of a stage's forward where these are not given; of several "
          "critical rules the one with the most bits that a message's slack hides. dp.gradient: "
          "all, or critical: gradients that nothing hides, by the same times, which must be given; hidden ones fall "
          "under the rules behind, with more bits, as far as the step does not get longer, first where "
          "compression.sensitivities say. List critical rules with rising bits.",
          {.default_text = "all"}),
      kMicroBatchWords, [](auto& r) -> auto& { return r.select.micro_batches; }));
  f.push_back(field<SiteRule>(
      key("min_bytes", kIntKey, "null", "Smaller messages are sent as they are.",
          {.default_text = "0", .bounds = {0, 1e15}, .unit = "bytes"}),
      [](auto& r) -> auto& { return r.min_bytes; }));
  f.push_back(field<SiteRule>(
      key("warmup_steps", kIntKey, "null", "Steps before the rule starts.",
          {.default_text = "0", .bounds = {0, 1e12}, .unit = "steps"}),
      [](auto& r) -> auto& { return r.warmup_steps; }));
  f.push_back(field<SiteRule>(
      key("algorithm", kStringKey, "null",
          "Shape of the collective: every contribution is coded once (direct); partial sums are coded again at every "
          "hop (ring); inside nodes by the rule's codec, then between them by sum's (two_level). Large "
          "all-gathers forward payloads in two levels by themselves.",
          {.default_text = "direct"}),
      kAlgorithmWords, [](auto& r) -> auto& { return r.algorithm; }));
  for (Field<SiteRule>& each : f) each.key.scope = KeyScope::kLayout;
  return f;
}

const std::vector<Field<SiteRule>>& site_fields() {
  static const std::vector<Field<SiteRule>> fields = make_site_fields();
  return fields;
}

const Field<SiteRule>& site_field(const std::string& name) {
  for (const Field<SiteRule>& f : site_fields())
    if (f.key.name == name) return f;
  TW_CHECK(false, "a rule has no field ", name);
  return site_fields().front();
}

bool is_sum(const std::string& field) {
  return field.rfind("sum.", 0) == 0;
}

Compression compression_of(const SiteRule& rule, bool sum) {
  return sum ? Compression{rule.sum_codec, rule.sum_residual} : Compression{rule.codec, rule.residual};
}

NewCompression new_compression_of(SiteRule& rule, bool sum) {
  return sum ? NewCompression{rule.sum_codec, rule.sum_residual} : NewCompression{rule.codec, rule.residual};
}

}  // namespace

const std::vector<KeySpec>& rule_fields() {
  static const std::vector<KeySpec> keys = [] {
    std::vector<KeySpec> all;
    for (const CompressionField& f : compression_fields()) all.push_back(f.key);
    for (const CompressionField& f : compression_fields()) {
      KeySpec key = f.key;
      key.name = "sum." + key.name;
      if (f.key.name == "codec") {
        key.default_text = "the rule's own, without residual";
        key.doc =
            "sum: {codec, bits, ..., residual, ...}, the same fields as the rule's: the second coding, of sums on "
            "their way "
            "back (all-reduce) and between nodes (two_level). Fields that are left out are the rule's.";
      }
      all.push_back(key);
    }
    for (const Field<SiteRule>& f : site_fields()) all.push_back(f.key);
    return all;
  }();
  return keys;
}

json rule_value(const SiteRule& rule, const std::string& field) {
  const bool sum = is_sum(field);
  if (const CompressionField* f = compression_field(sum ? field.substr(4) : field))
    return f->get(compression_of(rule, sum));
  return site_field(field).get(rule);
}

void set_rule_value(SiteRule& rule, const std::string& field, const json& value) {
  const bool sum = is_sum(field);
  if (const CompressionField* f = compression_field(sum ? field.substr(4) : field)) {
    NewCompression compression = new_compression_of(rule, sum);
    f->set(compression, value);
    rule.has_sum_codec = rule.has_sum_codec || sum;
  } else {
    site_field(field).set(rule, value);
  }
}

bool field_matters(const SiteRule& rule, const std::string& field) {
  const bool sum = is_sum(field);
  const CompressionField* f = compression_field(sum ? field.substr(4) : field);
  if (f == nullptr) return true;
  return (!sum || rule.has_sum_codec) && (f->matters == nullptr || f->matters(compression_of(rule, sum)));
}

SiteRule canonical(const SiteRule& rule) {
  SiteRule result;
  for (const KeySpec& key : rule_fields())
    if (field_matters(rule, key.name)) set_rule_value(result, key.name, rule_value(rule, key.name));
  return result;
}

namespace {

json rule_json(const SiteRule& rule) {
  json object = json::object();
  for (const KeySpec& key : rule_fields()) {
    if (!field_matters(rule, key.name)) continue;
    const size_t dot = key.name.find('.');
    if (dot == std::string::npos)
      object[key.name] = rule_value(rule, key.name);
    else
      object[key.name.substr(0, dot)][key.name.substr(dot + 1)] = rule_value(rule, key.name);
  }
  return object;
}

}  // namespace

json rules_json(const CompressionConfig& config) {
  json all = json::object();
  for (const auto& [site, rules] : config.rules) {
    const std::string name(name_of(site));
    if (rules.size() == 1) {
      all[name] = rule_json(rules.front());
      continue;
    }
    for (const SiteRule& rule : rules) all["rules"].push_back(rule_json(rule)), all["rules"].back()["site"] = name;
    // So that a preset's rules, which are read behind these, select nothing.
    all["rules"].push_back({{"site", name}, {"codec", "identity"}});
  }
  return all;
}

const char* word_of(ResidualKind kind) {
  return word(kResidualWords, kind);
}
const char* word_of(MicroBatches micro_batches) {
  return word(kMicroBatchWords, micro_batches);
}
const char* word_of(RuleAlgorithm algorithm) {
  return word(kAlgorithmWords, algorithm);
}
const char* word_of(TensorClass tensor_class) {
  return word(kClassWords, tensor_class);
}

}  // namespace thinwire
