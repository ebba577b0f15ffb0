// The fields of a compression rule: one table makes the keys of every site, reads rules from values and writes them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compression/codec_table.h"
#include "compression/rule.h"
#include "engine/base/core/key_spec.h"

namespace thinwire {

// Names relative to a site: "bits", "sum.bits", "select.stages", "min_bytes" ... in the order of the documentation.
// Defaults are null: what a codec takes when nothing is said is in `default_text`.
const std::vector<KeySpec>& rule_fields();

// The value of a field, and the field of a value that the table accepts. Setting anything of `sum` says that there is
// one.
nlohmann::json rule_value(const SiteRule& rule, const std::string& field);
void set_rule_value(SiteRule& rule, const std::string& field, const nlohmann::json& value);
// Whether the field does anything in this rule: `bits` does in block_int, `beta` beside residual ema ...
bool field_matters(const SiteRule& rule, const std::string& field);

// The same rule with every field that does not matter at its default: two rules mean the same if these are equal.
SiteRule canonical(const SiteRule& rule);

// The rules in full, as config.resolved.json prints them: {"<site>": {...}}, or, of a site with several, in a list
// "rules".
nlohmann::json rules_json(const CompressionConfig& config);

}  // namespace thinwire
