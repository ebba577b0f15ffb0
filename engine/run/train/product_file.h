// The file of the key product_table: which algorithms matrix products take on which GPUs.
#pragma once

#include <map>
#include <string>

#include "engine/base/ops/product_table.h"

namespace thinwire {

// What it holds: a table for each place (ProductLibrary::place). As JSON:
//   {"format": 1, "crc32c": "9ae0daaf", "places": {PLACE: {PRODUCT: {"algorithm": 128 hexadecimal digits, "ms":
//   0.21}}}}
// The sum is that of the value of "places" as text without spaces, keys in order.
struct ProductFile {
  std::map<std::string, ProductTable> places;
  // Throws std::string: what is wrong with the text.
  static ProductFile of(const std::string& text);
  std::string text() const;
  void add(const ProductFile& other);  // what both have stays
};

}  // namespace thinwire
