// The resolved configuration as JSON, its hash, and the comparison that a resume makes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/run/config/load_config.h"

namespace thinwire {

// Every used key with its final value, nested as a user writes it, plus "_notes": what was accepted without effect.
// Loading the text again (same ranks) gives the same RunConfig. command_line is not in it.
nlohmann::json resolved_json(const ResolvedConfig& config);

// 16 hexadecimal digits: XXH3-64 of the canonical text of the keys of these scopes in a resolved JSON. Keys that are
// absent count as null, so that a new optional key does not change old hashes.
std::string config_hash(const nlohmann::json& resolved,
                        const std::vector<KeyScope>& scopes = {KeyScope::kModel, KeyScope::kData});

// One line per key of these scopes whose value differs: `hidden_size: 64 in the checkpoint, 128 here`. Empty: they
// match.
std::vector<std::string> differing_keys(const nlohmann::json& checkpoint, const nlohmann::json& here,
                                        const std::vector<KeyScope>& scopes = {KeyScope::kModel, KeyScope::kData});

}  // namespace thinwire
