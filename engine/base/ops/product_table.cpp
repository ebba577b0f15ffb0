// Measures a library's suggestions for a product and takes the fastest.
#include "engine/base/ops/product_table.h"

#include <limits>

namespace thinwire {

std::optional<ProductAlgorithm> fastest(ProductLibrary& library, const MatmulKey& key) {
  std::optional<ProductAlgorithm> best;
  double least_ms = std::numeric_limits<double>::infinity();
  for (const ProductAlgorithm& suggestion : library.suggestions(key)) {
    const double ms = library.measured(key, suggestion);
    if (!(ms < least_ms)) continue;  // also what failed: infinity
    least_ms = ms;
    best = suggestion;
    best->ms = ms;
  }
  return best;
}

}  // namespace thinwire
