// Megatron-LM's command line: `--num-layers 12 --bf16 --split 99,1,0` as overrides of our keys, which bear its names.
#pragma once

#include <string>
#include <vector>

namespace thinwire {

// What messages call the source of Megatron's defaults.
inline constexpr const char* kMegatronDefaults = "Megatron's defaults";

// One flag: "num_layers=12", "bf16=true", "data_path=[0.5, \"a\", 0.5, \"b\"]".
struct MegatronFlag {
  std::string spelled;   // "--num-layers", to which load_config adds where it stands
  std::string override;  // key=value
};

// The words of a shell command line, with its quotes; lines that begin with # are left out. Nothing is expanded: no
// variable, command, file pattern or home directory. Throws Error(kBadConfig) on an unclosed quote, and where the shell
// would do something.
std::vector<std::string> shell_words(const std::string& text);

// Words to flags. A flag has the words behind it up to the next that begins with "--". Throws Error(kBadConfig) on a
// word that belongs to no flag.
std::vector<MegatronFlag> megatron_flags(const std::vector<std::string>& words);

// Whether it says nothing beside `all` flags: a warm-up of 0, Megatron's default, beside another word for the warm-up.
bool is_idle_warm_up(const MegatronFlag& flag, const std::vector<MegatronFlag>& all);

// Whether Megatron reads the number of query groups, which it does beside --group-query-attention alone.
bool reads_query_groups(const std::vector<MegatronFlag>& all);

// A configuration of the defaults that Megatron has and we have otherwise, for these flags.
std::string megatron_defaults(const std::vector<MegatronFlag>& flags);

}  // namespace thinwire
