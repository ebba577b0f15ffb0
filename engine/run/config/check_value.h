// Checks a value of a configuration against its key, and shortens values for messages.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/core/key_spec.h"
#include "engine/run/config/json_text.h"

namespace thinwire {

struct Checked {
  nlohmann::json value;  // as the key's type: integer or double, strings in our spelling
  std::string error;     // empty: good
  TextPosition at;       // of the value or of the bad list element
};

// null is good and gives a null value.
Checked check_value(const KeySpec& key, const JsonTree& value);

// For messages and pages: a value cut to 60 characters, a number without needless decimals.
std::string shown(const nlohmann::json& value);
std::string number_text(double v);

}  // namespace thinwire
