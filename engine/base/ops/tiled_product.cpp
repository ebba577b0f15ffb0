// Chooses the grid of tiles, makes their primitives once, and runs them on the OpenMP team.
#include "engine/base/ops/tiled_product.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "engine/base/core/check.h"
#include "engine/base/ops/isa.h"
#include "engine/base/ops/scratch_buffer.h"

namespace thinwire {
namespace {

// Tiles are cut at multiples of these, the last one takes the rest as well: no tile is so thin that oneDNN would take a
// matrix-vector path with another order of sums than the whole product.
constexpr int64_t kRowUnit = 16, kColUnit = 64;
// Below this many multiplications waking a thread costs more than it saves.
constexpr int64_t kSerialWork = 1 << 18;
// More plans than any run of ours has shapes; a cache that is full (many prompt lengths) starts again.
constexpr size_t kMaxPlans = 4096;

struct Key {
  int64_t m, n, k, lda, ldb, ldc;
  int threads;
  bool trans_a, trans_b, accumulate, bias;
  DType input, output;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t h = 0;
    const auto mix = [&h](uint64_t v) { h = (h ^ v) * 0x9E3779B97F4A7C15u, h ^= h >> 29; };
    for (int64_t v : {key.m, key.n, key.k, key.lda, key.ldb, key.ldc}) mix(static_cast<uint64_t>(v));
    mix(static_cast<uint64_t>(key.threads) << 16 | static_cast<uint64_t>(key.input) << 12 | static_cast<uint64_t>(key.output) << 8 |
        key.trans_a << 3 | key.trans_b << 2 | key.accumulate << 1 | static_cast<int>(key.bias));
    return h;
  }
};

dnnl::memory::data_type type_of(DType t) {
  TW_CHECK(t == DType::f32 || t == DType::bf16, "no native product of ", name_of(t));
  return t == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

struct Grid {
  int rows = 1, cols = 1;
};

// First element of part i of `parts` of n.
int64_t cut(int64_t n, int64_t unit, int parts, int i) { return i == parts ? n : n / unit * i / parts * unit; }

int64_t largest_part(int64_t n, int64_t unit, int parts) {
  int64_t largest = 0;
  for (int i = 0; i < parts; ++i) largest = std::max(largest, cut(n, unit, parts, i + 1) - cut(n, unit, parts, i));
  return largest;
}

// The grid whose largest tile costs least: its multiplications, plus what is copied or streamed once per tile and is therefore
// repeated when the other dimension is cut. The weights are fitted to measurements of the model's shapes on two cores.
Grid choose_grid(const Key& key) {
  Grid best;
  if (key.threads <= 1 || key.m * key.n * key.k < kSerialWork) return best;
  double row_weight = 32.0, col_weight = 32.0;
  if (!key.trans_a && active_isa() != Isa::kAvx2) {
    // fp32 reads b unpacked, once per block of rows; bf16 packs b once per tile.
    row_weight = key.input == DType::f32 ? 80.0 : 16.0;
    col_weight = key.input == DType::f32 ? 8.0 : 64.0;
  }
  double best_cost = 0.0;
  for (int rows = 1; rows <= key.threads && rows <= std::max<int64_t>(1, key.m / kRowUnit); ++rows) {
    const int cols = static_cast<int>(std::min<int64_t>(key.threads / rows, std::max<int64_t>(1, key.n / kColUnit)));
    const double m = static_cast<double>(largest_part(key.m, kRowUnit, rows));
    const double n = static_cast<double>(largest_part(key.n, kColUnit, cols));
    const double cost = m * n * (1.0 + row_weight / m + col_weight / n);
    if (rows == 1 || cost < best_cost) best = {rows, cols}, best_cost = cost;
  }
  return best;
}

struct Tile {
  dnnl_primitive_t primitive = nullptr;
  std::array<dnnl::memory, 5> memory;  // a, b, c, scratchpad, bias
  std::array<dnnl_exec_arg_t, 5> arguments{};
  int argument_count = 0;
  size_t a = 0, b = 0, c = 0, bias = 0;  // byte offsets of the tile
};

struct Plan {
  std::vector<dnnl::matmul> primitives;
  std::vector<Tile> tiles;
  size_t scratch_bytes = 0;  // per tile
};

// oneDNN sizes and runs a primitive for the OpenMP thread count that it sees: one.
class OneThread {
 public:
  OneThread() : saved_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(saved_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int saved_;
};

// THINWIRE_ISA lowers oneDNN too, which reads its limit once, before its first primitive.
dnnl::engine make_engine() {
  static const bool limited = [] {
    if (active_isa() == Isa::kAvx2) dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
    if (active_isa() == Isa::kAvx512) dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core);
    return true;
  }();
  static_cast<void>(limited);
  return dnnl::engine(dnnl::engine::kind::cpu, 0);
}

}  // namespace

struct TiledProducts::Impl {
  dnnl::engine engine = make_engine();
  std::vector<dnnl::stream> streams;  // one per thread
  std::unordered_map<Key, Plan, KeyHash> plans;
  ScratchBuffer scratch;
  int64_t made = 0;

  Plan make_plan(const Key& key);
  Plan& plan_of(const Key& key);
  void run_tile(Plan& plan, size_t index, const TiledProduct& product, std::byte* scratchpad, int thread, bool& failed);
};

Plan TiledProducts::Impl::make_plan(const Key& key) {
  const OneThread one_thread;
  const Grid grid = choose_grid(key);
  const auto input = type_of(key.input), output = type_of(key.output);
  const size_t in_size = size_of(key.input), out_size = size_of(key.output);
  Plan plan;
  std::vector<std::pair<std::pair<int64_t, int64_t>, size_t>> shapes;  // (rows, cols) -> primitive
  plan.primitives.reserve(static_cast<size_t>(grid.rows) * grid.cols);
  for (int i = 0; i < grid.rows; ++i) {
    for (int j = 0; j < grid.cols; ++j) {
      const int64_t m0 = cut(key.m, kRowUnit, grid.rows, i), n0 = cut(key.n, kColUnit, grid.cols, j);
      const int64_t m = cut(key.m, kRowUnit, grid.rows, i + 1) - m0, n = cut(key.n, kColUnit, grid.cols, j + 1) - n0;
      using Dims = dnnl::memory::dims;
      const dnnl::memory::desc a({m, key.k}, input, key.trans_a ? Dims{1, key.lda} : Dims{key.lda, 1});
      const dnnl::memory::desc b({key.k, n}, input, key.trans_b ? Dims{1, key.ldb} : Dims{key.ldb, 1});
      const dnnl::memory::desc c({m, n}, output, Dims{key.ldc, 1});
      const dnnl::memory::desc bias = key.bias ? dnnl::memory::desc({1, n}, input, Dims{n, 1}) : dnnl::memory::desc();
      dnnl::primitive_attr attributes;
      attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
      if (key.accumulate) {
        dnnl::post_ops post;
        post.append_sum(1.0f);
        attributes.set_post_ops(post);
      }
      const dnnl::matmul::desc what = key.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
      const dnnl::matmul::primitive_desc description(what, attributes, engine);
      size_t which = shapes.size();
      for (const auto& [shape, index] : shapes) {
        if (shape == std::pair{m, n}) which = index;
      }
      if (which == shapes.size()) {
        plan.primitives.emplace_back(description);
        shapes.push_back({{m, n}, which});
        ++made;
      }
      Tile tile;
      tile.primitive = plan.primitives[which].get();
      tile.a = static_cast<size_t>(key.trans_a ? m0 : m0 * key.lda) * in_size;
      tile.b = static_cast<size_t>(key.trans_b ? n0 * key.ldb : n0) * in_size;
      tile.c = static_cast<size_t>(m0 * key.ldc + n0) * out_size;
      tile.bias = static_cast<size_t>(n0) * in_size;
      tile.memory = {dnnl::memory(a, engine, nullptr), dnnl::memory(b, engine, nullptr), dnnl::memory(c, engine, nullptr),
                     dnnl::memory(description.scratchpad_desc(), engine, nullptr), dnnl::memory()};
      tile.arguments = {{{DNNL_ARG_SRC, tile.memory[0].get()}, {DNNL_ARG_WEIGHTS, tile.memory[1].get()},
                         {DNNL_ARG_DST, tile.memory[2].get()}, {DNNL_ARG_SCRATCHPAD, tile.memory[3].get()}, {}}};
      tile.argument_count = 4;
      if (key.bias) {
        tile.memory[4] = dnnl::memory(bias, engine, nullptr);
        tile.arguments[tile.argument_count++] = {DNNL_ARG_BIAS, tile.memory[4].get()};
      }
      plan.scratch_bytes = std::max(plan.scratch_bytes, (description.scratchpad_desc().get_size() + 4095) / 4096 * 4096);
      plan.tiles.push_back(std::move(tile));
    }
  }
  return plan;
}

Plan& TiledProducts::Impl::plan_of(const Key& key) {
  const auto found = plans.find(key);
  if (found != plans.end()) return found->second;
  if (plans.size() >= kMaxPlans) plans.clear();
  try {
    return plans.emplace(key, make_plan(key)).first->second;
  } catch (const dnnl::error& e) {
    TW_CHECK(false, "oneDNN has no product of ", name_of(key.input), " ", key.m, "x", key.n, "x", key.k, ": ", e.what());
  }
}

void TiledProducts::Impl::run_tile(Plan& plan, size_t index, const TiledProduct& product, std::byte* scratchpad, int thread,
                                   bool& failed) {
  Tile& tile = plan.tiles[index];
  const auto at = [](const void* base, size_t offset) {
    return const_cast<void*>(static_cast<const void*>(static_cast<const std::byte*>(base) + offset));
  };
  tile.memory[0].set_data_handle(at(product.a, tile.a));
  tile.memory[1].set_data_handle(at(product.b, tile.b));
  tile.memory[2].set_data_handle(at(product.c, tile.c));
  tile.memory[3].set_data_handle(scratchpad);
  if (product.bias != nullptr) tile.memory[4].set_data_handle(at(product.bias, tile.bias));
  failed = dnnl_primitive_execute(tile.primitive, streams[thread].get(), tile.argument_count, tile.arguments.data()) != dnnl_success;
}

TiledProducts::TiledProducts() : impl_(std::make_unique<Impl>()) {}
TiledProducts::~TiledProducts() = default;
int64_t TiledProducts::primitives_made() const { return impl_->made; }

void TiledProducts::run(const TiledProduct& p, int threads) {
  TW_CHECK(p.m > 0 && p.n > 0 && p.k > 0 && threads >= 1, p.m, "x", p.n, "x", p.k, " on ", threads, " threads");
  Impl& impl = *impl_;
  Plan& plan = impl.plan_of({p.m, p.n, p.k, p.lda, p.ldb, p.ldc, threads, p.trans_a, p.trans_b, p.accumulate, p.bias != nullptr,
                             p.input, p.output});
  while (impl.streams.size() < static_cast<size_t>(threads)) impl.streams.emplace_back(impl.engine);
  const size_t tiles = plan.tiles.size(), pad = plan.scratch_bytes;
  std::byte* scratch = impl.scratch.take(pad * tiles + 64).data();
  bool any_failed = false;
  if (tiles == 1) {
    const OneThread one_thread;
    impl.run_tile(plan, 0, p, scratch, 0, any_failed);
  } else {
#pragma omp parallel for num_threads(threads) schedule(static) reduction(|| : any_failed)
    for (size_t i = 0; i < tiles; ++i) {
      omp_set_num_threads(1);  // of this thread's own nested regions, which end with the loop
      bool failed = false;
      impl.run_tile(plan, i, p, scratch + pad * i, omp_get_thread_num(), failed);
      any_failed = any_failed || failed;
    }
  }
  TW_CHECK(!any_failed, "oneDNN failed in a product of ", p.m, "x", p.n, "x", p.k);
}

}  // namespace thinwire
