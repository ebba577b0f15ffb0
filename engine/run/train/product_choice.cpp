// The rehearsal that lists products, and how ranks agree.
#include "engine/run/train/product_choice.h"

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/core/file.h"
#include "engine/base/core/log.h"
#include "engine/base/core/text.h"
#include "engine/run/train/step_rehearsal.h"

namespace thinwire {
namespace {

using nlohmann::json;

constexpr size_t kMostBytes = size_t{64} << 20;

// The products of a rehearsal instead of a table's matmul; the rest does nothing.
class ProductList final : public OpState {
 public:
  const ProductRules* rules = nullptr;
  std::set<MatmulKey> products;
};

void list_product(Exec& exec, const Matmul& op) {
  auto& list = dynamic_cast<ProductList&>(*exec.state);
  if (op.c.count() > 0 && list.rules != nullptr) list.products.insert(first_key(op, *list.rules));
}

OpTable listing_ops() {
  OpTable table = rehearsal_ops();
  table.fused_products = true;
  table.make_state = [](Device&) -> std::unique_ptr<OpState> { return std::make_unique<ProductList>(); };
  table.matmul = list_product;
  return table;
}

// What a rank tells the first one: its place, and by text the products that the file does not answer.
json report(const std::string& place, const std::map<std::string, MatmulKey>& lacking) {
  json products = json::array();
  for (const auto& [text, key] : lacking) products.push_back(text);
  return {{"place", place}, {"lacks", std::move(products)}};
}

// By rank: what it measures, for all ranks of its place.
json divide(const std::vector<std::string>& reports) {
  std::set<std::pair<std::string, std::string>> taken;
  json work = json::array();
  for (const std::string& text : reports) {
    const json report = json::parse(text);
    work.push_back(json::array());
    for (const json& product : report["lacks"])
      if (taken.emplace(report["place"].get<std::string>(), product.get<std::string>()).second)
        work.back().push_back(product);
  }
  return work;
}

// On the first rank: the file as it is, or nothing and why in the log.
ProductFile known_products(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  try {
    return ProductFile::of(read_file(path, kMostBytes));
  } catch (const std::string& fault) {
    log_warning("warning: product_table " + path + " is damaged: " + fault + "; its products are measured again");
    return {};
  }
}

void log_other_places(const std::string& path, const ProductFile& file, const std::string& place) {
  if (file.places.empty() || file.places.count(place) > 0) return;
  std::string others;
  for (const auto& [other, table] : file.places) others += (others.empty() ? "" : "; ") + other;
  log_info("product_table " + path + " was measured on other GPUs or libraries (" + others +
           ") and is not used; here: " + place);
}

}  // namespace

std::set<MatmulKey> products_of_step(const RunConfig& config, const RankLayout& layout, const ProductRules& rules) {
  const OpTable ops = listing_ops();
  StepRehearsal rehearsal(config, layout, nullptr, ops);
  auto& list = dynamic_cast<ProductList&>(*rehearsal.replica().exec().state);
  list.rules = &rules;
  rehearsal.take_step(static_cast<int>(config.accumulation));
  return list.products;
}

ProductTable settle_products(const std::string& path, Job& job, ProductLibrary& library,
                             const std::set<MatmulKey>& needed) {
  const auto begin = std::chrono::steady_clock::now();
  std::string place;
  job.agree([&] { place = library.place(); });
  ProductFile file = ProductFile::of(job.control().made_by_first([&] {
    const ProductFile known = known_products(path);
    log_other_places(path, known, place);
    return known.text();
  }));
  std::map<std::string, MatmulKey> lacking;
  job.agree([&] {
    ProductTable& table = file.places[place];
    for (const MatmulKey& key : needed) {
      const auto known = table.find(text_of(key));
      if (known != table.end() && library.takes(key, known->second)) continue;
      if (known != table.end())
        log_warning("warning: product_table " + path + ": the library refuses the algorithm of \"" + known->first +
                    "\"; it is measured again");
      lacking.emplace(text_of(key), key);
    }
  });
  const std::vector<std::string> reports = job.control().collect(report(place, lacking).dump());
  const json work = json::parse(job.control().made_by_first([&] { return divide(reports).dump(); }));
  ProductFile mine;
  job.agree([&] {
    for (const json& product : work.at(static_cast<size_t>(job.rank()))) {
      const std::string name = product.get<std::string>();
      if (const auto best = fastest(library, lacking.at(name))) mine.places[place].emplace(name, *best);
    }
  });
  const std::vector<std::string> found = job.control().collect(mine.text());
  const std::string all = job.control().made_by_first([&] {
    ProductFile fresh;
    for (const std::string& one : found) fresh.add(ProductFile::of(one));
    size_t measured = 0;
    for (const auto& [where, table] : fresh.places) measured += table.size();
    for (const std::string& one : reports) {  // what a library has refused, or was measured again
      const json report = json::parse(one);
      for (const json& product : report["lacks"])
        file.places[report["place"].get<std::string>()].erase(product.get<std::string>());
    }
    fresh.add(file);
    std::erase_if(fresh.places, [](const auto& entry) { return entry.second.empty(); });
    const std::string text = fresh.text();
    if (measured > 0) {
      if (const std::string folder = folder_of(path); !folder.empty()) make_directories(folder);
      write_file_atomic(path, text);
    }
    log_info(printed("product_table %s: %zu products of this GPU, %zu measured in %.1f s", path.c_str(),
                     fresh.places[place].size(), measured,
                     std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()));
    return text;
  });
  return ProductFile::of(all).places[place];
}

ProductTable choose_products(const RunConfig& config, Job& job, Device& device, const OpTable& ops) {
  if (config.product_table.empty()) return {};
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Exec> exec;
  std::unique_ptr<ProductLibrary> library;
  std::set<MatmulKey> needed;
  job.agree([&] {
    stream = device.make_stream();
    exec = std::make_unique<Exec>(make_exec(ops, device, *stream, 1));
    library = make_product_library(*exec);
    if (library == nullptr) return;  // on all ranks: of one kind of device
    needed = products_of_step(config, layout_of(config, job.rank(), job.nodes()), library->rules());
  });
  return library != nullptr ? settle_products(config.product_table, job, *library, needed) : ProductTable();
}

}  // namespace thinwire
