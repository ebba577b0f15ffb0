// One written value against one key, and values as messages show them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/core/key_spec.h"
#include "engine/run/config/json_text.h"

namespace thinwire {

struct Checked {
  nlohmann::json
      value;          // of a type that the key takes: integers as integers, reals as doubles, strings as we spell them
  std::string error;  // empty: good
  TextPosition at;    // of the value or of the bad list element
};

// Of null nothing is said: neither a value nor an error.
Checked check_value(const KeySpec& key, const JsonTree& value);

// For messages and pages: a value shortened, a number without needless places.
std::string shown(const nlohmann::json& value);
std::string number_text(double v);

}  // namespace thinwire
