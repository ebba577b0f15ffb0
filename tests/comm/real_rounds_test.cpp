// What real codecs keep from one message to the next: error feedback at every hop, low rank and sketches in rounds, and
// which of them refuse to go together.
#include <cmath>
#include <mutex>

#include "compression/codecs/low_rank.h"
#include "compression/codecs/sketch.h"
#include "compression/residual.h"
#include "engine/base/core/error.h"
#include "tests/comm/coded_bytes.h"
#include "tests/comm/coded_codecs.h"
#include "tests/comm/real_codecs.h"
#include "tests/support/worst.h"

namespace thinwire::real_rounds_test {
namespace {

// --- lossless codecs --------------------------------------------------------------------------------------------

// Law 3's other half: a codec that keeps every bit changes none, whatever the algorithm.
TEST(RealLossless, AreThePlainCollectives) {
  for (const char* name : {"mpc", "entropy"}) {
    const RealCodec codec{real_spec(name)};
    const auto coder = codec.coder();
    for (const Algorithm way : {Algorithm::kDirect, Algorithm::kRing, Algorithm::kTwoLevel}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        const int n = 4;
        const int64_t count = 70001;  // two frames of either codec in a slice of one rank
        // Slices are cut at frames on both sides, so that sums have the same order.
        const std::vector<int64_t> bounds = {0, 65536, 65536, 65536 + 32, count};
        SCOPED_TRACE(::testing::Message() << name << " way " << static_cast<int>(way) << " " << name_of(dtype));
        std::mutex mutex;
        run_ranks(n, [&](Progress& progress) {
          CodedRank rank(progress, n, small_chunks(4096, way), node_list(2, 2));
          const auto me = static_cast<size_t>(rank.me());
          Buffer whole(dtype, count), out(dtype, bounds[me + 1] - bounds[me]), plain_out = out;
          Buffer back(dtype, count), plain_back(dtype, count);
          whole.fill(3, rank.me());
          const GroupLane lane = rank.group.lane();
          const CodedCall call = rank.call(coder.get());
          const auto cuts = [&] { return bounds_in(rank.group, bounds); };
          rank.run(coded_reduce_scatter(lane, call, whole.view(), cuts(), out.view(), false, way, call));
          const GroupLane next = rank.group.lane();  // a lane is of one operation
          rank.run(coded_all_gather(next, call, out.view(), back.view(), cuts(),
                                    way == Algorithm::kTwoLevel ? way : Algorithm::kDirect));
          rank.group.reduce_scatter(whole.view(), bounds, plain_out.view(), false, rank.stream).wait(rank.stream);
          rank.group.all_gather(plain_out.view(), plain_back.view(), bounds, rank.stream).wait(rank.stream);
          const std::lock_guard lock(mutex);
          EXPECT_TRUE(out.bytes() == plain_out.bytes()) << "reduce-scatter, rank " << rank.me();
          EXPECT_TRUE(back.bytes() == plain_back.bytes()) << "all-gather, rank " << rank.me();
        });
      }
    }
  }
}

// --- error feedback ---------------------------------------------------------------------------------------------

class RealFeedback : public ::testing::TestWithParam<RealCodec> {};

void add_residual(CompressionState& state, std::vector<double>& kept) {
  const float* e = dynamic_cast<CoderState&>(state).residual().read();
  for (size_t i = 0; i < kept.size(); ++i) kept[i] += e[i];
}

// Law 5: what was delivered and what all residuals hold add up to what went in.
TEST_P(RealFeedback, DeliveredAndKeptIsWhatWentIn) {
  const RealCodec& codec = GetParam();
  const Traits traits = make_codec(codec.spec).codec->traits();
  if (traits.lossless || !traits.contractive) {
    EXPECT_THROW(codec.coder(ResidualKind::kErrorFeedback), Error);  // Refused lists them
    return;
  }
  const auto coder = codec.coder(ResidualKind::kErrorFeedback);
  constexpr int kSteps = 5;
  constexpr int64_t kCount = 2003;
  const NodeGrid grid{2, 2};
  const int n = grid.nodes * grid.local;
  for (const Algorithm way : {Algorithm::kDirect, Algorithm::kRing, Algorithm::kTwoLevel}) {
    std::vector<double> in(kCount), out(kCount), kept(kCount);
    double largest = 0.0;  // of what any residual held
    std::mutex mutex;
    run_ranks(n, [&](Progress& progress) {
      CodedRank rank(progress, n, small_chunks(512), node_list(grid.nodes, grid.local));
      const auto a = coder->make_state(kCount, {}), b = coder->make_state(kCount, {}),
                 c = coder->make_state(kCount, {});
      Buffer data(DType::f32, kCount);
      for (int step = 0; step < kSteps; ++step) {
        data.fill(static_cast<uint64_t>(step) + 1, rank.me());
        {
          const std::lock_guard lock(mutex);
          for (int64_t i = 0; i < kCount; ++i) in[static_cast<size_t>(i)] += data.get(i);
        }
        const CodedCall calls[] = {rank.call(coder.get(), a.get(), step), rank.call(coder.get(), b.get(), step),
                                   rank.call(coder.get(), c.get(), step)};
        const GroupLane lane = rank.group.lane();
        rank.run(coded_all_reduce(lane, calls[0], way == Algorithm::kTwoLevel ? calls[2] : calls[1], data.view(), way,
                                  calls[1]));
        a->commit(), b->commit(), c->commit();
        if (rank.me() == 0)
          for (int64_t i = 0; i < kCount; ++i) out[static_cast<size_t>(i)] += data.get(i);
      }
      const std::lock_guard lock(mutex);
      for (CompressionState* state : {a.get(), b.get(), c.get()}) {
        add_residual(*state, kept);
        const float* e = dynamic_cast<CoderState&>(*state).residual().read();
        for (int64_t i = 0; i < kCount; ++i) largest = std::max(largest, std::abs(static_cast<double>(e[i])));
      }
    });
    // Per step every contribution, partial sum and residual is rounded a few times (Hadamard: in five stages), each
    // below n contributions, and what the residuals of n ranks add to them.
    const double tolerance = kSteps * 12.0 * n * 0x1p-24 * n * (1.0 + largest);
    double worst = 0.0, some = 0.0;
    for (size_t i = 0; i < in.size(); ++i) {
      worst = test::worse(worst, std::abs(out[i] + kept[i] - in[i]));
      some = std::max(some, std::abs(kept[i]));
    }
    EXPECT_LE(worst, tolerance) << coder->name() << " way " << static_cast<int>(way);
    EXPECT_GT(some, 0.0) << coder->name() << ": nothing was kept";
  }
}

INSTANTIATE_TEST_SUITE_P(Every, RealFeedback, ::testing::ValuesIn(real_codecs()),
                         [](const auto& info) { return info.param.spec.codec + "_" + std::to_string(info.index); });

// --- rounds -----------------------------------------------------------------------------------------------------

struct RoundCase {
  const char* name;
  CodecSpec spec;
  bool exact;  // bytes do not depend on values
};
std::vector<RoundCase> round_cases() {
  return {{"low_rank", real_spec("low_rank", [](CodecSpec& s) { s["rank"] = 2; }), true},
          {"low_rank_alternating", real_spec("low_rank", [](CodecSpec& s) { s["rank"] = 2, s["sides"] = 1; }), false},
          {"sketch_compact", real_spec("sketch", [](CodecSpec& s) { s["density"] = 0.1; }), false},
          {"sketch_table", real_spec("sketch", [](CodecSpec& s) { s["density"] = 0.1, s["compact"] = false; }), false}};
}

// A matrix in the middle and elements outside of it on both sides, where there is room.
std::vector<MatrixShape> matrices_of(int64_t count) {
  if (count < 3) return {{0, 1, count}};
  const auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(count - 2)));
  return {{1, side, side}};
}

class RealRounds : public ::testing::TestWithParam<RoundCase> {};

TEST_P(RealRounds, SumOnEveryAlgorithm) {
  const auto codec = make_codec(GetParam().spec).rounds;
  constexpr int kSteps = 4;
  const int64_t counts[] = {1, 255, 256, 257, 5003};
  for (const NodeGrid grid : {NodeGrid{1, 1}, NodeGrid{1, 2}, NodeGrid{1, 3}, NodeGrid{2, 2}, NodeGrid{4, 2}}) {
    const int n = grid.nodes * grid.local;
    for (const Algorithm way : {Algorithm::kDirect, Algorithm::kRing, Algorithm::kTwoLevel}) {
      if (way == Algorithm::kTwoLevel && !grid.two_level()) continue;
      for (const int64_t count : counts) {
        SCOPED_TRACE(::testing::Message()
                     << codec->name() << " ranks " << n << " way " << static_cast<int>(way) << " count " << count);
        const CommTuning tuning = small_chunks(1024, way);
        const std::vector<MatrixShape> matrices = matrices_of(count);
        std::mt19937_64 random(static_cast<uint64_t>(count));
        const std::vector<int64_t> bounds = ragged_bounds(random, count, n);
        const std::vector<int> nodes = grid.two_level() ? node_list(grid.nodes, grid.local) : std::vector<int>{};
        std::vector<double> in(static_cast<size_t>(count)), out(in), scattered(in), kept(in), kept_scattered(in);
        std::vector<std::vector<char>> replicas(static_cast<size_t>(n));
        std::mutex mutex;
        run_ranks(n, [&](Progress& progress) {
          CodedRank rank(progress, n, tuning, nodes);
          const auto me = static_cast<size_t>(rank.me());
          const auto a = codec->make_state(count, matrices), b = codec->make_state(count, matrices);
          StateVector<float> e(count, OnSkip::kRestore), f(count, OnSkip::kRestore);
          for (int step = 0; step < kSteps; ++step) {
            RoundCall call;
            call.codec = codec.get();
            call.msg.seed = 5, call.msg.step = step, call.msg.matrices = matrices;
            call.msg.rank = rank.me(), call.msg.ranks = n;
            call.stats = &rank.stats, call.counters = &rank.counters;
            Buffer data(DType::f32, count), whole(DType::f32, count), part(DType::f32, bounds[me + 1] - bounds[me]);
            data.fill(static_cast<uint64_t>(step) + 1, rank.me());
            whole.fill(static_cast<uint64_t>(step) + 1, rank.me());
            rank.counters = {};
            call.state = a.get(), call.residual = &e;
            rank.run(rounds_all_reduce(rank.group.lane(), call, data.view()));
            const int64_t wire = rank.counters.wire_bytes;
            call.state = b.get(), call.residual = &f;
            rank.run(rounds_reduce_scatter(rank.group.lane(), call, whole.view(), bounds_in(rank.group, bounds),
                                           part.view(), false));
            a->commit(), b->commit(), e.commit(), f.commit();
            const std::lock_guard lock(mutex);
            {
              const int64_t bytes = rounds_all_reduce_bytes(*codec, tuning, nodes, n, rank.me(), count, matrices);
              if (GetParam().exact) {
                EXPECT_EQ(wire, bytes);
              } else {
                EXPECT_LE(wire, bytes);
                // Of factors that take turns the longer one is priced, and a vector more for each of the others.
                if (codec->traits().matrices && way == Algorithm::kDirect) {
                  EXPECT_LE(bytes, wire + (n - 1) * 16 * static_cast<int64_t>(sizeof(float)));
                }
              }
            }
            for (int64_t i = 0; i < count; ++i) {
              in[static_cast<size_t>(i)] += whole.get(i);
              if (me == 0) out[static_cast<size_t>(i)] += data.get(i);
            }
            for (int64_t i = 0; i < part.count(); ++i) scattered[static_cast<size_t>(bounds[me] + i)] += part.get(i);
            replicas[me].insert(replicas[me].end(), data.bytes().begin(), data.bytes().end());
          }
          const std::lock_guard lock(mutex);
          for (int64_t i = 0; i < count; ++i) {
            kept[static_cast<size_t>(i)] += e.read()[i];
            kept_scattered[static_cast<size_t>(i)] += f.read()[i];
          }
        });
        for (const auto& r : replicas) ASSERT_EQ(r, replicas[0]) << "replicas differ";
        // Values and residuals stay below a few per rank; factors of low rank add up `side` products of them.
        const double side = std::sqrt(static_cast<double>(count)) + 1.0;
        const double tolerance = kSteps * 8.0 * n * 0x1p-24 * n * kSteps * side;
        for (size_t i = 0; i < in.size(); ++i) {
          ASSERT_LE(std::abs(out[i] + kept[i] - in[i]), tolerance) << "all-reduce " << i;
          ASSERT_LE(std::abs(scattered[i] + kept_scattered[i] - in[i]), tolerance) << "reduce-scatter " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, RealRounds, ::testing::ValuesIn(round_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

// Between two both factors travel in one framed payload, as whoever packs it by hand has it.
TEST(RealLowRank, TravelsBetweenTwo) {
  const CodecSpec spec = real_spec("low_rank", [](CodecSpec& s) { s["rank"] = 2; });
  const Coder coder(make_codec(spec).codec, spec, {});
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{255}, int64_t{5003}}) {
    const std::vector<MatrixShape> matrices = count == 0 ? std::vector<MatrixShape>{} : matrices_of(count);
    std::vector<float> want(static_cast<size_t>(count));
    std::mutex mutex;
    run_ranks(2, [&](Progress& progress) {
      CodedRank rank(progress, 2, small_chunks(512));
      const auto state = coder.make_state(count, matrices), by_hand = coder.make_state(count, matrices);
      for (int step = 0; step < 3; ++step) {  // the second and third start warm
        Buffer sent(DType::f32, count), got(DType::f32, count);
        sent.fill(static_cast<uint64_t>(step), 0);
        CodedCall call = rank.call(&coder, rank.me() == 0 ? state.get() : nullptr, step);
        call.msg.matrices = matrices;
        if (rank.me() == 0) {
          rank.counters = {};
          rank.run(coded_send(rank.group.lane_to(1), call, sent.view(), 1));
          state->commit();
          const std::lock_guard lock(mutex);
          const LowRankLayout layout(spec, count, matrices);
          const int64_t numbers = layout.p_count + layout.q_count + layout.raw_count;
          EXPECT_EQ(rank.counters.wire_bytes, count == 0 ? 0 : 4 * numbers + 8);
          continue;
        }
        rank.run(coded_receive(rank.group.lane_from(0), call, got.view(), 0));
        if (count == 0) continue;
        Msg msg = call.msg;
        msg.rank = 0, msg.ranks = 2;
        std::vector<std::byte> payload(coder.wire_bytes(count, DType::f32));
        CompressionStats stats;
        payload.resize(coder.pack(msg, sent.view(), View(), payload, by_hand.get(), stats));
        by_hand->commit();
        const Share share{payload, View(), 0};
        coder.absorb(msg, {&share, 1}, View(want.data(), DType::f32, {count}), false, stats);
        const std::lock_guard lock(mutex);
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(got.get(i), want[static_cast<size_t>(i)]) << i;
      }
    });
  }
}

// --- what does not go together ----------------------------------------------------------------------------------

TEST(Refused, SaysWhichAndWhy) {
  struct Row {
    CodecSpec spec;
    ResidualKind residual;
    const char* says;
  };
  const auto turned = [](
                          const std::string& codec, const std::function<void(CodecSpec&)>& set = [](CodecSpec&) {}) {
    CodecSpec spec = real_spec(codec, set);
    spec.hadamard = true;
    return spec;
  };
  constexpr ResidualKind kNone = ResidualKind::kNone;
  std::vector<Row> rows;
  for (const ResidualKind kind :
       {ResidualKind::kErrorFeedback, ResidualKind::kLazy, ResidualKind::kEma, ResidualKind::kValueDifference}) {
    for (const char* lossless : {"identity", "mpc", "entropy"}) rows.push_back({real_spec(lossless), kind, "lossless"});
    rows.push_back({real_spec("zfp", [](CodecSpec& s) { s["rate"] = 4.0; }), kind, "would grow"});
    rows.push_back({real_spec("random_k", [](CodecSpec& s) { s["rounding"] = "stochastic"; }), kind, "would grow"});
    rows.push_back({real_spec("block_int", [](CodecSpec& s) { s["bits"] = 2, s["rounding"] = "stochastic"; }), kind,
                    "would grow"});
  }
  for (const char* lossless : {"identity", "mpc", "entropy"}) rows.push_back({turned(lossless), kNone, "lose"});
  for (const char* selects : {"top_k", "random_k", "chunked_top_k", "low_rank", "one_bit", "zfp"})
    rows.push_back({turned(selects), kNone, "would spread"});
  for (const Row& row : rows) {
    SCOPED_TRACE(::testing::Message() << row.spec.codec << " residual " << static_cast<int>(row.residual)
                                      << (row.spec.hadamard ? " hadamard" : ""));
    try {
      const Coder coder(make_codec(row.spec).codec, row.spec, {.kind = row.residual});
      ADD_FAILURE() << coder.name() << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      const std::string what = error.what();
      EXPECT_NE(what.find(row.says), std::string::npos) << what;
      EXPECT_NE(what.find(row.spec.hadamard ? "hadamard" : "residual"), std::string::npos) << what;
    }
  }
  // In rounds only, or in one way only.
  EXPECT_EQ(make_codec(real_spec("sketch")).codec, nullptr);
  EXPECT_EQ(make_codec(real_spec("low_rank", [](CodecSpec& s) { s["sides"] = 1; })).codec, nullptr);
}

// A sketch says when the union left nothing out, on every rank.
TEST(RealSketch, CountsWhatGoesDense) {
  const auto codec = make_codec(real_spec("sketch", [](CodecSpec& s) { s["density"] = 0.5; })).rounds;
  constexpr int64_t kCount = 1000;
  for (const bool apart : {false, true})
    run_ranks(2, [&](Progress& progress) {
      CodedRank rank(progress, 2);
      Buffer data(DType::f32, kCount);
      for (int64_t i = 0; i < kCount; ++i)
        data.view().as<float>()[i] = (i < kCount / 2) == (!apart || rank.me() == 0) ? 4.0f : 1.0f;
      const auto state = codec->make_state(kCount, {});
      RoundCall call;
      call.codec = codec.get(), call.state = state.get();
      call.stats = &rank.stats, call.counters = &rank.counters;
      rank.run(rounds_all_reduce(rank.group.lane(), call, data.view()));
      EXPECT_EQ(rank.stats.dense, apart ? 1 : 0);
      for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(data.get(i), apart ? 5.0 : i < kCount / 2 ? 8.0 : 0.0) << i;
    });
}

// No codec comes into the list without these tests.
TEST(Refused, EveryNameIsCovered) {
  for (const std::string& name : codec_names()) {
    bool covered = name == "identity";  // law 3, coded_test.cpp
    for (const RealCodec& codec : real_codecs()) covered |= codec.spec.codec == name;
    for (const RoundCase& rounds : round_cases()) covered |= rounds.spec.codec == name;
    EXPECT_TRUE(covered) << name;
  }
}

// Plans hold a state for every message of a model that no machine here could.
TEST(RealSketch, AStateTakesMemoryWithItsFirstMessage) {
  constexpr int64_t n = int64_t{1} << 40;
  EXPECT_GE(Sketch(0.2, 2.0, true).make_state(n, {})->bytes(), 4 * n + n / 8);
  EXPECT_GE(Sketch(0.2, 2.0, false).make_state(n, {})->bytes(), 4 * n + n / 8);
}

}  // namespace
}  // namespace thinwire::real_rounds_test
