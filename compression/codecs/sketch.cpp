// Sparse sums in rounds: the index first, then the packed union or integer tables that peel exactly.
#include "compression/codecs/sketch.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "compression/codecs/sparse_kernel.h"
#include "compression/codecs/sparse_select.h"
#include "engine/base/core/error.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

constexpr double kPeelable = 0.818;  // elements per cell up to which tables of three hashes peel, when they are large
constexpr int64_t kLanes = kSketchLanes;
constexpr uint32_t kTail = 3;       // in State::where: in the tail, or not in the union
constexpr uint16_t kFull = 0xffff;  // a cell's count of elements that no longer changes: it never gets down to one

uint64_t mix(uint64_t h) {  // splitmix64's finaliser
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
  return h ^ (h >> 31);
}

// What passes between the rounds of a message.
struct State final : CompressionState {
  int64_t count = 0;
  int64_t most_bytes = 0;       // what the vectors will take at most: memory is planned before the first message
  uint32_t max_key = 0;         // of this rank's x
  std::vector<uint8_t> bits;    // the union, a bit per element
  std::vector<int64_t> before;  // elements of the union in front of each block of kSparseBlock
  int64_t united = 0;           // elements of the union
  std::vector<float> values;    // packed: sums of the union in its order, valid in [slice, slice_end)
  int64_t slice = 0, slice_end = 0;
  bool tables = false;  // whether this message goes through tables, known with the union; all below is theirs
  uint64_t hash_key = 0;
  int64_t rows = 0;                  // of each table
  float step = 1.0f;                 // of the grid
  bool poisoned = false;             // something was not finite on some rank
  std::vector<uint8_t> in_table;     // the union without the tail
  std::vector<uint32_t> where;       // per block, 2 bits per element: the table that it is read from, or kTail
  std::vector<uint32_t> peel_cell;   // in order of peeling: the cell that holds one element only,
  std::vector<uint32_t> peel_block;  // and the block of that element
  std::vector<int64_t> tail;         // unpeelable elements, ascending
  std::vector<int32_t> sums;         // the tables, then the tail

  void commit() override {}
  void roll_back() override {}
  void visit(StateVisitor&, const std::string&) override {}  // nothing outlives a message
  int64_t bytes() const override {
    return std::max(most_bytes, static_cast<int64_t>(bits.size() + in_table.size() +
                                                     4 * (values.size() + where.size() + peel_cell.size() +
                                                          peel_block.size() + sums.size()) +
                                                     8 * (before.size() + tail.size())));
  }

  // The bits of a block of kLanes in a bitmap.
  uint32_t lanes(const std::vector<uint8_t>& map, int64_t block) const {
    const size_t at = static_cast<size_t>(block) * 2;
    return map[at] | (at + 1 < map.size() ? static_cast<uint32_t>(map[at + 1]) << 8 : 0u);
  }
  // The first cell of a block's row in each of the three tables.
  void cells_of(int64_t block, uint32_t out[3]) const {
    const uint64_t a = mix(hash_key + static_cast<uint64_t>(block) * 0x9E3779B97F4A7C15u), b = mix(a + hash_key);
    const uint64_t words[3] = {a & 0xffffffffu, a >> 32, b >> 32};
    for (int64_t j = 0; j < 3; ++j)
      out[j] = static_cast<uint32_t>((j * rows + static_cast<int64_t>((words[j] * static_cast<uint64_t>(rows)) >> 32)) *
                                     kLanes);
  }
  // Elements of the union in front of this one.
  int64_t rank_of(int64_t element) const {
    if (element >= count) return united;
    const int64_t block = element / kSparseBlock;
    const int64_t first = block * kSparseBlock / 8, byte = element / 8;
    const int64_t r = before[static_cast<size_t>(block)] + count_bits(bits.data() + first, byte - first);
    const int rest = static_cast<int>(element % 8);
    return rest == 0 ? r
                     : r + std::popcount(static_cast<uint8_t>(bits[static_cast<size_t>(byte)] & ((1u << rest) - 1u)));
  }
};

const State& of(const CompressionState& state) {
  return dynamic_cast<const State&>(state);
}
State& of(CompressionState& state) {
  return dynamic_cast<State&>(state);
}

void count_union(State& s, int threads) {
  const int64_t blocks = (s.count + kSparseBlock - 1) / kSparseBlock;
  s.before.assign(static_cast<size_t>(blocks), 0);
  parallel_blocks(threads, blocks, 16, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t at = b * kSparseBlock / 8, left = static_cast<int64_t>(s.bits.size()) - at;
      s.before[static_cast<size_t>(b)] = count_bits(s.bits.data() + at, std::min(left, kSparseBlock / 8));
    }
  });
  s.united = 0;
  for (int64_t& b : s.before) s.united += std::exchange(b, s.united);
}

// Decides from the union alone which elements can be peeled, and in which order: an element that is alone in a cell is
// read there and taken out of its other two cells, which may leave others alone. What remains is the tail.
void plan_peeling(State& s) {
  const int64_t blocks = (s.count + kLanes - 1) / kLanes, cells = s.rows * 3 * kLanes;
  std::vector<uint16_t> load(static_cast<size_t>(cells));  // elements in a cell
  std::vector<uint32_t> who(static_cast<size_t>(cells));   // XOR of their blocks
  uint32_t rows[3];
  for (int64_t b = 0; b < blocks; ++b) {
    const uint32_t mask = s.lanes(s.bits, b);
    if (mask == 0) continue;
    s.cells_of(b, rows);
    for (uint32_t m = mask; m != 0; m &= m - 1)
      for (uint32_t row : rows) {
        const size_t cell = row + static_cast<size_t>(std::countr_zero(m));
        if (load[cell] != kFull) ++load[cell];
        who[cell] ^= static_cast<uint32_t>(b);
      }
  }
  s.where.assign(static_cast<size_t>(blocks), 0xffffffffu);  // kTail everywhere
  s.in_table = s.bits;
  s.peel_cell.clear();
  s.peel_block.clear();
  s.tail.clear();
  std::vector<uint32_t> ready;
  const auto peel_from = [&](uint32_t start) {
    ready.push_back(start);
    while (!ready.empty()) {
      const uint32_t cell = ready.back();
      ready.pop_back();
      if (load[cell] != 1) continue;  // its element was read from another cell meanwhile
      const uint32_t b = who[cell], lane = cell % kLanes;
      s.cells_of(b, rows);
      for (uint32_t j = 0; j < 3; ++j) {
        const size_t other = rows[j] + lane;
        if (other == cell) s.where[b] &= ~((kTail ^ j) << (2 * lane));
        if (load[other] != kFull) --load[other];
        who[other] ^= b;
        if (load[other] == 1) ready.push_back(static_cast<uint32_t>(other));
      }
      s.peel_cell.push_back(cell);
      s.peel_block.push_back(b);
    }
  };
  for (int64_t c = 0; c < cells; ++c)
    if (load[static_cast<size_t>(c)] == 1) peel_from(static_cast<uint32_t>(c));
  if (static_cast<int64_t>(s.peel_cell.size()) == s.united) return;
  for (int64_t b = 0; b < blocks; ++b)
    for (uint32_t m = s.lanes(s.bits, b); m != 0; m &= m - 1) {
      const int64_t lane = std::countr_zero(m), element = b * kLanes + lane;
      if ((s.where[static_cast<size_t>(b)] >> (2 * lane) & 3u) != kTail) continue;
      s.tail.push_back(element);
      s.in_table[static_cast<size_t>(element / 8)] &= static_cast<uint8_t>(~(1u << (element % 8)));
    }
}

// Elements of the union where all ranks propose different ones.
int64_t largest_union(int64_t count, int ranks, double density) {
  return std::min(count, std::max(ranks, 1) * kept_of(count, density));
}

// Whether the index and a union of so many elements are more bytes than the whole message.
bool goes_dense(int64_t count, int64_t united) {
  return bit_bytes(count) + 4 * united > 4 * count;
}

// The longest tail; with a longer one the message goes packed.
int64_t tail_room(int64_t cells) {
  return std::max<int64_t>(64, cells / 64);
}

// A power of two of which `ranks` numbers up to `largest` add up to no more than 2^30.
float grid_step(float largest, int ranks) {
  if (largest == 0.0f) return 1.0f;
  const int log_ranks = std::bit_width(static_cast<unsigned>(std::max(ranks, 1)) - 1u);
  return std::ldexp(1.0f, std::clamp(std::ilogb(largest) + 1 - (30 - log_ranks), -126, 126));
}

// Calls body(its bits, its offset from `first`, its elements, rank_of its first) for each block of [first, first +
// count); `first` is a multiple of 8.
template <typename Body>
void for_union(const State& s, int64_t first, int64_t count, int threads, const Body& body) {
  parallel_blocks(threads, count, kSparseBlock, [&](int64_t from, int64_t to) {
    const int64_t at = first + from;
    body(s.bits.data() + at / 8, from, to - from, s.rank_of(at));
  });
}

}  // namespace

std::string Sketch::name() const {
  return compact_ ? detail::join("sketch(density=", density_, ",compact)")
                  : detail::join("sketch(density=", density_, ",ratio=", ratio_, ",table)");
}

int64_t Sketch::cells(int64_t count) const {
  return static_cast<int64_t>(std::ceil(static_cast<double>(count) / (3.0 * kLanes * ratio_))) * 3 * kLanes;
}

int64_t Sketch::bound(int r, int64_t count, int ranks, std::span<const MatrixShape>) const {
  if (count == 0) return 0;
  if (r == 0) return bit_bytes(count);
  if (!compact_ && r == 1) return 1;
  const int64_t united = largest_union(count, ranks, density_);
  const int64_t packed = goes_dense(count, united) ? count : united;
  return compact_ ? packed : std::max(packed, cells(count) + tail_room(cells(count)));
}

std::unique_ptr<CompressionState> Sketch::make_state(int64_t count, std::span<const MatrixShape>) const {
  auto s = std::make_unique<State>();
  s->count = count;
  s->rows = cells(count) / (3 * kLanes);
  const int64_t blocks = (count + kSparseBlock - 1) / kSparseBlock;
  s->most_bytes = bit_bytes(count) + 8 * blocks + 4 * (count + kSparseSlack);
  if (!compact_) {  // in_table, where, peel_*, sums with tail; then what plan_peeling takes meanwhile
    const int64_t all = cells(count), peeled = static_cast<int64_t>(kPeelable * static_cast<double>(all));
    s->most_bytes += bit_bytes(count) + count / 4 + 8 * peeled + 4 * all + 12 * tail_room(all) + 6 * all;
  }
  return s;
}

Round Sketch::round(int r, const Msg&, int64_t count, const CompressionState& state) const {
  const State& s = of(state);
  TW_CHECK(count == s.count, "a state for ", s.count, " elements, a message of ", count);
  if (r == 0) return {Reduction::kOr, DType::u8, bit_bytes(count), false};
  if (!compact_ && r == 1) return {Reduction::kMax, DType::f32, count == 0 ? 0 : 1, false};
  if (s.tables) return {Reduction::kSum, DType::i32, s.rows * 3 * kLanes + static_cast<int64_t>(s.tail.size()), false};
  return {Reduction::kSum, DType::f32, s.united, true};
}

bool Sketch::pack(int r, const Msg& msg, View x_view, View payload, CompressionState& state) const {
  State& s = of(state);
  const float* x = x_view.as<float>();
  const int64_t n = s.count;
  TW_CHECK(x_view.count() == n && payload.count() == round(r, msg, n, state).count);
  if (n == 0) return true;
  if (r == 0) {
    uint8_t* bits = payload.as<uint8_t>();
    std::memset(bits, 0, static_cast<size_t>(payload.count()));
    Threshold t = find_threshold(x, n, kept_of(n, density_), msg.threads);
    s.max_key = t.max_key;
    const bool finite = t.max_key < kInfiniteKey;
    if (t.key == 0) t.ties = 0;  // zeros are not proposed
    for (int64_t at = 0; at < n; at += kSparseBlock)
      sparse_table().take_bits(x + at, std::min(kSparseBlock, n - at), t.key, &t.ties, bits + at / 8, nullptr);
    return finite;
  }
  if (!compact_ && r == 1) {
    *payload.as<float>() = std::bit_cast<float>(std::min(s.max_key, kInfiniteKey));  // NaN goes as infinity
    return true;
  }
  if (!s.tables) {
    float* out = payload.as<float>();
    for_union(s, 0, n, msg.threads, [&](const uint8_t* bits, int64_t from, int64_t count, int64_t rank) {
      const auto packed = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(count + kSparseSlack));
      const int64_t m = sparse_table().pack(x + from, count, bits, packed.get());
      if (m > 0) std::memcpy(out + rank, packed.get(), static_cast<size_t>(m) * sizeof(float));
    });
    return true;
  }
  int32_t* out = payload.as<int32_t>();
  std::memset(out, 0, payload.bytes());
  if (s.poisoned) return true;
  const float inverse = 1.0f / s.step;
  constexpr int64_t kRun = 128;  // blocks hashed at a time
  uint32_t rows[3 * kRun];
  for (int64_t b = 0; b * kLanes < n; b += kRun) {
    const int64_t first = b * kLanes, count = std::min(kRun * kLanes, n - first);
    for (int64_t i = 0; i * kLanes < count; ++i) s.cells_of(b + i, rows + 3 * i);
    sparse_table().add_to_tables(x + first, count, s.in_table.data() + first / 8, rows, inverse, out);
  }
  int32_t* behind = out + s.rows * 3 * kLanes;
  for (int64_t element : s.tail) *behind++ = static_cast<int32_t>(std::lrint(x[element] * inverse));
  return true;
}

void Sketch::absorb(int r, const Msg& msg, View payload, int64_t slice_first, CompressionState& state) const {
  State& s = of(state);
  const int64_t n = s.count;
  if (n == 0) return;
  if (r == 0) {
    TW_CHECK(payload.count() == bit_bytes(n) && slice_first == 0);
    s.bits.resize(static_cast<size_t>(bit_bytes(n)));
    s.values.resize(static_cast<size_t>(n + kSparseSlack));  // enough for a dense message
    std::memcpy(s.bits.data(), payload.as<uint8_t>(), s.bits.size());
    count_union(s, msg.threads);
    const int64_t most = largest_union(n, msg.ranks, density_);
    if ((n % 8 != 0 && s.bits.back() >> (n % 8) != 0) || s.united > most)
      throw_bad_data(detail::join(name(), ": the agreed index holds ", s.united, " elements of at most ", most,
                                  ": it is corrupt, or ranks use different rules"));
    s.tables = false;
    const int64_t all = cells(n);
    if (!compact_ && static_cast<double>(s.united) <= kPeelable * static_cast<double>(all) &&
        all < std::numeric_limits<int32_t>::max() && n / kLanes < std::numeric_limits<int32_t>::max()) {
      s.hash_key = mix(
          msg.seed ^ mix(static_cast<uint64_t>(msg.step) << 20 ^ static_cast<uint64_t>(msg.slot) << 4 ^ msg.sequence));
      plan_peeling(s);
      s.tables = static_cast<int64_t>(s.tail.size()) <= tail_room(all);
    }
    if (!s.tables && goes_dense(n, s.united)) {
      std::fill(s.bits.begin(), s.bits.end(), uint8_t{0xff});
      if (n % 8 != 0) s.bits.back() = static_cast<uint8_t>((1u << (n % 8)) - 1u);
      count_union(s, msg.threads);
    }
    return;
  }
  if (!compact_ && r == 1) {
    const float largest = *payload.as<float>();
    s.poisoned = !std::isfinite(largest);
    s.step = s.poisoned ? 1.0f : grid_step(largest, msg.ranks);
    return;
  }
  if (!s.tables) {
    TW_CHECK(slice_first >= 0 && slice_first + payload.count() <= s.united);
    s.slice = slice_first;
    s.slice_end = slice_first + payload.count();
    if (payload.count() > 0) std::memcpy(s.values.data() + slice_first, payload.as<float>(), payload.bytes());
    return;
  }
  TW_CHECK(payload.count() == round(r, msg, n, state).count && slice_first == 0);
  s.sums.assign(payload.as<int32_t>(), payload.as<int32_t>() + payload.count());
  uint32_t rows[3];
  for (size_t i = 0; i < s.peel_cell.size(); ++i) {
    const uint32_t cell = s.peel_cell[i];
    const uint32_t v = static_cast<uint32_t>(s.sums[cell]);  // the element's sum: nothing else is left in this cell
    s.cells_of(s.peel_block[i], rows);
    for (uint32_t row : rows) {
      int32_t& sum = s.sums[row + cell % kLanes];
      if (row + cell % kLanes != cell) sum = static_cast<int32_t>(static_cast<uint32_t>(sum) - v);
    }
  }
}

int64_t Sketch::payload_index(int, int64_t element, const CompressionState& state) const {
  return of(state).rank_of(element);
}

void Sketch::result(const Msg& msg, int64_t first, View out_view, bool accumulate,
                    const CompressionState& state) const {
  const State& s = of(state);
  float* out = out_view.as<float>();
  const int64_t n = out_view.count();
  TW_CHECK(first >= 0 && first + n <= s.count);
  if (n == 0) return;
  if (!s.tables) {
    TW_CHECK(s.rank_of(first) >= s.slice && s.rank_of(first + n) <= s.slice_end, "elements outside of the slice");
    const int64_t head = std::min(n, (8 - first % 8) % 8);  // up to a whole byte of the bitmap
    int64_t rank = s.rank_of(first);
    for (int64_t i = 0; i < head; ++i) {
      const int64_t e = first + i;
      const bool in = s.bits[static_cast<size_t>(e / 8)] >> (e % 8) & 1;
      if (in) out[i] = accumulate ? out[i] + s.values[static_cast<size_t>(rank)] : s.values[static_cast<size_t>(rank)];
      if (!in && !accumulate) out[i] = 0.0f;
      rank += in;
    }
    for_union(s, first + head, n - head, msg.threads,
              [&](const uint8_t* bits, int64_t from, int64_t count, int64_t at) {
                sparse_table().unpack(bits, count, s.values.data() + at, out + head + from, accumulate);
              });
    return;
  }
  const double step = s.step;
  const auto value = [&](int32_t sum) {
    return s.poisoned ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(sum * step);
  };
  parallel_blocks(msg.threads, n, kSparseBlock, [&](int64_t from, int64_t to) {
    if (!accumulate) std::memset(out + from, 0, static_cast<size_t>(to - from) * sizeof(float));
    const int64_t begin = first + from, end = first + to;
    uint32_t rows[3];
    for (int64_t b = begin / kLanes; b * kLanes < end; ++b) {
      uint32_t mask = s.lanes(s.in_table, b);
      if (mask == 0) continue;
      s.cells_of(b, rows);
      for (; mask != 0; mask &= mask - 1) {
        const int lane = std::countr_zero(mask);
        const int64_t e = b * kLanes + lane;
        if (e >= begin && e < end)
          out[e - first] += value(s.sums[rows[s.where[static_cast<size_t>(b)] >> (2 * lane) & 3u] + lane]);
      }
    }
    const auto begin_tail = std::lower_bound(s.tail.begin(), s.tail.end(), begin);
    for (auto t = begin_tail; t != s.tail.end() && *t < end; ++t)
      out[*t - first] += value(s.sums[static_cast<size_t>(s.rows * 3 * kLanes + (t - s.tail.begin()))]);
  });
}

void Sketch::own_error(const Msg& msg, View x_view, const CompressionState& state) const {
  const State& s = of(state);
  float* x = x_view.as<float>();
  TW_CHECK(x_view.count() == s.count);
  if (s.tables && s.poisoned) return;  // the step will be skipped
  const float inverse = 1.0f / s.step;
  for_union(s, 0, s.count, msg.threads, [&](const uint8_t* bits, int64_t from, int64_t count, int64_t) {
    if (s.tables)
      sparse_table().subtract_rounded(x + from, count, bits, inverse, s.step);
    else
      sparse_table().clear(x + from, count, bits);
  });
}

namespace {

MadeCodec make_sketch(const CodecSpec& spec) {
  const double density = spec.real("density"), ratio = spec.real("ratio");
  const bool compact = spec.flag("compact");
  if (!compact && density * ratio > kPeelable)
    throw_bad_config(detail::join("sketch: density ", density, " x ratio ", ratio, " is above ", kPeelable,
                                  " elements per cell, where tables stop peeling: lower one, or set compact"));
  return {nullptr, std::make_shared<Sketch>(density, ratio, compact)};
}

}  // namespace

CodecRow sketch_row() {
  CodecParameter density = density_parameter();
  density.key.doc = "share of the elements that each rank keeps; their union travels";
  return {.name = "sketch",
          .parameters = {density,
                         codec_parameter(2.0, {.name = "ratio",
                                               .bounds = {1, 1e6},
                                               .doc = "elements of the message over those of the table"}),
                         codec_parameter(true, {.name = "compact",
                                                .doc = "send what the agreed index selects, packed, instead of a "
                                                       "table"})},
          .make = make_sketch,
          .cases = {{}, {{"density", 0.2}}, {{"compact", false}}},
          .selects = true,
          .rounds = true,
          .crosses_tensors = [](const CodecSpec&) { return true; }};
}

}  // namespace thinwire
