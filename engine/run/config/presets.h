// Published systems as data: a preset is a JSON file of rules, built in from configs/compression or named by its path.
//
//   {"preset": "One sentence.", "rules": [{"site": ..., "when": {...}, "codec": ..., ...}, ...],
//    "placement": {...} or [{"when": {...}, "weights": ...}, ...], "embedding_sync": ..., "sends": ...}
//
// A rule has the fields of a site's object (rule_fields.h), `site` (one, a list, or "all") and `when`: conditions on
// the layout, all of which must hold. Shares stand where a preset cannot know the number: "warmup_steps": 0.1 is a
// tenth of train_iters (of 1,000 steps where that is not known), "select": {"stages": 0.75} the first three of four
// stages. Of a list of placements the first whose `when` holds counts. docs/presets.md explains the systems.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/run/config/rule_check.h"
#include "engine/run/config/settings.h"

namespace thinwire {

struct ShippedPreset {
  const char* name;
  const char* text;  // of configs/compression/<name>.json
};
std::span<const ShippedPreset> shipped_presets();  // by name; written by CMake
std::vector<std::string> preset_names();           // "none", which has no rules, and the shipped ones

// Conditions of `when`: two_level, weights_persist: true or false. pipeline, data, tensor, ranks_per_node,
// data_per_node: a number (0: not known), or "even" or "odd".
const std::vector<KeySpec>& when_conditions();
bool holds(const Settings& when, const RuleContext& context);

bool is_preset_path(const std::string& name);      // ends in .json: a file, not a name
std::string preset_name(const std::string& path);  // "zeropp" of "configs/compression/zeropp.json"
// Whether a file is the shipped preset of its name, word for word.
bool is_shipped(const std::string& path, const std::string& text);
// The member "preset" of an object that has "rules" too, and so is a preset; nullptr of any other.
const JsonMember* preset_of(const JsonTree& root);

// The settings of a preset by its name or path: compression.rules, compression.sends,
// embedding_sync, and either placement (a list) or placement.weights ... Throws Error(kBadConfig) for names that are
// none and files that cannot be read; what is wrong inside a file is appended to `problems`.
Settings read_preset(const std::string& name, std::vector<ConfigProblem>& problems);
// The placement of a preset's settings that holds: placement.weights ... without the prefix; empty: it sets none.
Settings placement_of(const Settings& preset, const RuleContext& context);

// The value that was given for a field of a rule; nullptr: none.
using GivenField = std::function<const nlohmann::json*(const std::string& field)>;
// Writes the given fields over a rule. Parameters belong to a codec: another codec starts from its own defaults,
// without residual and sum. Shares become numbers of the layout and the run.
void apply_fields(SiteRule& rule, const GivenField& given, const RuleContext& context);
// A written rule as it is under a layout.
SiteRule rule_of(const WrittenRule& written, const RuleContext& context);

}  // namespace thinwire
