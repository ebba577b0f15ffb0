// From configuration files and overrides to a RunConfig, or to every violation at once.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/run/config/run_config.h"
#include "engine/run/config/settings.h"

namespace thinwire {

struct ConfigOptions {
  // Ranks that run, or that --ranks prices. 0: not known. Then, in this order: global_num_gpus (dry_run only), the
  // ranks that the three batch keys imply, one data-parallel rank.
  int64_t ranks = 0;
  // Consecutive ranks on each node, as found at start; the key ranks_per_node overrides it. 0: not known, or nodes
  // differ.
  int64_t found_ranks_per_node = 0;
  int64_t machines = 0;                      // on which the ranks run, whatever ranks_per_node pretends; 0: not known
  int64_t done_iters = 0, done_samples = 0;  // of DataConfig
  bool dry_run = false;
  bool data_required = false;  // a configuration without data_path / train_data_paths is a violation
  bool allow_faults = false;   // otherwise the key `faults` is a violation
  // Flags of Megatron-LM, for load_config: in files, each of which overrides the configuration files, and from the
  // command line, which override all else. With flags and no configuration file, Megatron's defaults hold.
  std::vector<std::string> args_files;
  std::vector<std::string> megatron_words;
};

// A configuration text, and its name in messages.
struct ConfigSource {
  std::string name;
  std::string text;
};

struct ResolvedConfig {
  RunConfig run;
  // Every used key with its final value (null: none), except compression's rules, which are in `run`.
  std::map<std::string, nlohmann::json> values;
  std::set<std::string> given;    // keys of `values` that the user wrote
  std::vector<ConfigNote> notes;  // accepted without effect, or worth knowing; one per key
  // The same settings where `iters` steps have taken `samples` samples under other batches: the steps of train_samples,
  // and the lengths of the rate that follow, are other ones. Throws as load_config does.
  std::function<ResolvedConfig(int64_t iters, int64_t samples)> resumed_at;
};

// The notes as lines in their order, one per text with all its keys: "hostfile, num_gpus: ranks come from ...".
std::vector<std::string> note_lines(const ResolvedConfig& config);

// Later files win per key, then overrides (`key.sub=value`) in their order. For a path that does not exist, the file
// shipped under that name is taken (shipped.h), and a note says so; the same holds for data. Throws an
// Error(kBadConfig) that lists all violations; a file that cannot be read is one. Touches no device and no data.
ResolvedConfig load_config(const std::vector<std::string>& files, const std::vector<std::string>& overrides,
                           const ConfigOptions& options = {});

// The same for texts in memory. run_dir defaults to runs/<stem of the first name>.
ResolvedConfig load_config_text(const std::vector<ConfigSource>& sources, const std::vector<std::string>& overrides,
                                const ConfigOptions& options = {});

}  // namespace thinwire
