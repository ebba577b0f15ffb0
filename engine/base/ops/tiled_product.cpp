// Chooses who divides a product among threads, oneDNN or our grid of tiles, makes the primitives once, and runs them.
#include "engine/base/ops/tiled_product.h"

#include <omp.h>

#include <algorithm>
#include <compare>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <vector>

#include "engine/base/core/check.h"
#include "engine/base/ops/float_mode.h"
#include "engine/base/ops/isa.h"

namespace thinwire {
namespace {

// Tiles are cut along the longer side of c into parts of at least so many rows or columns: thin tiles copy too much of
// a and b.
constexpr int64_t kRowsPerTile = 192, kColsPerTile = 384;
constexpr int64_t kMaxTiles = 16;
// Cuts are at multiples of this (full vector registers); the last tile takes the rest.
constexpr int64_t kUnit = 32;
// The longest K that oneDNN's AMX kernels never divided among threads (19 lengths, 9 shapes, up to 64 threads).
constexpr int64_t kWholeK = 1024;
// Below this many multiplications waking a thread costs more than it saves.
constexpr int64_t kSerialWork = 1 << 20;
// More plans than any run of ours has shapes; a cache that is full (many prompt lengths) starts again.
constexpr size_t kMaxPlans = 4096;

struct Key {
  int64_t m, n, k, lda, ldb, ldc;
  int threads;
  bool trans_a, trans_b, accumulate, bias;
  DType input, output;
  auto operator<=>(const Key&) const = default;
};

dnnl::memory::data_type type_of(DType t) {
  TW_CHECK(t == DType::f32 || t == DType::bf16, "no native product of ", name_of(t));
  return t == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

struct Grid {
  int64_t rows = 1, cols = 1;
};

// First element of part i of `parts` of n.
int64_t cut(int64_t n, int64_t parts, int64_t i) {
  return i == parts ? n : n / kUnit * i / parts * kUnit;
}

// Depends on the shape alone. A multiple of 4 where there are that many, so that common core counts share them evenly.
Grid choose_grid(int64_t m, int64_t n, int64_t k) {
  if (m * n * k < kSerialWork) return {};
  const auto parts = [](int64_t length, int64_t least) {
    const int64_t p = std::min(length / least, kMaxTiles);
    return p >= 4 ? p / 4 * 4 : std::max<int64_t>(p, 1);
  };
  if (m >= n) return {parts(m, kRowsPerTile), 1};
  return {1, parts(n, kColsPerTile)};
}

struct Tile {
  dnnl_primitive_t primitive = nullptr;
  std::vector<dnnl::memory> memory;  // a, b, c, scratchpad, and bias if there is one
  std::vector<dnnl_exec_arg_t> arguments;
  size_t a = 0, b = 0, c = 0, bias = 0;  // byte offsets of the tile
};

struct Plan {
  std::vector<dnnl::matmul> primitives;
  std::vector<Tile> tiles;
  size_t scratch_bytes = 0;      // per tile that runs at a time
  int threads_of_primitive = 1;  // more than one: oneDNN's own threads on a single tile
};

// oneDNN sizes and runs a primitive for the OpenMP thread count that it sees; the caller's is put back. The share of a
// thread that does not come is left out of the product: OMP_DYNAMIC, which may hold threads back, is off meanwhile.
class OmpThreads {
 public:
  explicit OmpThreads(int threads) : saved_(omp_get_max_threads()), dynamic_(omp_get_dynamic()) {
    if (saved_ != threads) omp_set_num_threads(threads);
    if (dynamic_ != 0) omp_set_dynamic(0);
  }
  ~OmpThreads() {
    if (saved_ != omp_get_max_threads()) omp_set_num_threads(saved_);
    if (dynamic_ != 0) omp_set_dynamic(dynamic_);
  }
  OmpThreads(const OmpThreads&) = delete;
  OmpThreads& operator=(const OmpThreads&) = delete;

 private:
  int saved_, dynamic_;
};

// How many come where OpenMP is asked for so many: OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS may allow fewer.
int team_of(int threads) {
  int team = 1;
#pragma omp parallel num_threads(threads)
  if (omp_get_thread_num() == 0) team = omp_get_num_threads();
  return team;
}

// For oneDNN's own threads, which are those of the same team; nobody relies on the mode that they had.
void set_team_mode(int threads, unsigned mode) {
  if (threads <= 1) return;
#pragma omp parallel num_threads(threads)
  set_float_mode(mode);
}

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

// Whether oneDNN uses it; behind make_engine, since asking fixes oneDNN's limit.
bool has_avx512() {
  constexpr int kNeeded = static_cast<int>(dnnl::cpu_isa::avx512_core);
  return (static_cast<int>(dnnl::get_effective_cpu_isa()) & kNeeded) == kNeeded;
}

const char* implementation_of(const dnnl::matmul& primitive) {
  const char* name = "";
  dnnl_primitive_desc_query(primitive.get_primitive_desc(), dnnl_query_impl_info_str, 0, &name);
  return name;
}

}  // namespace

struct TiledProducts::Impl {
  dnnl::engine engine = make_engine();
  bool takes_bf16 = active_isa() == Isa::kAvx512Bf16 && has_avx512();
  std::vector<dnnl::stream> streams;  // one per thread
  std::map<Key, Plan> plans;
  ScratchBuffer scratch;
  int64_t made = 0;

  void add_tile(Plan& plan, const Key& key, int64_t m0, int64_t n0, int64_t m, int64_t n);
  Plan make_plan(const Key& key);
  Plan& plan_of(const Key& key);
  bool run_tile(Plan& plan, size_t index, const TiledProduct& product, std::byte* scratchpad, int thread);
};

void TiledProducts::Impl::add_tile(Plan& plan, const Key& key, int64_t m0, int64_t n0, int64_t m, int64_t n) {
  using Dims = dnnl::memory::dims;
  const auto input = type_of(key.input), output = type_of(key.output);
  const size_t in_size = size_of(key.input), out_size = size_of(key.output);
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
  plan.primitives.emplace_back(description);  // oneDNN shares the code of equal tiles
  ++made;

  Tile tile;
  tile.primitive = plan.primitives.back().get();
  tile.a = static_cast<size_t>(key.trans_a ? m0 : m0 * key.lda) * in_size;
  tile.b = static_cast<size_t>(key.trans_b ? n0 * key.ldb : n0) * in_size;
  tile.c = static_cast<size_t>(m0 * key.ldc + n0) * out_size;
  tile.bias = static_cast<size_t>(n0) * in_size;
  const auto memory_of = [this](const dnnl::memory::desc& d) { return dnnl::memory(d, engine, nullptr); };
  tile.memory = {memory_of(a), memory_of(b), memory_of(c), memory_of(description.scratchpad_desc())};
  constexpr int kArguments[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD, DNNL_ARG_BIAS};
  if (key.bias) tile.memory.push_back(memory_of(bias));
  for (size_t i = 0; i < tile.memory.size(); ++i) tile.arguments.push_back({kArguments[i], tile.memory[i].get()});
  plan.scratch_bytes = std::max(plan.scratch_bytes, (description.scratchpad_desc().get_size() + 4095) / 4096 * 4096);
  plan.tiles.push_back(std::move(tile));
}

Plan TiledProducts::Impl::make_plan(const Key& key) {
  if (!key.trans_a) {
    const OmpThreads own(key.threads);
    Plan whole;
    whole.threads_of_primitive = team_of(key.threads);
    omp_set_num_threads(whole.threads_of_primitive);  // until `own` ends
    add_tile(whole, key, 0, 0, key.m, key.n);
    const std::string_view name = implementation_of(whole.primitives[0]);
    if (name.starts_with("brg") && (key.k <= kWholeK || name.find("amx") == name.npos)) return whole;
  }
  const OmpThreads one(1);
  const Grid grid = choose_grid(key.m, key.n, key.k);
  Plan plan;
  for (int64_t i = 0; i < grid.rows; ++i) {
    for (int64_t j = 0; j < grid.cols; ++j) {
      const int64_t m0 = cut(key.m, grid.rows, i), n0 = cut(key.n, grid.cols, j);
      add_tile(plan, key, m0, n0, cut(key.m, grid.rows, i + 1) - m0, cut(key.n, grid.cols, j + 1) - n0);
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
    TW_CHECK(false, "oneDNN has no product of ", name_of(key.input), " ", key.m, "x", key.n, "x", key.k, ": ",
             e.what());
  }
}

bool TiledProducts::Impl::run_tile(Plan& plan, size_t index, const TiledProduct& product, std::byte* scratchpad,
                                   int thread) {
  Tile& tile = plan.tiles[index];
  const auto at = [](const void* base, size_t offset) {
    return const_cast<void*>(static_cast<const void*>(static_cast<const std::byte*>(base) + offset));
  };
  tile.memory[0].set_data_handle(at(product.a, tile.a));
  tile.memory[1].set_data_handle(at(product.b, tile.b));
  tile.memory[2].set_data_handle(at(product.c, tile.c));
  tile.memory[3].set_data_handle(scratchpad);
  if (product.bias != nullptr) tile.memory[4].set_data_handle(at(product.bias, tile.bias));
  return dnnl_primitive_execute(tile.primitive, streams[thread].get(), static_cast<int>(tile.arguments.size()),
                                tile.arguments.data()) == dnnl_success;
}

TiledProducts::TiledProducts() : impl_(std::make_unique<Impl>()) {}
TiledProducts::~TiledProducts() = default;
int64_t TiledProducts::primitives_made() const {
  return impl_->made;
}
bool TiledProducts::takes_bf16() const {
  return impl_->takes_bf16;
}

void TiledProducts::run(const TiledProduct& p, int threads) {
  TW_CHECK(p.m > 0 && p.n > 0 && p.k > 0 && threads >= 1, p.m, "x", p.n, "x", p.k, " on ", threads, " threads");
  Impl& impl = *impl_;
  Plan& plan = impl.plan_of({p.m, p.n, p.k, p.lda, p.ldb, p.ldc, threads, p.trans_a, p.trans_b, p.accumulate,
                             p.bias != nullptr, p.input, p.output});
  while (impl.streams.size() < static_cast<size_t>(threads)) impl.streams.emplace_back(impl.engine);
  const size_t tiles = plan.tiles.size(), pad = plan.scratch_bytes;
  std::byte* scratch = impl.scratch.take(pad * static_cast<size_t>(threads) + 64).data();
  const unsigned mode = float_mode();
  bool all_well = true;
  if (tiles == 1 || threads == 1) {
    set_team_mode(plan.threads_of_primitive, mode);
    const OmpThreads inside(plan.threads_of_primitive);
    for (size_t i = 0; i < tiles; ++i) all_well = impl.run_tile(plan, i, p, scratch, 0) && all_well;
  } else {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) reduction(&& : all_well)
    for (size_t i = 0; i < tiles; ++i) {
      const FloatModeScope as_caller(mode);
      omp_set_num_threads(1);  // for regions inside this one; ends with it
      const int thread = omp_get_thread_num();
      all_well = impl.run_tile(plan, i, p, scratch + pad * static_cast<size_t>(thread), thread) && all_well;
    }
  }
  TW_CHECK(all_well, "oneDNN failed in a product of ", p.m, "x", p.n, "x", p.k);
}

}  // namespace thinwire
