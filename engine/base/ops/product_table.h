// Which algorithm of a library makes which product: measured once, then fixed, so that timing never decides bits twice.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/ops/product_key.h"

namespace thinwire {

// As the library wrote it (64 bytes of cuBLASLt's own), and the milliseconds that it took when it was chosen.
struct ProductAlgorithm {
  std::array<std::byte, 64> words{};
  double ms = 0.0;
  bool operator==(const ProductAlgorithm&) const = default;
};

// By text_of(MatmulKey).
using ProductTable = std::map<std::string, ProductAlgorithm>;

// A library of matrix products on a GPU, as far as choosing goes; a stand-in in tests.
class ProductLibrary {
 public:
  virtual ~ProductLibrary() = default;
  // The kind of GPU and the version of the library: where both are equal an algorithm gives equal bits.
  virtual std::string place() const = 0;
  virtual ProductRules rules() const = 0;
  // Whether an algorithm that was stored is one that it can run.
  virtual bool takes(const MatmulKey& key, const ProductAlgorithm& algorithm) = 0;
  // Best first, as the library sees it; none whose parts of a sum may meet in another order in every run.
  virtual std::vector<ProductAlgorithm> suggestions(const MatmulKey& key) = 0;
  // Milliseconds of a run on random numbers; infinite where it fails.
  virtual double measured(const MatmulKey& key, const ProductAlgorithm& algorithm) = 0;
};

// The library behind an Exec, which outlives it; nullptr where the Exec's table has none to choose from.
std::unique_ptr<ProductLibrary> make_product_library(Exec& exec);
// From here on the Exec's products take the algorithms of the table, which outlives it; what it lacks is the library's
// to choose. Without effect where there is no such library.
void use_products(Exec& exec, const ProductTable& table);

// The fastest of the library's suggestions; nothing where none of them runs.
std::optional<ProductAlgorithm> fastest(ProductLibrary& library, const MatmulKey& key);

}  // namespace thinwire
