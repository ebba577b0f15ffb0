// Codecs whose payloads add up: rounds over plain reductions, against a loop in double.
#include <cmath>
#include <limits>
#include <mutex>

#include "tests/comm/coded_bytes.h"
#include "tests/comm/coded_codecs.h"

namespace thinwire::coded_rounds_test {
namespace {

// What both toys remember between the rounds of one message.
struct RoundMemory : CompressionState {
  void commit() override {}
  void roll_back() override {}
  void visit(StateVisitor&, const std::string&) override {}
  int64_t bytes() const override { return 0; }
  float step = 0.0f;
  std::vector<int32_t> own, total;
  std::vector<uint8_t> mask;
  std::vector<int64_t> place;  // of element i among the united ones
  std::vector<float> mine, sum;
  int64_t first = 0;  // of what is known of total or sum
};
RoundMemory& memory_of(CompressionState& state) {
  return dynamic_cast<RoundMemory&>(state);
}
const RoundMemory& memory_of(const CompressionState& state) {
  return dynamic_cast<const RoundMemory&>(state);
}

// Round 0: the largest magnitude of all ranks. Round 1: integers with the step that follows from it, which add up.
class SharedStep : public RoundCodec {
 public:
  std::string name() const override { return "shared_step"; }
  Traits traits() const override { return {.contractive = true}; }
  int rounds() const override { return 2; }
  int64_t bound(int r, int64_t count, int, std::span<const MatrixShape>) const override { return r == 0 ? 1 : count; }
  std::unique_ptr<CompressionState> make_state(int64_t, std::span<const MatrixShape>) const override {
    return std::make_unique<RoundMemory>();
  }
  Round round(int r, const Msg&, int64_t count, const CompressionState&) const override {
    if (r == 0) return {Reduction::kMax, DType::f32, 1, false};
    return {Reduction::kSum, DType::i32, count, true};
  }
  bool pack(int r, const Msg&, View x, View payload, CompressionState& state) const override {
    RoundMemory& m = memory_of(state);
    const float* v = x.as<float>();
    bool finite = true;
    if (r == 0) {
      float largest = 0.0f;
      for (int64_t i = 0; i < x.count(); ++i) {
        finite &= static_cast<bool>(std::isfinite(v[i]));
        largest = std::max(largest, std::abs(v[i]));
      }
      *payload.as<float>() = largest;
      return finite;
    }
    m.own.resize(static_cast<size_t>(x.count()));
    for (int64_t i = 0; i < x.count(); ++i) {
      const bool zero = m.step == 0.0f || !std::isfinite(v[i]) || !std::isfinite(m.step);
      m.own[static_cast<size_t>(i)] = zero ? 0 : static_cast<int32_t>(std::nearbyint(v[i] / m.step));
      payload.as<int32_t>()[i] = m.own[static_cast<size_t>(i)];
    }
    return finite;
  }
  void absorb(int r, const Msg&, View payload, int64_t first, CompressionState& state) const override {
    RoundMemory& m = memory_of(state);
    if (r == 0) {
      m.step = *payload.as<float>() / 1000.0f;
      return;
    }
    m.first = first;
    m.total.assign(payload.as<int32_t>(), payload.as<int32_t>() + payload.count());
  }
  int64_t payload_index(int, int64_t element, const CompressionState&) const override { return element; }
  void result(const Msg&, int64_t first, View out, bool accumulate, const CompressionState& state) const override {
    const RoundMemory& m = memory_of(state);
    float* y = out.as<float>();
    for (int64_t i = 0; i < out.count(); ++i) {
      const float v = static_cast<float>(m.total[static_cast<size_t>(first - m.first + i)]) * m.step;
      y[i] = accumulate ? y[i] + v : v;
    }
  }
  void own_error(const Msg&, View x, const CompressionState& state) const override {
    const RoundMemory& m = memory_of(state);
    for (int64_t i = 0; i < x.count(); ++i)
      x.as<float>()[i] -= static_cast<float>(m.own[static_cast<size_t>(i)]) * m.step;
  }
};

// Round 0: which elements anybody has. Round 1: these, which loses nothing; how many depends on the values.
class United : public RoundCodec {
 public:
  std::string name() const override { return "united"; }
  Traits traits() const override { return {.lossless = true}; }
  int rounds() const override { return 2; }
  int64_t bound(int, int64_t count, int, std::span<const MatrixShape>) const override { return count; }
  std::unique_ptr<CompressionState> make_state(int64_t, std::span<const MatrixShape>) const override {
    return std::make_unique<RoundMemory>();
  }
  Round round(int r, const Msg&, int64_t count, const CompressionState& state) const override {
    if (r == 0) return {Reduction::kOr, DType::u8, count, false};
    const auto& place = memory_of(state).place;
    return {Reduction::kSum, DType::f32, place.empty() ? 0 : place.back(), true};
  }
  bool pack(int r, const Msg&, View x, View payload, CompressionState& state) const override {
    const float* v = x.as<float>();
    for (int64_t i = 0; i < x.count(); ++i) {
      if (r == 0)
        payload.as<uint8_t>()[i] = v[i] != 0.0f;
      else if (memory_of(state).mask[static_cast<size_t>(i)] != 0)
        payload.as<float>()[memory_of(state).place[static_cast<size_t>(i)]] = v[i];
    }
    return true;
  }
  void absorb(int r, const Msg&, View payload, int64_t first, CompressionState& state) const override {
    RoundMemory& m = memory_of(state);
    if (r == 1) {
      m.first = first;
      m.sum.assign(payload.as<float>(), payload.as<float>() + payload.count());
      return;
    }
    m.mask.assign(payload.as<uint8_t>(), payload.as<uint8_t>() + payload.count());
    m.place.assign(1, 0);
    for (const uint8_t bit : m.mask) m.place.push_back(m.place.back() + (bit != 0));
  }
  int64_t payload_index(int, int64_t element, const CompressionState& state) const override {
    return memory_of(state).place[static_cast<size_t>(element)];
  }
  void result(const Msg&, int64_t first, View out, bool accumulate, const CompressionState& state) const override {
    const RoundMemory& m = memory_of(state);
    float* y = out.as<float>();
    for (int64_t i = 0; i < out.count(); ++i) {
      const auto k = static_cast<size_t>(first + i);
      const float v = m.mask[k] != 0 ? m.sum[static_cast<size_t>(m.place[k] - m.first)] : 0.0f;
      y[i] = accumulate ? y[i] + v : v;
    }
  }
  void own_error(const Msg&, View x, const CompressionState&) const override {
    std::fill_n(x.as<float>(), x.count(), 0.0f);
  }
};

RoundCall call_of(CodedRank& rank, const RoundCodec& codec, CompressionState& state, StateVector<float>* residual,
                  float scale = 1.0f) {
  RoundCall call;
  call.codec = &codec;
  call.state = &state;
  call.residual = residual;
  call.msg.loss_scale = scale;
  call.stats = &rank.stats;
  call.counters = &rank.counters;
  call.site = Site::kDpGradient;
  return call;
}

Buffer sparse(int64_t count, uint64_t seed, int rank) {
  Buffer b(DType::f32, count);
  b.fill(seed, rank);
  for (int64_t i = 0; i < count; ++i)
    if ((i * 7 + rank) % 5 != 0) b.set(i, 0.0);
  return b;
}

TEST(Rounds, SumsMatchALoopInDouble) {
  const SharedStep integers;
  const United united;
  constexpr int kSizes[] = {1, 2, 3, 4, 8};
  constexpr Algorithm kWays[] = {Algorithm::kAuto, Algorithm::kDirect, Algorithm::kRing, Algorithm::kTwoLevel};
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    const int n = kSizes[seed % 5];
    const bool lossless = random() % 2 == 0;
    const RoundCodec& codec = lossless ? static_cast<const RoundCodec&>(united) : integers;
    const int64_t count = 1 + random_count(random, 20000);
    const std::vector<int64_t> bounds = ragged_bounds(random, count, n);
    const CommTuning tuning = small_chunks(256 << (random() % 8), kWays[random() % 4]);
    const bool accumulate = random() % 2 == 0;
    const std::vector<int> nodes = n == 4 || n == 8 ? node_list(n / 2, 2) : std::vector<int>{};
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " ranks " << n << " count " << count << " "
                                      << codec.name());
    std::vector<double> sum(static_cast<size_t>(count)), magnitude(static_cast<size_t>(count));
    for (int r = 0; r < n; ++r) {
      const Buffer b = sparse(count, seed, r);
      for (int64_t i = 0; i < count; ++i) {
        sum[static_cast<size_t>(i)] += b.get(i);
        magnitude[static_cast<size_t>(i)] += std::abs(b.get(i));
      }
    }
    std::vector<std::vector<char>> results(static_cast<size_t>(n));
    std::mutex mutex;
    run_ranks(
        n,
        [&](Progress& progress) {
          CodedRank rank(progress, n, tuning, nodes);
          const auto me = static_cast<size_t>(rank.me());
          const auto state = codec.make_state(count, {});
          Buffer data = sparse(count, seed, rank.me());
          rank.run(rounds_all_reduce(rank.group.lane(), call_of(rank, codec, *state, nullptr), data.view()));
          const int64_t wire = rank.counters.wire_bytes, logical = rank.counters.logical_bytes;
          const Buffer input = sparse(count, seed, rank.me());
          Buffer whole = input, out(DType::f32, bounds[me + 1] - bounds[me]), before = out;
          out.fill(seed + 3, rank.me()), before.fill(seed + 3, rank.me());
          rank.run(rounds_reduce_scatter(rank.group.lane(), call_of(rank, codec, *state, nullptr), whole.view(),
                                         bounds_in(rank.group, bounds), out.view(), accumulate));
          const std::lock_guard lock(mutex);
          results[me] = data.bytes();
          EXPECT_EQ(whole.bytes(), input.bytes()) << "the contributions were changed";
          EXPECT_EQ(logical, all_reduce_bytes(tuning, nodes, n, rank.me(), count, DType::f32));
          if (!lossless) {
            EXPECT_EQ(wire, rounds_all_reduce_bytes(codec, tuning, nodes, n, rank.me(), count, {}));
          }
          const auto close = [&](double got, double start, int64_t i) {
            const auto k = static_cast<size_t>(i);
            // Half a step per rank, of a thousandth of at most one.
            const double compression = lossless ? 0.0 : n * 0.5e-3 * 1.0001;
            ASSERT_LE(std::abs(got - start - sum[k]),
                      compression + sum_tolerance(DType::f32, n + 2, magnitude[k] + std::abs(start) + compression, 0))
                << i;
          };
          for (int64_t i = 0; i < count; ++i) close(data.get(i), 0.0, i);
          for (int64_t i = 0; i < out.count(); ++i) close(out.get(i), accumulate ? before.get(i) : 0.0, bounds[me] + i);
        },
        seed % 2 == 0 ? 0 : seed);
    for (const auto& r : results) ASSERT_EQ(r, results[0]) << "replicas differ";
    if (HasFailure()) return;
  }
}

// Law 5, whatever the loss scale of a step, and law 8's way back.
TEST(Rounds, ResidualsKeepWhatWasNotSent) {
  const SharedStep codec;
  const int n = 3, steps = 50;
  const int64_t count = 1009;
  std::vector<double> in(count), out(count), kept(count);
  std::mutex mutex;
  run_ranks(n, [&](Progress& progress) {
    CodedRank rank(progress, n, small_chunks(512));
    const auto state = codec.make_state(count, {});
    StateVector<float> residual(count, OnSkip::kRestore);
    for (int step = 0; step < steps; ++step) {
      const float scale = step % 2 == 0 ? 512.0f : 4.0f;
      const bool skipped = step == 20;
      Buffer data(DType::f32, count);
      data.fill(static_cast<uint64_t>(step) + 1, rank.me());
      if (!skipped) {
        const std::lock_guard lock(mutex);
        for (int64_t i = 0; i < count; ++i) in[static_cast<size_t>(i)] += data.get(i);
      }
      for (int64_t i = 0; i < count; ++i) data.set(i, data.get(i) * scale);
      if (skipped && rank.me() == 1) data.set(3, std::numeric_limits<double>::infinity());
      const int64_t before = rank.stats.non_finite;
      rank.run(rounds_all_reduce(rank.group.lane(), call_of(rank, codec, *state, &residual, scale), data.view()));
      {
        const std::lock_guard lock(mutex);
        EXPECT_EQ(rank.stats.non_finite - before, skipped && rank.me() == 1 ? 1 : 0);
      }
      if (skipped) {
        residual.roll_back();
        continue;
      }
      residual.commit();
      if (rank.me() == 0)
        for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(i)] += data.get(i) / scale;
    }
    const std::lock_guard lock(mutex);
    for (int64_t i = 0; i < count; ++i) kept[static_cast<size_t>(i)] += residual.read()[i];
  });
  const double tolerance = steps * 4.0 * n * 0x1p-24 * (n + 1.0);
  for (size_t i = 0; i < in.size(); ++i) ASSERT_LE(std::abs(out[i] + kept[i] - in[i]), tolerance) << i;
}

}  // namespace
}  // namespace thinwire::coded_rounds_test
