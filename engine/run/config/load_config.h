// From configuration files and overrides to a RunConfig, or to every violation at once.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/run/config/run_config.h"
#include "engine/run/config/settings.h"

namespace thinwire {

struct ConfigOptions {
  // Ranks that run, or that --ranks asks to price. 0: not known; then the batch keys say (all three given), or with
  // dry_run global_num_gpus, or there is one data-parallel rank.
  int64_t ranks = 0;
  // Consecutive ranks that each node was found to hold, for whatever looks at nodes while the key ranks_per_node leaves
  // them as found. 0: not known, or not the same on all.
  int64_t found_ranks_per_node = 0;
  int64_t machines = 0;  // that the ranks were found on; 0: not known
  bool dry_run = false;
  bool data_required = false;  // a configuration without data_path / train_data_paths is a violation
  bool allow_faults = false;   // otherwise the key `faults` is a violation
  // Files with a command line of Megatron-LM each, read behind the configuration files; and such flags themselves, read
  // behind the overrides. Where there is no configuration file, Megatron's defaults hold.
  std::vector<std::string> args_files;
  std::vector<std::string> megatron_words;
};

// One configuration text with the name that messages show.
struct ConfigSource {
  std::string name;
  std::string text;
};

struct ResolvedConfig {
  RunConfig run;
  // Every used key with its final value (null: none), but for the rules of compression: they are in `run`.
  std::map<std::string, nlohmann::json> values;
  std::set<std::string> given;    // the keys among them that the user wrote
  std::vector<ConfigNote> notes;  // accepted without effect, or worth knowing; one per key
};

// One line per reason: "hostfile, num_gpus: ranks come from ...". In the order of the first key that has it.
std::vector<std::string> note_lines(const ResolvedConfig& config);

// A file that is not here is the one that ships under this name (shipped.h), and a note says so; the same holds for
// data. Later files win per key, then overrides (`key.sub=value`) in their order. Throws ConfigErrors (an Error with
// kBadConfig) that lists all violations; a file that cannot be read is one of them. Touches no device and no data.
ResolvedConfig load_config(const std::vector<std::string>& files, const std::vector<std::string>& overrides,
                           const ConfigOptions& options = {});

// The same for texts in memory. run_dir defaults to runs/<stem of the first name>.
ResolvedConfig load_config_text(const std::vector<ConfigSource>& sources, const std::vector<std::string>& overrides,
                                const ConfigOptions& options = {});

}  // namespace thinwire
