// One line per field of a rule: its key, the codecs that read it, and the way to and from JSON.
#include "engine/run/config/rule_fields.h"

#include <algorithm>
#include <functional>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

using nlohmann::json;

template <typename E>
using Words = std::vector<std::pair<const char*, E>>;

const Words<ResidualKind>& residual_words() {
  static const Words<ResidualKind> words = {{"none", ResidualKind::kNone},
                                            {"error_feedback", ResidualKind::kErrorFeedback},
                                            {"lazy", ResidualKind::kLazy},
                                            {"ema", ResidualKind::kEma},
                                            {"value_difference", ResidualKind::kValueDifference}};
  return words;
}
const Words<MicroBatches>& micro_batch_words() {
  static const Words<MicroBatches> words = {
      {"all", MicroBatches::kAll}, {"epilogue", MicroBatches::kEpilogue}, {"critical", MicroBatches::kCritical}};
  return words;
}
const Words<RuleAlgorithm>& algorithm_words() {
  static const Words<RuleAlgorithm> words = {
      {"direct", RuleAlgorithm::kDirect}, {"ring", RuleAlgorithm::kRing}, {"two_level", RuleAlgorithm::kTwoLevel}};
  return words;
}
const Words<TensorClass>& class_words() {
  static const Words<TensorClass> words = {
      {"embedding", TensorClass::kEmbedding}, {"attention", TensorClass::kAttention}, {"mlp", TensorClass::kMlp},
      {"norm", TensorClass::kNorm},           {"bias", TensorClass::kBias},           {"head", TensorClass::kHead}};
  return words;
}
const Words<OnSkip>& skip_words() {
  static const Words<OnSkip> words = {{"restore", OnSkip::kRestore}, {"zero", OnSkip::kZero}};
  return words;
}

template <typename E>
const char* word(const Words<E>& words, E value) {
  for (const auto& [name, v] : words)
    if (v == value) return name;
  TW_CHECK(false, "a value without a word");
  return "";
}

template <typename E>
E meaning(const Words<E>& words, const std::string& name) {
  for (const auto& [w, value] : words)
    if (w == name) return value;
  TW_CHECK(false, "no value is called ", name);
  return words.front().second;
}

template <typename E>
std::vector<std::string> names_of(const Words<E>& words) {
  std::vector<std::string> names;
  for (const auto& [name, value] : words) names.push_back(name);
  return names;
}

// One of the two codings of a rule.
struct Coding {
  CodecSpec codec;
  ResidualSpec residual;
};

struct CodingField {
  KeySpec key;
  std::function<json(const Coding&)> get;
  std::function<void(Coding&, const json&)> set;
  std::function<bool(const Coding&)> matters;
};

// A field of the codec: its key and where CodecSpec keeps it.
CodingField of_codec(const CodecParameter& parameter, std::function<bool(const Coding&)> matters) {
  return std::visit(
      [&](auto field) -> CodingField {
        return {parameter.key, [field](const Coding& c) { return json(c.codec.*field); },
                [field](Coding& c, const json& v) { v.get_to(c.codec.*field); }, std::move(matters)};
      },
      parameter.field);
}

std::vector<CodingField> make_coding_fields() {
  const auto always = [](const Coding&) { return true; };
  const auto coded = [](const Coding& c) { return c.codec.codec != "identity"; };
  const auto any_residual = [](const Coding& c) { return c.residual.kind != ResidualKind::kNone; };
  const auto ema = [](const Coding& c) { return c.residual.kind == ResidualKind::kEma; };
  std::vector<CodingField> f;
  f.push_back(of_codec(
      codec_parameter(&CodecSpec::codec,
                      {.name = "codec",
                       .default_text = "identity",
                       .allowed = codec_names(),
                       .doc = "How the site's messages are coded (docs/codecs.md). A codec other than the preset's "
                              "starts from its own defaults and without residual and sum."}),
      always));
  for (const CodecParameter& p : codec_parameters())
    f.push_back(of_codec(p, [name = p.key.name](const Coding& c) { return codec_row(c.codec.codec).has(name); }));
  f.push_back(of_codec(
      codec_parameter(&CodecSpec::hadamard,
                      {.name = "hadamard",
                       .default_text = "false",
                       .doc = "Transform in front of the codec: orthonormal, blocks of 32; spreads outliers."}),
      coded));
  f.push_back(
      of_codec(codec_parameter(
                   &CodecSpec::checksum,
                   {.name = "checksum",
                    .default_text = "false",
                    .doc = "CRC-32C behind every payload: a flipped bit is an error that names peer, site and chunk."}),
               coded));
  const auto of_residual = [&](KeySpec key, auto get, auto set, std::function<bool(const Coding&)> matters) {
    key.scope = KeyScope::kLayout;
    f.push_back({std::move(key), get, set, std::move(matters)});
  };
  of_residual(
      {.name = "residual",
       .types = kStringKey,
       .default_text = "none",
       .allowed = names_of(residual_words()),
       .doc = "What becomes of the coding error: lost; added to the next message (error_feedback; lazy: that of the "
              "next coded micro-batch); a moving average of it is (ema); or the difference to what the receivers "
              "have is sent instead of the value (value_difference)."},
      [](const Coding& c) { return json(word(residual_words(), c.residual.kind)); },
      [](Coding& c, const json& v) { c.residual.kind = meaning(residual_words(), v.get<std::string>()); }, always);
  of_residual(
      {.name = "beta",
       .types = kRealKey,
       .default_text = "0.8",
       .bounds = {.min = 0, .max = 1, .open_max = true},
       .doc = "residual ema: share of the average that stays; 1 - beta of the new error joins it."},
      [](const Coding& c) { return json(c.residual.beta); },
      [](Coding& c, const json& v) { c.residual.beta = v.get<double>(); }, ema);
  of_residual(
      {.name = "reset_every",
       .types = kIntKey,
       .default_text = "0",
       .bounds = {0, 1e12},
       .unit = "updates",
       .doc = "residual ema: updates between resets to zero; 0: never."},
      [](const Coding& c) { return json(c.residual.reset_every); },
      [](Coding& c, const json& v) { c.residual.reset_every = v.get<int64_t>(); }, ema);
  of_residual(
      {.name = "on_skip",
       .types = kStringKey,
       .default_text = "restore",
       .allowed = names_of(skip_words()),
       .doc = "What a residual is after a skipped update: as before it (costs a second copy), or zero."},
      [](const Coding& c) { return json(word(skip_words(), c.residual.on_skip)); },
      [](Coding& c, const json& v) { c.residual.on_skip = meaning(skip_words(), v.get<std::string>()); }, any_residual);
  return f;
}

const std::vector<CodingField>& coding_fields() {
  static const std::vector<CodingField> fields = make_coding_fields();
  return fields;
}

const CodingField* coding_field(const std::string& name) {
  for (const CodingField& f : coding_fields())
    if (f.key.name == name) return &f;
  return nullptr;
}

struct RuleField {
  KeySpec key;
  std::function<json(const SiteRule&)> get;
  std::function<void(SiteRule&, const json&)> set;
};

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

std::vector<RuleField> make_site_fields() {
  std::vector<RuleField> f;
  const auto add = [&](KeySpec key, auto get, auto set) {
    key.scope = KeyScope::kLayout;
    f.push_back({std::move(key), get, set});
  };
  add(
      {.name = "select.stages",
       .types = kListKey | kRealKey,
       .default_text = "[] (all)",
       .bounds = {0, 65535},
       .unit = "stages",
       .doc = "Pipeline stages that the rule is for, from 0; at pp sites those that send."},
      [](const SiteRule& r) { return list_of(r.select.stages); },
      [](SiteRule& r, const json& v) { r.select.stages = numbers_of(v); });
  add(
      {.name = "select.layers",
       .types = kListKey | kRealKey,
       .default_text = "[] (all)",
       .bounds = {0, 9999},
       .unit = "layers",
       .doc = "Blocks that the rule is for, from 0; without a list embedding and head, too."},
      [](const SiteRule& r) { return list_of(r.select.layers); },
      [](SiteRule& r, const json& v) { r.select.layers = numbers_of(v); });
  add(
      {.name = "select.tensor_classes",
       .types = kListKey,
       .default_text = "[] (all)",
       .doc = "Tensors that the rule is for: embedding, attention, mlp, norm, bias, head."},
      [](const SiteRule& r) {
        json list = json::array();
        for (TensorClass c : r.select.tensor_classes) list.push_back(word(class_words(), c));
        return list;
      },
      [](SiteRule& r, const json& v) {
        r.select.tensor_classes.clear();
        for (const auto& [name, value] : class_words())  // in the order of the enumeration, each once
          if (std::find(v.begin(), v.end(), json(name)) != v.end()) r.select.tensor_classes.push_back(value);
      });
  add(
      {.name = "select.micro_batches",
       .types = kStringKey,
       .default_text = "all",
       .allowed = names_of(micro_batch_words()),
       .doc = "pp sites: all messages; backward ones of a stage that has no forward left (epilogue); those that would "
              "make the update longer (critical): by the layers and the head of every stage, and a message's time from "
              "link_gbps and pipe_partition_costs, or a tenth of a stage's forward where these are not given."},
      [](const SiteRule& r) { return json(word(micro_batch_words(), r.select.micro_batches)); },
      [](SiteRule& r, const json& v) { r.select.micro_batches = meaning(micro_batch_words(), v.get<std::string>()); });
  add(
      {.name = "min_bytes",
       .types = kIntKey,
       .default_text = "0",
       .bounds = {0, 1e15},
       .unit = "bytes",
       .doc = "Smaller messages are sent as they are."},
      [](const SiteRule& r) { return json(r.min_bytes); },
      [](SiteRule& r, const json& v) { r.min_bytes = v.get<int64_t>(); });
  add(
      {.name = "warmup_steps",
       .types = kIntKey,
       .default_text = "0",
       .bounds = {0, 1e12},
       .unit = "updates",
       .doc = "Updates before the rule starts."},
      [](const SiteRule& r) { return json(r.warmup_steps); },
      [](SiteRule& r, const json& v) { r.warmup_steps = v.get<int64_t>(); });
  add(
      {.name = "algorithm",
       .types = kStringKey,
       .default_text = "direct",
       .allowed = names_of(algorithm_words()),
       .doc =
           "Shape of the collective: every contribution is coded once (direct); partial sums are coded again at every "
           "hop (ring); inside nodes by the rule's codec, then between them by sum's (two_level)."},
      [](const SiteRule& r) { return json(word(algorithm_words(), r.algorithm)); },
      [](SiteRule& r, const json& v) { r.algorithm = meaning(algorithm_words(), v.get<std::string>()); });
  return f;
}

const std::vector<RuleField>& site_fields() {
  static const std::vector<RuleField> fields = make_site_fields();
  return fields;
}

const RuleField& site_field(const std::string& name) {
  for (const RuleField& f : site_fields())
    if (f.key.name == name) return f;
  TW_CHECK(false, "a rule has no field ", name);
  return site_fields().front();
}

bool is_sum(const std::string& field) {
  return field.rfind("sum.", 0) == 0;
}

Coding coding_of(const SiteRule& rule, bool sum) {
  return sum ? Coding{rule.sum_codec, rule.sum_residual} : Coding{rule.codec, rule.residual};
}

void put_coding(SiteRule& rule, bool sum, const Coding& coding) {
  (sum ? rule.sum_codec : rule.codec) = coding.codec;
  (sum ? rule.sum_residual : rule.residual) = coding.residual;
}

}  // namespace

const std::vector<KeySpec>& rule_fields() {
  static const std::vector<KeySpec> keys = [] {
    std::vector<KeySpec> all;
    for (const CodingField& f : coding_fields()) all.push_back(f.key);
    for (const CodingField& f : coding_fields()) {
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
    for (const RuleField& f : site_fields()) all.push_back(f.key);
    return all;
  }();
  return keys;
}

json rule_value(const SiteRule& rule, const std::string& field) {
  const bool sum = is_sum(field);
  if (const CodingField* f = coding_field(sum ? field.substr(4) : field)) return f->get(coding_of(rule, sum));
  return site_field(field).get(rule);
}

void set_rule_value(SiteRule& rule, const std::string& field, const json& value) {
  const bool sum = is_sum(field);
  if (const CodingField* f = coding_field(sum ? field.substr(4) : field)) {
    Coding coding = coding_of(rule, sum);
    f->set(coding, value);
    put_coding(rule, sum, coding);
    rule.has_sum_codec = rule.has_sum_codec || sum;
  } else {
    site_field(field).set(rule, value);
  }
}

bool field_matters(const SiteRule& rule, const std::string& field) {
  const bool sum = is_sum(field);
  const CodingField* f = coding_field(sum ? field.substr(4) : field);
  if (f == nullptr) return true;
  return (!sum || rule.has_sum_codec) && f->matters(coding_of(rule, sum));
}

SiteRule canonical(const SiteRule& rule) {
  SiteRule result;
  for (const KeySpec& key : rule_fields())
    if (field_matters(rule, key.name)) set_rule_value(result, key.name, rule_value(rule, key.name));
  return result;
}

json rules_json(const CompressionConfig& config) {
  json all = json::object();
  for (const auto& [site, rule] : config.rules) {
    json& object = all[std::string(name_of(site))] = json::object();
    for (const KeySpec& key : rule_fields()) {
      if (!field_matters(rule, key.name)) continue;
      const size_t dot = key.name.find('.');
      if (dot == std::string::npos)
        object[key.name] = rule_value(rule, key.name);
      else
        object[key.name.substr(0, dot)][key.name.substr(dot + 1)] = rule_value(rule, key.name);
    }
  }
  return all;
}

const char* word_of(ResidualKind kind) {
  return word(residual_words(), kind);
}
const char* word_of(MicroBatches micro_batches) {
  return word(micro_batch_words(), micro_batches);
}
const char* word_of(RuleAlgorithm algorithm) {
  return word(algorithm_words(), algorithm);
}
const char* word_of(TensorClass tensor_class) {
  return word(class_words(), tensor_class);
}

}  // namespace thinwire
