// Keys of compression: a preset, and the same fields for every site (rule_fields.cpp).
#include "compression/site.h"
#include "engine/run/config/key_table.h"
#include "engine/run/config/presets.h"
#include "engine/run/config/rule_fields.h"

namespace thinwire {

const std::vector<std::string>& compression_sites() {
  static const std::vector<std::string> sites = [] {
    std::vector<std::string> names;
    for (std::string_view name : kSiteNames)
      if (name != name_of(Site::kControl)) names.emplace_back(name);
    return names;
  }();
  return sites;
}

KeyTopic compression_keys() {
  KeyTopic t;
  t.title = "Compression";
  t.intro =
      "\"compression\": NAME or {\"preset\": NAME, \"<site>\": rule, ...}; names of sites are literal dotted keys, and "
      "a rule may be the word for its codec: \"dp.gradient\": \"cast\". What a rule says wins over the preset field by "
      "field; null takes a rule back. A ramp is a list of [place, value], what a parameter is from a place of the run "
      "on: "
      "[[0, 4], [0.1, 2.5]]; places are steps, with a decimal point shares of train_iters. config.resolved.json "
      "prints all rules in full, docs/presets.md explains the presets. "
      "`control` (norms, losses, flags) is never coded.";
  t.keys = {
      key("compression.preset", kStringKey, "\"none\"",
          "A published system whose rules are meant; \"compression\": NAME means the same. Or the path of a preset of "
          "your own, a .json file like those of configs/compression (docs/presets.md).",
          {.allowed = preset_names(), .scope = KeyScope::kLayout, .or_file = true}),
      key("compression.rules", kListKey, "null",
          "Rules in their order, each {\"site\": one, a list or all, \"select\": {...}, \"codec\": ..., ...} with the "
          "fields of a site's object; the first that selects a message is its rule, those of the preset come behind "
          "them. A site's own object writes over all of that site's rules.",
          {.default_text = "none", .scope = KeyScope::kLayout}),
      key("compression.sends", kStringKey, "null",
          "What dp.gradient carries once its warm-up is over: gradients, or momenta of an Adam whose variance then "
          "stays as it is (1-bit Adam).",
          {.default_text = "as the preset says, else gradient",
           .allowed = {"gradient", "momentum"},
           .scope = KeyScope::kLayout}),
      key("compression.sensitivities", kListKey | kRealKey, "null",
          "[embedding, attention, mlp, the rest (norm, bias, head)]: what a relative coding error in all gradients of "
          "a class costs in loss, measured (docs/results/rates.md); only ratios count. Critical rules of dp.gradient "
          "give bits first where a millisecond of the link saves most loss. 0, also for a measured mean that is not "
          "above zero: bits last.",
          {.default_text = "every byte weighs alike", .bounds = {.min = 0, .max = 1e12}, .scope = KeyScope::kLayout}),
      key("compression.adapt", kBoolKey, "false",
          "Measure in the first steps, site by site, which way is fastest - coded, lightly coded (rules with light), "
          "cast to bf16, or plain - and keep it, for adapt_interval steps at least. A site leaves its way only for one "
          "that is faster at 95 % confidence. Timing decides it: two such runs with one seed may give different "
          "losses, so no preset asks for it. Every change of a way is written to revisions.jsonl and into that step's "
          "line of "
          "metrics.jsonl; trials go on behind a restart where they were.",
          {.scope = KeyScope::kRuntime}),
      key("compression.adapt_interval", kIntKey, "null",
          "adapt: steps behind the last decision after which all ways are tried again, since links and neighbours "
          "change. 0: never.",
          {.default_text = "1000", .bounds = {0, 1e12}, .unit = "steps", .scope = KeyScope::kRuntime}),
      key("compression.revisions", kStringKey, "null",
          "The revisions.jsonl of a run with adapt or pipe_partition_method time, to be replayed bit for bit: what "
          "timing decided there is done here, and nothing is measured. It must have been written under the same layout "
          "and rules.",
          {.default_text = "none", .scope = KeyScope::kRuntime}),
      key("grad_reduce_in_bf16", kBoolKey, "false",
          "Gradients travel in bf16 and are summed in fp32: \"dp.gradient\": \"cast\", unless the preset or a rule "
          "says how that site is coded.",
          {.scope = KeyScope::kLayout})};
  for (const std::string& site : compression_sites()) {
    for (KeySpec key : rule_fields()) {
      key.name = "compression." + site + "." + key.name;
      t.keys.push_back(std::move(key));
    }
  }
  return t;
}

}  // namespace thinwire
