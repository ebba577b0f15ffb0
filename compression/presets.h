// Published systems as rules: what each preset expands to.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compression/rule.h"
#include "compression/site.h"

namespace thinwire {

// What an expansion may depend on: layout and length of the run, never the machine.
struct PresetContext {
  int pipeline = 1, data = 1, tensor = 1;
  int ranks_per_node = 0;  // 0: unknown
  int data_per_node = 0;   // ranks of a data-parallel group on one node; 0: unknown, or not the same on all
  int64_t layers = 1;
  int64_t train_iters = 0;      // for warm-ups that are a share of the run
  bool weights_persist = true;  // each rank keeps whole weights between steps: they are not sharded
  // Whether the nodes form two levels inside every data-parallel group: known, and several ranks on each of several.
  bool two_level = false;
};

// Rules per site, and what a preset says about things that are not rules. Rules of sites that a layout does not have
// are in it all the same; they are void.
struct PresetRules {
  std::map<Site, SiteRule> rules;
  std::optional<std::string> weights, gradients, optimizer, secondary;  // placement levels, if the preset sets them
  std::optional<std::string> embedding_sync;                            // "fused" | "two_step"
  bool adapt = false;                                                   // switches itself off where it does not pay
  std::optional<std::string> sends;  // dp.gradient sends "momentum" instead of the gradient (one_bit_adam)
};

struct Preset {
  std::string name;
  std::string doc;  // one sentence
};
const std::vector<Preset>& presets();  // in the order of docs/presets.md
// Throws Error(kBadConfig) for an unknown name (nearest one named).
PresetRules expand_preset(const std::string& name, const PresetContext& context);

}  // namespace thinwire
