// The choice among a library's suggestions.
#include "engine/base/ops/product_table.h"

#include <limits>

namespace thinwire {

std::optional<ProductAlgorithm> fastest(ProductLibrary& library, const MatmulKey& key) {
  std::optional<ProductAlgorithm> best;
  double least = std::numeric_limits<double>::infinity();
  for (const ProductAlgorithm& suggestion : library.suggestions(key)) {
    const double ms = library.measured(key, suggestion);
    if (!(ms < least)) continue;
    least = ms;
    best = suggestion;
    best->ms = ms;
  }
  return best;
}

}  // namespace thinwire
