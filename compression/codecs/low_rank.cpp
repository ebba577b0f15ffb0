// Low rank: the layout of a message, its state, the products, and the point-to-point form.
#include "compression/codecs/low_rank.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "compression/tile_kernel.h"
#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/core/philox.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

static_assert(std::endian::native == std::endian::little, "payloads are memory images of little-endian floats");

constexpr int64_t kLeftRows = 24;             // rows of a part of x q
constexpr int64_t kRightColumns = 96;         // least columns of a part of x^T p
constexpr int64_t kExpandElements = 1 << 15;  // about, of a part of p q^T
constexpr int64_t kSerialWork = 1 << 17;      // multiplications below which waking threads does not pay

const LowRankKernels& kernels() {
  return TW_PICK_KERNELS(low_rank_kernels);
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// body(matrix, part) for the parts of all matrices, which parts(matrix) counts, as one loop over threads: many small
// matrices keep as many threads busy as a large one.
template <typename Parts, typename Body>
void for_parts(std::span<const LowRankMatrix> matrices, int threads, const Parts& parts, const Body& body) {
  if (matrices.size() == 1) {
    parallel_blocks(threads, parts(matrices[0]), 1, [&](int64_t part, int64_t) { body(matrices[0], part); });
    return;
  }
  std::vector<int64_t> ends(matrices.size());
  int64_t total = 0;
  for (size_t i = 0; i < matrices.size(); ++i) ends[i] = total += parts(matrices[i]);
  parallel_blocks(threads, total, 1, [&](int64_t index, int64_t) {
    const size_t i = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), index) - ends.begin());
    body(matrices[i], i == 0 ? index : index - ends[i - 1]);
  });
}

int worth(std::span<const LowRankMatrix> matrices, int threads) {
  int64_t work = 0;
  for (const LowRankMatrix& m : matrices) work += m.rows * m.cols * m.rank;
  return work < kSerialWork ? 1 : threads;
}

}  // namespace

std::string low_rank_name(const CodecSpec& spec) {
  std::string name =
      "low_rank(rank=" + std::to_string(spec.integer("rank")) + ",sides=" + std::to_string(spec.integer("sides"));
  if (spec.real("min_compression_rate") != 1.0)
    name += ",min_compression_rate=" + detail::join(spec.real("min_compression_rate"));
  return name + ")";
}

bool all_finite(const float* x, int64_t n) {
  return TW_PICK_KERNELS(tile_kernels).all_finite[0](x, n);
}

LowRankLayout::LowRankLayout(const CodecSpec& spec, int64_t message_count, std::span<const MatrixShape> shapes)
    : count(message_count), given(shapes.begin(), shapes.end()) {
  TW_CHECK(count == 0 || !shapes.empty(), "low_rank: a message of ", count, " elements names no matrix");
  int64_t end = 0;
  const auto add_raw = [&](int64_t first, int64_t n) {
    if (n == 0) return;
    if (!raw.empty() && raw.back().first + raw.back().count == first)
      raw.back().count += n;
    else
      raw.push_back({first, n, raw_count});
    raw_count += n;
  };
  for (const MatrixShape& m : shapes) {
    TW_CHECK(m.rows >= 0 && m.cols >= 0 && m.first >= end && m.first + m.rows * m.cols <= count, "low_rank: matrix ",
             m.rows, "x", m.cols, " at ", m.first, " of a message of ", count, ", behind ", end);
    add_raw(end, m.first - end);
    end = m.first + m.rows * m.cols;
    const int64_t r = std::min({m.rows, m.cols, spec.integer("rank")});
    const int64_t travel = r * (spec.integer("sides") == 2 ? m.rows + m.cols : std::max(m.rows, m.cols));
    if (r > 0 &&
        spec.real("min_compression_rate") * static_cast<double>(travel) < static_cast<double>(m.rows * m.cols)) {
      matrices.push_back({m.first, m.rows, m.cols, r, p_count, q_count});
      p_count += m.rows * r;
      q_count += m.cols * r;
    } else {
      add_raw(m.first, m.rows * m.cols);
    }
  }
  add_raw(end, count - end);
}

void LowRankLayout::check(int64_t message_count, std::span<const MatrixShape> shapes) const {
  const auto same = [](const MatrixShape& a, const MatrixShape& b) {
    return a.first == b.first && a.rows == b.rows && a.cols == b.cols;
  };
  TW_CHECK(message_count == count && std::ranges::equal(shapes, given, same), "low_rank: a message of ", message_count,
           " elements and ", shapes.size(), " matrices with the state of ", count, " and ", given.size());
}

LowRankState::LowRankState(const CodecSpec& spec, int64_t count, std::span<const MatrixShape> matrices)
    : WarmFactor(spec, LowRankLayout(spec, count, matrices)),
      layout(spec, count, matrices),
      p(static_cast<size_t>(layout.p_count)),
      q(static_cast<size_t>(layout.q_count)) {
  int64_t partial = 0, squares = 0, vectors = 0;
  for (const LowRankMatrix& m : layout.matrices) {
    squares += m.rank * m.rank, vectors += m.rank;
    const int64_t chunks = ceil_div(m.rows, kRightRows);
    if (chunks > 1) partial = std::max(partial, (chunks - 1) * m.rank * m.cols);
  }
  p_rows_.resize(p.size());
  partial_.resize(static_cast<size_t>(partial));
  bases_.resize(layout.matrices.size());
  scratch_.numbers.resize(static_cast<size_t>(2 * squares)), scratch_.flags.resize(static_cast<size_t>(vectors));
}

int64_t LowRankState::bytes() const {
  const auto of = [](const auto& v) { return static_cast<int64_t>(v.capacity() * sizeof(v[0])); };
  return WarmFactor::bytes() + of(p) + of(q) + of(own) + of(raw) + of(p_rows_) + of(partial_) + of(bases_) +
         of(scratch_.numbers) + of(scratch_.flags);
}

std::span<const Basis> LowRankState::bases(Factor which) {
  for (size_t i = 0; i < bases_.size(); ++i) {
    const LowRankMatrix& m = layout.matrices[i];
    bases_[i] = which == Factor::kP ? Basis{p.data() + m.p, m.rows, m.rank} : Basis{q.data() + m.q, m.cols, m.rank};
  }
  return bases_;
}

void LowRankState::begin(const Msg& msg, Factor which) {
  std::vector<float>& to = factor(which);
  if (messages.read()[0] > 0) {
    std::copy_n(warm.read(), to.size(), to.data());
  } else {
    // Uniform in (-1, 1): without libm, so the same everywhere. The rank in the group must not matter.
    for (size_t i = 0; i < layout.matrices.size(); ++i) {
      const LowRankMatrix& m = layout.matrices[i];
      const int64_t n = (which == Factor::kP ? m.rows : m.cols) * m.rank;
      float* out = to.data() + (which == Factor::kP ? m.p : m.q);
      for (int64_t e = 0; e < n; e += 4) {
        const PhiloxBlock words = philox(
            seed_key(msg.seed), {static_cast<uint32_t>(e / 4), static_cast<uint32_t>(i), msg.slot, kFirstFactor});
        for (int64_t k = 0; k < 4 && e + k < n; ++k)
          out[e + k] = 2.0f * uniform01(words[static_cast<size_t>(k)]) + (0x1p-24f - 1.0f);
      }
    }
  }
  orthonormalize_factor(msg, which);
}

void LowRankState::orthonormalize_factor(const Msg& msg, Factor which) {
  orthonormalize(bases(which), msg.threads, scratch_);
}

void LowRankState::multiply(const Msg& msg, const float* x, Factor result, float* to) {
  const LowRankKernels& k = kernels();
  const std::span<const LowRankMatrix> all = layout.matrices;
  const int threads = worth(all, msg.threads);
  if (result == Factor::kP) {
    for_parts(
        all, threads, [](const LowRankMatrix& m) { return ceil_div(m.rows, kLeftRows); },
        [&](const LowRankMatrix& m, int64_t part) {
          const int64_t row = part * kLeftRows;
          k.left(x + m.first + row * m.cols, std::min(kLeftRows, m.rows - row), m.cols, q.data() + m.q, m.rank,
                 to + m.p + row, m.rows);
        });
    return;
  }
  for (const LowRankMatrix& m : all) {
    const float* from = p.data() + m.p;
    float* rows = p_rows_.data() + m.p;
    constexpr int64_t kBlock = 64;
    parallel_blocks(threads, m.rows, kBlock, [&](int64_t first, int64_t last) {
      for (int64_t c = 0; c < m.rank; ++c) {
        for (int64_t i = first; i < last; ++i) rows[i * m.rank + c] = from[c * m.rows + i];
      }
    });
  }
  // How wide a part is does not change bits: each element is one chain over its rows.
  const int64_t wanted = threads == 1 ? 1 : ceil_div(2 * threads, static_cast<int64_t>(all.size()));
  const auto width = [&](const LowRankMatrix& m) {
    return std::max(ceil_div(ceil_div(m.cols, wanted), kRightColumns) * kRightColumns, kRightColumns);
  };
  const auto product = [&](const LowRankMatrix& m, int64_t part) {
    const int64_t strips = ceil_div(m.cols, width(m));
    const int64_t chunk = part / strips, column = part % strips * width(m), row = chunk * kRightRows;
    float* out = chunk == 0 ? to + m.q : partial_.data() + (chunk - 1) * m.rank * m.cols;
    k.right(x + m.first + row * m.cols + column, m.cols, std::min(kRightRows, m.rows - row),
            std::min(width(m), m.cols - column), p_rows_.data() + m.p + row * m.rank, m.rank, out + column, m.cols);
  };
  const auto parts = [&](const LowRankMatrix& m) { return ceil_div(m.cols, width(m)) * ceil_div(m.rows, kRightRows); };
  if (partial_.empty()) {
    for_parts(all, threads, parts, product);
    return;
  }
  // Partial sums share their memory: one matrix after the other.
  for (const LowRankMatrix& m : all) {
    for_parts({&m, 1}, threads, parts, product);
    const int64_t chunks = ceil_div(m.rows, kRightRows), n = m.rank * m.cols;
    parallel_blocks(threads, chunks > 1 ? n : 0, 4096, [&](int64_t first, int64_t last) {
      for (int64_t chunk = 0; chunk + 1 < chunks; ++chunk) {
        const float* more = partial_.data() + chunk * n;
        for (int64_t e = first; e < last; ++e) to[m.q + e] += more[e];
      }
    });
  }
}

void LowRankState::finish(const Msg& msg, Factor next) {
  const std::vector<float>& from = factor(next);
  if (!msg.train || !all_finite(from.data(), static_cast<int64_t>(from.size()))) return;
  std::copy(from.begin(), from.end(), warm.write());
  ++messages.write()[0];
}

void gather_raw(const LowRankLayout& layout, const float* x, float* to) {
  for (const RawPart& part : layout.raw) std::copy_n(x + part.first, part.count, to + part.at);
}

void expand_message(const LowRankLayout& layout, const float* p, const float* q, const float* raw, int64_t first,
                    int64_t n, float* out, Expand how, int threads) {
  const LowRankKernels& k = kernels();
  const int64_t end = first + n;
  for (const RawPart& part : layout.raw) {
    const int64_t from = std::max(first, part.first), to = std::min(end, part.first + part.count);
    if (from >= to) continue;
    float* target = out + (from - first);
    const float* source = raw == nullptr ? nullptr : raw + part.at + (from - part.first);
    if (how == Expand::kStore)
      std::copy_n(source, to - from, target);
    else if (how == Expand::kAdd)
      for (int64_t e = 0; e < to - from; ++e) target[e] += source[e];
    else
      for (int64_t e = 0; e < to - from; ++e) target[e] -= target[e];
  }
  const auto rows_of_part = [](const LowRankMatrix& m) { return std::max<int64_t>(24, kExpandElements / m.cols); };
  for_parts(
      layout.matrices, worth(layout.matrices, threads),
      [&](const LowRankMatrix& m) { return ceil_div(m.rows, rows_of_part(m)); },
      [&](const LowRankMatrix& m, int64_t part) {
        const int64_t row0 = part * rows_of_part(m), row1 = std::min(m.rows, row0 + rows_of_part(m));
        const int64_t from = std::max(first, m.first + row0 * m.cols), to = std::min(end, m.first + row1 * m.cols);
        if (from >= to) return;
        // A range that begins or ends inside of a row: ragged first and last rows, whole ones between.
        int64_t at = from;
        while (at < to) {
          const int64_t row = (at - m.first) / m.cols, column = (at - m.first) % m.cols;
          const int64_t whole = column == 0 ? (to - at) / m.cols : 0;
          const int64_t rows = std::max<int64_t>(whole, 1);
          const int64_t width = whole > 0 ? m.cols : std::min(m.cols - column, to - at);
          k.expand(p + m.p + row, m.rows, q + m.q + column, m.cols, m.rank, rows, width, out + (at - first), m.cols,
                   how);
          at += rows * width;
        }
      });
}

namespace {

// Point to point: both rounds' payloads one after the other, the sender alone in the sums. Framed, because the length
// depends on Msg::matrices, which wire_bytes() does not see: it gives the bound 4 count. There is none for sides 1:
// what decodes here keeps no state, so both factors would have to travel.
class LowRank final : public Codec {
 public:
  explicit LowRank(const CodecSpec& spec) : spec_(spec) {}
  std::string name() const override { return low_rank_name(spec_); }
  Traits traits() const override { return {.stateful = true, .framed = true, .contractive = true, .matrices = true}; }
  size_t wire_bytes(int64_t count, DType) const override { return static_cast<size_t>(count) * sizeof(float); }
  size_t message_bytes(const Msg& msg, int64_t count, DType) const override {
    const LowRankLayout layout(spec_, count, msg.matrices);
    return static_cast<size_t>(layout.p_count + layout.raw_count + layout.q_count) * sizeof(float);
  }
  std::unique_ptr<CompressionState> make_state(int64_t count, std::span<const MatrixShape> matrices) const override {
    return std::make_unique<LowRankState>(spec_, count, matrices);
  }

  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState* state) const override {
    auto* s = dynamic_cast<LowRankState*>(state);
    TW_CHECK(s != nullptr && msg.first == 0, "low_rank encodes whole messages with a state of its own");
    const LowRankLayout& layout = s->layout;
    layout.check(in.count(), msg.matrices);
    const float* x = in.as<float>();
    s->begin(msg, Factor::kQ);
    s->multiply(msg, x, Factor::kP, s->p.data());
    // A row of x that is not finite leaves a row of p that is not: nothing but p and the raw elements need a look.
    bool finite = all_finite(s->p.data(), layout.p_count);
    s->orthonormalize_factor(msg, Factor::kP);
    s->multiply(msg, x, Factor::kQ, s->q.data());
    finite = all_finite(s->q.data(), layout.q_count) && finite;
    std::byte* to = out.data();
    const auto append = [&](const float* from, int64_t n) {
      if (n > 0) std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
      to += static_cast<size_t>(n) * sizeof(float);
    };
    append(s->p.data(), layout.p_count);
    for (const RawPart& part : layout.raw) {
      append(x + part.first, part.count);
      finite = all_finite(x + part.first, part.count) && finite;
    }
    append(s->q.data(), layout.q_count);
    if (finite) s->finish(msg, Factor::kQ);
    return {static_cast<size_t>(to - out.data()), !finite};
  }

  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    TW_CHECK(msg.first == 0, "low_rank decodes whole messages");
    const LowRankLayout layout(spec_, out.count(), msg.matrices);
    const size_t numbers = static_cast<size_t>(layout.p_count + layout.raw_count + layout.q_count);
    if (in.size() != numbers * sizeof(float))
      throw_bad_data("low_rank: a payload of " + std::to_string(in.size()) +
                     " bytes where the matrices of a message of " + std::to_string(out.count()) + " elements make " +
                     std::to_string(numbers * sizeof(float)));
    const float* p = reinterpret_cast<const float*>(in.data());
    std::vector<float> aligned;
    if (numbers > 0 && reinterpret_cast<uintptr_t>(in.data()) % alignof(float) != 0) {
      aligned.resize(numbers);
      std::memcpy(aligned.data(), in.data(), in.size());
      p = aligned.data();
    }
    const float* raw = p + layout.p_count;
    expand_message(layout, p, raw + layout.raw_count, raw, 0, out.count(), out.as<float>(),
                   accumulate ? Expand::kAdd : Expand::kStore, msg.threads);
  }

 private:
  CodecSpec spec_;
};

}  // namespace

CodecRow low_rank_row() {
  return {
      .name = "low_rank",
      .parameters = {codec_parameter(
                         4, {.name = "rank", .bounds = {1, 65536}, .unit = "columns", .doc = "columns of the factors"}),
                     codec_parameter(2, {.name = "sides",
                                         .bounds = {1, 2},
                                         .doc = "2 sends both factors each time, 1 the left and the right one in "
                                                "turn"}),
                     codec_parameter(1.0, {.name = "min_compression_rate",
                                           .bounds = {1, 1e6},
                                           .doc = "matrices that would not shrink by this much travel as they "
                                                  "are"})},
      .make = [](const CodecSpec& spec) -> MadeCodec {
        const bool alone = spec.integer("sides") == 2;
        return {alone ? std::make_shared<LowRank>(spec) : nullptr, make_low_rank_rounds(spec)};
      },
      .cases = {{{"rank", 4}, {"sides", 2}},
                {{"rank", 4}, {"sides", 1}},
                {{"rank", 16}, {"sides", 2}},
                {{"rank", 16}, {"sides", 1}}},
      .rounds = true,
      .device = true};
}

}  // namespace thinwire
