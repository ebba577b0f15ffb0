// Product tables as JSON with a checksum.
#include "engine/run/train/product_file.h"

#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "engine/base/core/crc32c.h"
#include "engine/base/core/shallow_json.h"
#include "engine/base/core/text.h"

namespace thinwire {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;

std::string sum_of(const json& places) {
  const std::string text = places.dump();
  return printed("%08x", crc32c(std::as_bytes(std::span(text))));
}

std::string hex_of(const ProductAlgorithm& algorithm) {
  std::string digits;
  for (const std::byte b : algorithm.words) digits += printed("%02x", std::to_integer<unsigned>(b));
  return digits;
}

ProductAlgorithm algorithm_of(const std::string& product, const json& entry) {
  ProductAlgorithm algorithm;
  const auto bad = [&] { return "of \"" + product + "\" it holds no algorithm"; };
  if (!entry.is_object()) throw bad();
  const json digits = entry.value("algorithm", json()), ms = entry.value("ms", json());
  if (!digits.is_string() || !ms.is_number()) throw bad();
  const std::string& text = digits.get_ref<const std::string&>();
  if (text.size() != 2 * algorithm.words.size() || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw bad();
  for (size_t i = 0; i < algorithm.words.size(); ++i)
    algorithm.words[i] = static_cast<std::byte>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
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
      all[place][product] = {{"algorithm", hex_of(algorithm)}, {"ms", algorithm.ms}};
  const std::string sum = sum_of(all);
  return json({{"format", kFormat}, {"crc32c", sum}, {"places", std::move(all)}}).dump(1) + "\n";
}

void ProductFile::add(const ProductFile& other) {
  for (const auto& [place, table] : other.places) places[place].insert(table.begin(), table.end());
}

}  // namespace thinwire
