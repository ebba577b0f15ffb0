// The choice among a library's suggestions.
#include "engine/base/ops/product_table.h"

#include <limits>

namespace thinwire {

std::optional<ProductAlgorithm> fastest(ProductLibrary& library, const MatmulKey& key) {
  std::optional<ProductAlgorithm> best;
  double least = std::numeric_limits<double>::infinity();
  for (const ProductLibrary::Suggestion& suggestion : library.suggestions(key)) {
    if (!suggestion.ordered) continue;
    const double ms = library.measured(key, suggestion.algorithm);
    if (!(ms < least)) continue;
    least = ms;
    best = suggestion.algorithm;
    best->ms = ms;
  }
  return best;
}

}  // namespace thinwire
