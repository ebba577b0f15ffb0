// Stands in for the CUDA table in builds without CUDA. Nobody gets here: there is no CUDA device to run it on.
#include "engine/base/core/error.h"
#include "engine/base/ops/ops.h"
#include "engine/base/ops/product_table.h"

namespace thinwire {

const OpTable& cuda_ops() {
  throw_bad_config(
      "device: cuda is not built into this program; configure with the preset `cuda`, or set \"device\": \"cpu\"");
}

std::unique_ptr<ProductLibrary> make_product_library(Exec&) {
  return nullptr;
}

void use_products(Exec&, const ProductTable&) {}

}  // namespace thinwire
