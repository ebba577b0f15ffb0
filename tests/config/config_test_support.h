// Shared by the tests of the config room: a minimal good configuration and the table form of bad ones.
#pragma once

#include <string>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/run/config/load_config.h"

namespace thinwire {

// The smallest configuration that loads, without braces: tests add lines to it.
inline const char* kMinimal =
    "\"num_layers\": 4, \"hidden_size\": 64, \"num_attention_heads\": 8, \"seq_length\": 32, \"vocab_size\": 256, "
    "\"lr\": 1e-3, "
    "\"train_iters\": 10, \"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2";

// Line 1 holds the brace, line 2 the minimal keys, `extra` starts on line 3, column 1.
inline std::string with(const std::string& extra) {
  return std::string("{\n") + kMinimal + ",\n" + extra + "\n}\n";
}

// The minimal keys without the one named, then `extra` on line 3.
std::string without(const std::string& key, const std::string& extra);

struct BadConfig {
  const char* name;
  std::string text;
  std::vector<std::string> fragments;  // all must be in one line of the message
  std::vector<std::string> overrides = {};
  ConfigOptions options = {};
};

// The message of the Error(kBadConfig) that loading throws; a test failure if it does not, or throws something else.
std::string refusal(const std::string& text, const std::vector<std::string>& overrides = {},
                    const ConfigOptions& options = {});

void expect_refused(const std::vector<BadConfig>& table);

}  // namespace thinwire
