// Nests final values as a user writes them, and compares two of them.
#include "engine/run/config/resolved_json.h"

#include <algorithm>

#include "engine/run/config/check_value.h"
#include "engine/run/config/key_table.h"
#include "engine/run/config/rule_fields.h"

namespace thinwire {
namespace {

nlohmann::json at_path(const nlohmann::json& resolved, const std::string& name) {
  const nlohmann::json* node = &resolved;
  for (const std::string& part : key_path(name)) {
    if (!node->is_object() || !node->contains(part)) return nullptr;
    node = &node->at(part);
  }
  return *node;
}

std::vector<std::string> keys_of(const std::vector<KeyScope>& scopes) {
  std::vector<std::string> names;
  for (const KeyTopic& topic : key_table().topics())
    for (const KeySpec& key : topic.keys)
      if (key.status == KeyStatus::kUsed && std::find(scopes.begin(), scopes.end(), key.scope) != scopes.end())
        names.push_back(key.name);
  std::sort(names.begin(), names.end());
  return names;
}

nlohmann::json of_this_version(nlohmann::json resolved) {
  if (!resolved.contains("config_version") && resolved.contains("intermediate_size")) {
    resolved["ffn_hidden_size"] = resolved["intermediate_size"];
    resolved["intermediate_size"] = nullptr;
  }
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

std::vector<std::string> differing_keys(const nlohmann::json& in_checkpoint, const nlohmann::json& in_here,
                                        const std::vector<KeyScope>& scopes) {
  const nlohmann::json checkpoint = of_this_version(in_checkpoint), here = of_this_version(in_here);
  std::vector<std::string> lines;
  for (const std::string& name : keys_of(scopes)) {
    const nlohmann::json a = at_path(checkpoint, name), b = at_path(here, name);
    if (a != b) lines.push_back(name + ": " + shown(a) + " in the checkpoint, " + shown(b) + " here");
  }
  return lines;
}

}  // namespace thinwire
