// Product tables as JSON with a checksum.
#include "engine/run/train/product_file.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "engine/base/core/crc32c.h"
#include "engine/base/core/shallow_json.h"
#include "engine/base/core/text.h"
#include "engine/run/checkpoint/output_file.h"

namespace thinwire {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;

std::string sum_of(const json& places) {
  const std::string text = places.dump();
  return printed("%08x", crc32c(std::as_bytes(std::span(text))));
}

ProductAlgorithm algorithm_of(const std::string& product, const json& entry) {
  ProductAlgorithm algorithm;
  const auto bad = [&] { return "of \"" + product + "\" it holds no algorithm"; };
  if (!entry.is_object()) throw bad();
  const json digits = entry.value("algorithm", json()), ms = entry.value("ms", json());
  if (!digits.is_string() || !ms.is_number()) throw bad();
  const auto bytes = from_hex(digits.get_ref<const std::string&>());
  if (!bytes || bytes->size() != algorithm.words.size()) throw bad();
  std::memcpy(algorithm.words.data(), bytes->data(), bytes->size());
  algorithm.ms = ms.get<double>();
  return algorithm;
}

}  // namespace

ProductFile ProductFile::of(const std::string& text) {
  const json root = parse_shallow(text);
  if (root.is_discarded() || !root.is_object()) throw std::string("it is no JSON object");
  if (root.value("format", json()) != kFormat) throw "its format is not " + std::to_string(kFormat);
  const json places = root.value("places", json());
  if (!places.is_object()) throw std::string("it has no \"places\"");
  if (root.value("crc32c", json()) != sum_of(places)) throw std::string("its checksum does not fit");
  ProductFile file;
  for (const auto& [place, products] : places.items()) {
    if (!products.is_object()) throw "of \"" + place + "\" it holds no table";
    for (const auto& [product, entry] : products.items())
      file.places[place].emplace(product, algorithm_of(product, entry));
  }
  return file;
}

std::string ProductFile::text() const {
  json all = json::object();
  for (const auto& [place, table] : places)
    for (const auto& [product, algorithm] : table)
      all[place][product] = {{"algorithm", to_hex(algorithm.words)}, {"ms", algorithm.ms}};
  const std::string sum = sum_of(all);
  return json({{"format", kFormat}, {"crc32c", sum}, {"places", std::move(all)}}).dump(1) + "\n";
}

void ProductFile::add(const ProductFile& other) {
  for (const auto& [place, table] : other.places) places[place].insert(table.begin(), table.end());
}

}  // namespace thinwire
