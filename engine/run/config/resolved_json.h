// The resolved configuration as JSON, and the comparison that a resume makes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/run/config/load_config.h"

namespace thinwire {

// Of the resolved form. 2: ffn_hidden_size is the width of the feed-forward part; in files without a version, which are
// of version 1, intermediate_size was.
constexpr int kConfigVersion = 2;

// Every used key with its final value, nested as a user writes it, plus "config_version" and "_notes": what was
// accepted without effect. Loading the text again (same ranks) gives the same RunConfig. command_line is not in it.
nlohmann::json resolved_json(const ResolvedConfig& config);

// One line per model or data key whose value differs: `hidden_size: 64 in the checkpoint, 128 here`. Empty: they match.
// Either may be of an older version: a key that it lacks has its default, and one that was derived from others is not
// compared.
std::vector<std::string> differing_keys(const nlohmann::json& checkpoint, const nlohmann::json& here);

}  // namespace thinwire
