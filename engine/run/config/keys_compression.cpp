// Keys of compression: a preset, and the same fields for every site (rule_fields.cpp).
#include "compression/presets.h"
#include "compression/site.h"
#include "engine/run/config/key_table.h"
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
      "a "
      "rule may be the word for its codec: \"dp.gradient\": \"cast\". What a rule says wins over the preset field by "
      "field; "
      "null takes a rule back. config.resolved.json prints all rules in full, docs/presets.md explains the presets. "
      "`control` (norms, losses, flags) is never coded.";
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  t.keys = {
      {.name = "compression.preset",
       .types = kStringKey,
       .default_json = "\"none\"",
       .allowed = names,
       .doc = "A published system whose rules are meant; \"compression\": NAME means the same.",
       .scope = KeyScope::kLayout},
      {.name = "compression.sends",
       .types = kStringKey,
       .default_text = "as the preset says, else gradient",
       .allowed = {"gradient", "momentum"},
       .doc = "What dp.gradient carries once its warm-up is over: gradients, or momenta of an Adam whose variance "
              "then stays as it is (1-bit Adam).",
       .scope = KeyScope::kLayout},
      {.name = "compression.adapt",
       .types = kBoolKey,
       .default_text = "as the preset says, else false",
       .doc = "Measure in the first updates which way is fastest - coded, lightly coded (rules with light), or plain - "
              "and keep it for the rest of the run. What was decided is logged and saved, but may differ between "
              "machines.",
       .scope = KeyScope::kRuntime}};
  for (const std::string& site : compression_sites()) {
    for (KeySpec key : rule_fields()) {
      key.name = "compression." + site + "." + key.name;
      t.keys.push_back(std::move(key));
    }
  }
  return t;
}

}  // namespace thinwire
