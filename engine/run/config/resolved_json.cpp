// Nests final values as a user writes them, and compares two of them.
#include "engine/run/config/resolved_json.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

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
  root["_notes"] = notes;
  return root;
}

std::string config_hash(const nlohmann::json& resolved, const std::vector<KeyScope>& scopes) {
  std::string canonical;
  for (const std::string& name : keys_of(scopes)) {
    const nlohmann::json value = at_path(resolved, name);
    if (!value.is_null())
      canonical += name + "=" + value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  uint64_t hash = XXH3_64bits(canonical.data(), canonical.size());
  std::string text(16, '0');
  for (size_t i = 16; i-- > 0; hash >>= 4) text[i] = "0123456789abcdef"[hash & 15];
  return text;
}

std::vector<std::string> differing_keys(const nlohmann::json& checkpoint, const nlohmann::json& here,
                                        const std::vector<KeyScope>& scopes) {
  std::vector<std::string> lines;
  for (const std::string& name : keys_of(scopes)) {
    const nlohmann::json a = at_path(checkpoint, name), b = at_path(here, name);
    if (a != b) lines.push_back(name + ": " + shown(a) + " in the checkpoint, " + shown(b) + " here");
  }
  return lines;
}

}  // namespace thinwire
