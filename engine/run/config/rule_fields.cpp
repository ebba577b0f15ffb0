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
  std::vector<std::string> codecs;  // that read it; empty: it matters as `matters` says
  std::function<json(const Coding&)> get;
  std::function<void(Coding&, const json&)> set;
  std::function<bool(const Coding&)> matters = nullptr;
};

template <typename T>
CodingField of_codec(KeySpec key, T CodecSpec::*member, std::vector<std::string> codecs) {
  key.scope = KeyScope::kLayout;
  return {std::move(key), std::move(codecs), [member](const Coding& c) { return json(c.codec.*member); },
          [member](Coding& c, const json& v) { c.codec.*member = v.get<T>(); }};
}

std::vector<CodingField> make_coding_fields() {
  const auto coded = [](const Coding& c) { return c.codec.codec != "identity"; };
  const auto any_residual = [](const Coding& c) { return c.residual.kind != ResidualKind::kNone; };
  const auto ema = [](const Coding& c) { return c.residual.kind == ResidualKind::kEma; };
  const std::vector<std::string> codecs = {"identity", "cast",     "block_int",     "mx",    "e3m0",    "lloyd_max",
                                           "ecsq",     "one_bit",  "zfp",           "mpc",   "entropy", "low_rank",
                                           "top_k",    "random_k", "chunked_top_k", "sketch"};
  std::vector<CodingField> f;
  f.push_back(
      of_codec({.name = "codec",
                .types = kStringKey,
                .default_text = "identity",
                .allowed = codecs,
                .doc = "How the site's messages are coded (docs/codecs.md). A codec other than the preset's starts "
                       "from its own defaults and without residual and sum."},
               &CodecSpec::codec, {}));
  f.back().matters = [](const Coding&) { return true; };
  f.push_back(
      of_codec({.name = "format",
                .types = kStringKey,
                .default_text = "cast: bf16; mx: mxfp8_e4m3; top_k and its kin: bf16",
                .allowed = {"fp32", "bf16", "fp16", "e4m3", "e5m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3",
                            "mxfp6_e3m2", "mxfp4", "nvfp4", "2bit"},
                .doc = "What values become: cast bf16 | fp16 | e4m3 | e5m2; mx mxfp8_e4m3 | mxfp8_e5m2 | mxfp6_e2m3 "
                       "| mxfp6_e3m2 | mxfp4 | nvfp4; values that top_k, random_k and chunked_top_k keep fp32 | bf16 "
                       "| fp16, chunked_top_k also 2bit."},
               &CodecSpec::format, {"cast", "mx", "top_k", "random_k", "chunked_top_k"}));
  f.push_back(of_codec({.name = "bits",
                        .types = kIntKey,
                        .default_text = "8",
                        .bounds = {2, 8},
                        .unit = "bits",
                        .doc = "Bits per value: block_int 8, 6, 4 or 2; lloyd_max 4, 3 or 2."},
                       &CodecSpec::bits, {"block_int", "lloyd_max"}));
  f.push_back(of_codec({.name = "block",
                        .types = kIntKey,
                        .default_text = "0",
                        .bounds = {0, 1 << 24},
                        .unit = "elements",
                        .doc = "Elements that share a scale (chunked_top_k: a choice); 0: as the codec has it."},
                       &CodecSpec::block,
                       {"block_int", "mx", "one_bit", "e3m0", "lloyd_max", "ecsq", "random_k", "chunked_top_k"}));
  f.push_back(
      of_codec({.name = "scale",
                .types = kStringKey,
                .default_text = "fp16",
                .allowed = {"fp32", "fp16", "bf16", "e8m0"},
                .doc = "block_int: how a block's scale travels. fp16 has no small numbers: bf16 for gradients."},
               &CodecSpec::scale, {"block_int"}));
  f.push_back(of_codec({.name = "asymmetric",
                        .types = kBoolKey,
                        .default_text = "false",
                        .doc = "block_int: smallest and largest value of a block instead of the largest magnitude."},
                       &CodecSpec::asymmetric, {"block_int"}));
  f.push_back(of_codec(
      {.name = "rounding",
       .types = kStringKey,
       .default_text = "nearest",
       .allowed = {"nearest", "stochastic"},
       .doc =
           "block_int: to the nearest level, or up or down by chance so that the mean is right; random_k: stochastic "
           "scales what is kept so that the mean is right."},
      &CodecSpec::rounding, {"block_int", "random_k"}));
  f.push_back(of_codec({.name = "rate",
                        .types = kRealKey,
                        .default_text = "8",
                        .bounds = {2, 32},
                        .unit = "bits",
                        .doc = "Bits per value: zfp 2.25 to 32; ecsq 2 to 5, blocks' scales not counted."},
                       &CodecSpec::rate, {"zfp", "ecsq"}));
  f.push_back(
      of_codec({.name = "light",
                .types = kBoolKey,
                .default_text = "false",
                .doc = "ecsq: where compression.adapt measures that time of the core costs more than bytes, "
                       "lloyd_max of the next whole number of bits (rates up to 4) takes its place, but for the units "
                       "that a rank's forward pass begins with."},
               &CodecSpec::light, {"ecsq"}));
  f.push_back(of_codec({.name = "dimension",
                        .types = kIntKey,
                        .default_text = "1",
                        .bounds = {1, 32},
                        .unit = "values",
                        .doc = "mpc: how far back the value lies that predicts the next."},
                       &CodecSpec::dimension, {"mpc"}));
  f.push_back(of_codec({.name = "rank",
                        .types = kIntKey,
                        .default_text = "4",
                        .bounds = {1, 65536},
                        .unit = "columns",
                        .doc = "low_rank: columns of the factors."},
                       &CodecSpec::rank, {"low_rank"}));
  f.push_back(of_codec({.name = "sides",
                        .types = kIntKey,
                        .default_text = "2",
                        .bounds = {1, 2},
                        .doc = "low_rank: 2 sends both factors each time, 1 the left and the right one in turn."},
                       &CodecSpec::sides, {"low_rank"}));
  f.push_back(of_codec({.name = "min_compression_rate",
                        .types = kRealKey,
                        .default_text = "1",
                        .bounds = {1, 1e6},
                        .doc = "low_rank: matrices that would not shrink by this much travel as they are."},
                       &CodecSpec::min_compression_rate, {"low_rank"}));
  f.push_back(of_codec({.name = "density",
                        .types = kRealKey,
                        .default_text = "0.01",
                        .bounds = {.min = 0, .max = 1, .open_min = true},
                        .doc = "top_k, random_k, sketch: share of the elements that is kept."},
                       &CodecSpec::density, {"top_k", "random_k", "sketch"}));
  f.push_back(of_codec({.name = "keep",
                        .types = kIntKey,
                        .default_text = "64",
                        .bounds = {1, 1 << 24},
                        .unit = "elements",
                        .doc = "chunked_top_k: elements kept of each block."},
                       &CodecSpec::keep, {"chunked_top_k"}));
  f.push_back(of_codec({.name = "ratio",
                        .types = kRealKey,
                        .default_text = "2",
                        .bounds = {1, 1e6},
                        .doc = "sketch: elements of the message over those of the table."},
                       &CodecSpec::ratio, {"sketch"}));
  f.push_back(of_codec({.name = "compact",
                        .types = kBoolKey,
                        .default_text = "true",
                        .doc = "sketch: send what the agreed index selects, packed, instead of a table."},
                       &CodecSpec::compact, {"sketch"}));
  f.push_back(of_codec({.name = "hadamard",
                        .types = kBoolKey,
                        .default_text = "false",
                        .doc = "Transform in front of the codec: orthonormal, blocks of 32; spreads outliers."},
                       &CodecSpec::hadamard, {}));
  f.back().matters = coded;
  f.push_back(
      of_codec({.name = "checksum",
                .types = kBoolKey,
                .default_text = "false",
                .doc = "CRC-32C behind every payload: a flipped bit is an error that names peer, site and chunk."},
               &CodecSpec::checksum, {}));
  f.back().matters = coded;
  const auto of_residual = [&](KeySpec key, auto get, auto set, std::function<bool(const Coding&)> matters) {
    key.scope = KeyScope::kLayout;
    f.push_back({std::move(key), {}, get, set, std::move(matters)});
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
      [](Coding& c, const json& v) { c.residual.kind = meaning(residual_words(), v.get<std::string>()); },
      [](const Coding&) { return true; });
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

bool matters(const CodingField& field, const Coding& coding) {
  if (field.matters) return field.matters(coding);
  return std::find(field.codecs.begin(), field.codecs.end(), coding.codec.codec) != field.codecs.end();
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
  return (!sum || rule.has_sum_codec) && matters(*f, coding_of(rule, sum));
}

CodecSpec default_codec(const std::string& codec) {
  CodecSpec spec;
  spec.codec = codec;
  if (codec == "cast" || codec == "top_k" || codec == "random_k" || codec == "chunked_top_k") spec.format = "bf16";
  if (codec == "mx") spec.format = "mxfp8_e4m3";
  return spec;
}

SiteRule canonical(const SiteRule& rule) {
  SiteRule result;
  for (const KeySpec& key : rule_fields())
    if (field_matters(rule, key.name)) set_rule_value(result, key.name, rule_value(rule, key.name));
  return result;
}

json rules_json(const CompressionConfig& config) {
  json all = {
      {"preset", config.preset}, {"adapt", config.adapt}, {"sends", config.sends_momentum ? "momentum" : "gradient"}};
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
