// Nests final values as a user writes them, and compares two of them.
#include "engine/run/config/resolved_json.h"

#include <algorithm>

#include "engine/run/config/check_value.h"
#include "engine/run/config/key_table.h"
#include "engine/run/config/rule_fields.h"

namespace thinwire {
namespace {

// nullptr: not there, as keys that are newer than the file.
const nlohmann::json* at_path(const nlohmann::json& resolved, const std::string& name) {
  const nlohmann::json* node = &resolved;
  for (const std::string& part : key_path(name)) {
    if (!node->is_object() || !node->contains(part)) return nullptr;
    node = &node->at(part);
  }
  return node;
}

nlohmann::json of_this_version(nlohmann::json resolved) {
  if (!resolved.contains("config_version") && resolved.contains("intermediate_size")) {
    resolved["ffn_hidden_size"] = resolved["intermediate_size"];
    resolved["intermediate_size"] = nullptr;
  }
  // Before there was a choice, the loss was the mean of the micro-batches' means.
  if (!resolved.contains("calculate_per_token_loss") && resolved.contains("eod_mask_loss") &&
      resolved["eod_mask_loss"] == true)
    resolved["calculate_per_token_loss"] = false;
  return resolved;
}

}  // namespace

nlohmann::json resolved_json(const ResolvedConfig& config) {
  nlohmann::json root = nlohmann::json::object();
  for (const auto& [name, value] : config.values) {
    if (value.is_null() && name.rfind("compression.", 0) == 0) continue;
    nlohmann::json* node = &root;
    for (const std::string& part : key_path(name)) node = &(*node)[part];
    *node = value;
  }
  root["compression"].update(rules_json(config.run.compression));
  nlohmann::json notes = nlohmann::json::object();
  for (const ConfigNote& n : config.notes) notes[n.key] = n.text;
  root["config_version"] = kConfigVersion;
  root["_notes"] = notes;
  return root;
}

std::vector<std::string> differing_keys(const nlohmann::json& in_checkpoint, const nlohmann::json& in_here) {
  const nlohmann::json checkpoint = of_this_version(in_checkpoint), here = of_this_version(in_here);
  std::vector<std::string> lines;
  for (const KeyTopic& topic : key_table().topics()) {
    for (const KeySpec& key : topic.keys) {
      if (key.status != KeyStatus::kUsed || (key.scope != KeyScope::kModel && key.scope != KeyScope::kData)) continue;
      const nlohmann::json *a = at_path(checkpoint, key.name), *b = at_path(here, key.name);
      // Where a file is older than a key, the program did what is the default now. A default that follows from other
      // keys followed from them then, too.
      if ((a == nullptr || b == nullptr) && !key.default_text.empty()) continue;
      const nlohmann::json& by_default = key_table().default_of(key);
      if (a == nullptr) a = &by_default;
      if (b == nullptr) b = &by_default;
      if (*a != *b) lines.push_back(key.name + ": " + shown(*a) + " in the checkpoint, " + shown(*b) + " here");
    }
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace thinwire
