// Which algorithms the matrix products of a run take: those of the file that the key product_table names; what it lacks
// is measured once, on the GPUs at hand, before the first step, and kept there.
#pragma once

#include <set>
#include <string>

#include "engine/run/train/job.h"
#include "engine/run/train/product_file.h"
#include "engine/run/train/rank_layout.h"

namespace thinwire {

// The products that a rank of the run tries first in a step, by a rehearsal: no memory, no mathematics.
std::set<MatmulKey> products_of_step(const RunConfig& config, const RankLayout& layout, const ProductRules& rules);

// All ranks together; `needed`: this rank's products. Equal places get equal tables, on every rank and in every run
// with the same file: of the ranks of a place the first that needs a product measures it for all. Of a table for
// another place nothing is taken, and a damaged one is refused by name; the log says so. What no algorithm is found
// for, and products that a step does not show (evaluation, fallbacks), have no entry: there the library's first
// suggestion counts.
ProductTable settle_products(const std::string& path, Job& job, ProductLibrary& library,
                             const std::set<MatmulKey>& needed);

// The same for a run, with a library of its device for as long as it takes; an empty table where the configuration asks
// for none, or the device has no such library.
ProductTable choose_products(const RunConfig& config, Job& job, Device& device, const OpTable& ops);

}  // namespace thinwire
