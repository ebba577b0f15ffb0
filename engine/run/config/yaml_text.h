// Reads YAML as GPT-NeoX's users write it: parsed by libyaml, typed by PyYAML's rules, every value with its place.
#pragma once

#include <string>

#include "engine/run/config/json_text.h"

namespace thinwire {

// One YAML 1.1 document, flow or block style, as parse_json_text returns JSON. Plain words are typed by PyYAML's rules:
// `True`, `yes` and `on` are booleans, `1.0e-4` and `1_000` are numbers, `1e-4` is a string, dates stay strings.
// Aliases are copies of what they name. Refused, with line and column: duplicate keys, keys that are no text, tags,
// `<<`, a second document, nesting deeper than kMaxJsonDepth, more than a million values, and what libyaml refuses. An
// empty document is an empty object. Never throws on bad text.
JsonText parse_yaml_text(const std::string& text);

// Whether a file of this name is read as YAML: it ends in .yml or .yaml.
bool is_yaml_name(const std::string& name);

}  // namespace thinwire
