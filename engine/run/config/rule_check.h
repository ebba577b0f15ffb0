// Which rules make sense: every combination that does not, with the reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compression/rule.h"
#include "compression/site.h"

namespace thinwire {

// What the sense of a rule depends on.
struct RuleContext {
  int64_t stages = 1, layers = 1, data = 1, tensor = 1, context = 1;
  int64_t ranks_per_node = 0;   // 0: unknown
  int64_t data_on_node = 0;     // ranks of a data-parallel group on each of its nodes; 0: unknown or uneven
  bool weights_persist = true;  // each rank keeps whole weights between steps: they are not sharded
  bool sums_return = false;     // gradients' sums go back to all data ranks: optimizer state is replicated
  int64_t train_iters = 0;      // 0: not known
  bool timed = true;            // link_gbps and pipe_partition_costs say how long messages and layers take
  // Whether the nodes form two levels inside every data-parallel group: known, and several ranks on each of several.
  bool two_level() const { return data_on_node > 1 && data_on_node < data; }
};

struct RuleFault {
  std::vector<std::string> fields;  // of the rule, the most to blame first
  std::string message;
  bool note = false;  // worth saying, not wrong
};

// Fields are within their own bounds already.
std::vector<RuleFault> check_rule(Site site, const SiteRule& rule, const RuleContext& context);

// Nothing of the site is ever sent under this layout (or in this version): why. Empty: it is.
std::string absent(Site site, const RuleContext& context);

}  // namespace thinwire
