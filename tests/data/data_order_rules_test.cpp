// The rules one by one: numpy's shuffle and sums, split strings, blending, the batch ramp, and the size of index
// arrays.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/batch_ramp.h"
#include "data/blend.h"
#include "data/gpt_dataset.h"
#include "data/narrow_vector.h"
#include "data/split.h"
#include "tests/data/data_test_files.h"

namespace thinwire::data_order_rules_test {
namespace {

using nlohmann::json;
using test::expect_error;

json golden() {
  std::ifstream in("tests/golden/data_order/expected.json");
  return json::parse(in);
}

// Values of numpy 1.24.2: RandomState(1234).shuffle(arange(10)), twice from one generator.
TEST(NumpyShuffle, TwoInARow) {
  RandomState random(1234);
  std::vector<uint32_t> a(10);
  std::iota(a.begin(), a.end(), 0u);
  numpy_shuffle(std::span<uint32_t>(a), random);
  EXPECT_EQ(a, (std::vector<uint32_t>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
  std::vector<int64_t> b(10);
  std::iota(b.begin(), b.end(), 0);
  numpy_shuffle(std::span<int64_t>(b), random);
  EXPECT_EQ(b, (std::vector<int64_t>{7, 3, 5, 1, 4, 8, 0, 2, 6, 9}));
}

TEST(NumpyShuffle, MatchesNumpy) {
  const json all = golden();
  for (const json& c : all.at("shuffles")) {
    RandomState random(c.at("seed").get<uint32_t>());
    std::vector<int64_t> a(c.at("n").get<size_t>());
    std::iota(a.begin(), a.end(), 0);
    numpy_shuffle(std::span<int64_t>(a), random);
    EXPECT_EQ(a, c.at("values").get<std::vector<int64_t>>());
  }
}

TEST(NumpyShuffle, WideIntervalStaysInRange) {
  RandomState random(3);
  const uint64_t largest = (uint64_t{1} << 33) + 5;
  bool above = false;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t v = random.interval(largest);
    ASSERT_LE(v, largest);
    above |= v > 0xffffffffu;
  }
  EXPECT_TRUE(above);
  EXPECT_EQ(random.interval(0), 0u);
}

TEST(NarrowVector, WideAndNarrowShuffleAlike) {
  NarrowVector narrow(500, 500), wide(500, int64_t{1} << 40);
  EXPECT_FALSE(narrow.is_wide());
  EXPECT_TRUE(wide.is_wide());
  for (int64_t i = 0; i < 500; ++i) {
    narrow.set(i, i);
    wide.set(i, i + (int64_t{1} << 39));
  }
  RandomState a(9), b(9);
  for (auto [v, r] : {std::pair{&narrow, &a}, std::pair{&wide, &b}}) {
    v->shuffle(0, 400, *r);
    v->shuffle(400, 500, *r);
  }
  for (int64_t i = 0; i < 500; ++i) {
    ASSERT_EQ(narrow[i] + (int64_t{1} << 39), wide[i]);
    ASSERT_EQ(narrow[i] < 400, i < 400);
  }
}

TEST(NormalizeWeights, SumsAsNumpyDoes) {
  const json all = golden();
  for (const json& c : all.at("normalize")) {
    const auto got = normalize_weights(c.at("weights").get<std::vector<double>>(), "w");
    EXPECT_EQ(got, c.at("normalized").get<std::vector<double>>()) << got.size() << " weights";
  }
}

TEST(ParseSplit, AcceptsTheUsualSpellings) {
  for (const char* text :
       {"969, 30, 1", "969,30,1", "969/30/1", " 0.969 .030 0.001 ", "969., 30, 1", "9.69e2,3e+1,1", "969,30,10E-1"}) {
    const auto f = parse_split(text);
    for (const auto& part : f.part) ASSERT_TRUE(part.has_value()) << text;
    EXPECT_NEAR((*f.part[0])[1], 0.969, 1e-15) << text;
  }
  EXPECT_FALSE(parse_split("1").part[1].has_value());
  EXPECT_FALSE(parse_split("0,1").part[0].has_value());
  EXPECT_EQ(split_range(parse_split("0,1"), Split::kValid, 7)->count(), 7);
}

TEST(ParseSplit, RefusesTheRest) {
  for (const char* text :
       {"", " , ", "1,2,3,4", "-1,2", "a,b", "1e,1", "0,0,0", "1e308,1e308", "nan,1", "inf", "1,2x", "1..2", "0x10"}) {
    expect_error(ExitCode::kBadConfig, {"split", text}, [&] { parse_split(text); });
    EXPECT_NE(split_fault(text), "") << text;
  }
  EXPECT_EQ(split_fault("969, 30, 1"), "");
}

TEST(SplitRange, HalvesGoToTheEvenNeighbour) {
  const auto f = parse_split("50,50");
  for (const auto& [n, edge] : {std::pair{1, 0}, {3, 2}, {5, 2}, {7, 4}, {9, 4}, {10, 5}}) {
    EXPECT_EQ(split_range(f, Split::kTrain, n)->last, edge) << n;
    EXPECT_EQ(split_range(f, Split::kValid, n)->first, edge) << n;
    EXPECT_EQ(split_range(f, Split::kValid, n)->last, n) << n;
  }
}

// In any prefix of a blend no set is more than a sample above its share, and the request covers what is taken.
TEST(Blend, KeepsToTheWeights) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<double> raw(1 + random() % 12);
    for (double& w : raw) w = 1e-3 + static_cast<double>(random() % 1000);
    const auto w = normalize_weights(raw, "w");
    const int64_t size = 1 + static_cast<int64_t>(random() % 3000);
    const Blend blend(w, size);
    std::vector<int64_t> taken(w.size(), 0);
    for (int64_t i = 0; i < size; ++i) {
      const auto k = static_cast<size_t>(blend.dataset(i));
      ASSERT_EQ(blend.sample(i), taken[k]++);
      ASSERT_LE(static_cast<double>(taken[k]), w[k] * static_cast<double>(std::max<int64_t>(i, 1)) + 1.0 + 1e-9);
    }
    int64_t built = 0;
    for (size_t k = 0; k < w.size(); ++k) {
      EXPECT_EQ(taken[k], blend.taken(static_cast<int64_t>(k)));
      EXPECT_GE(blend_request(size, w[k], 0.005), blend_share(size, w[k]));
      built += blend_share(size, w[k]);
    }
    EXPECT_GE(built, size);
  }
}

DataConfig ramp_config(int64_t start, int64_t increment, int64_t samples, int64_t full) {
  DataConfig c;
  c.ramp_start = start;
  c.ramp_increment = increment;
  c.ramp_samples = samples;
  c.global_batch = full;
  return c;
}

TEST(BatchRamp, GrowsAsMegatrons) {
  const json all = golden();
  for (const json& r : all.at("ramps")) {
    const DataConfig c = ramp_config(r.at("start"), r.at("increment"), r.at("samples"), r.at("global_batch"));
    check_batch_ramp(c);
    int64_t i = 0;
    for (const json& update : r.at("updates")) {
      EXPECT_EQ(samples_after(c, i++), update.at(0).get<int64_t>());
      EXPECT_EQ(global_batch_at(c, update.at(0)), update.at(1).get<int64_t>());
    }
    EXPECT_EQ(samples_after(c, i), r.at("total").get<int64_t>());
    // A run of these samples has i steps, and so has one of less than a batch more.
    for (const int64_t more : {int64_t{0}, c.global_batch - 1})
      if (samples_after(c, i) > c.ramp_samples) {
        EXPECT_EQ(iterations_of(c, samples_after(c, i) + more), i);
      }
  }
}

TEST(BatchRamp, NoRampIsConstant) {
  const DataConfig c = ramp_config(0, 0, 0, 48);
  check_batch_ramp(c);
  EXPECT_EQ(global_batch_at(c, 0), 48);
  EXPECT_EQ(global_batch_at(c, 1 << 20), 48);
  EXPECT_EQ(samples_after(c, 1000), 48000);
  const DataConfig flat = ramp_config(48, 8, 1000, 48);
  check_batch_ramp(flat);
  EXPECT_EQ(global_batch_at(flat, 0), 48);
}

TEST(BatchRamp, ALongOneIsNotWalkedStepByStep) {
  EXPECT_EQ(samples_after(ramp_config(1, 1, int64_t{1} << 50, 1001), int64_t{1} << 40), int64_t{1} << 40);
}

TEST(BatchRamp, CountsOnBehindOtherBatches) {
  DataConfig c = ramp_config(0, 0, 0, 48);
  c.done_iters = 10, c.done_samples = 160;
  EXPECT_EQ(samples_after(c, 12), 256);
  EXPECT_EQ(samples_after(c, 3), 160);
  EXPECT_EQ(iterations_of(c, 260), 12);
  EXPECT_EQ(iterations_of(c, 100), 10);
  // A run that resumes with the same batches counts as one that was never stopped, wherever it was cut.
  const DataConfig whole = ramp_config(16, 16, 100, 64);
  for (int64_t done = 0; done <= 10; ++done) {
    DataConfig rest = whole;
    rest.done_iters = done, rest.done_samples = samples_after(whole, done);
    for (int64_t i = done; i < 20; ++i) EXPECT_EQ(samples_after(rest, i), samples_after(whole, i)) << done << " " << i;
    EXPECT_EQ(iterations_of(rest, 1000), iterations_of(whole, 1000)) << done;
  }
}

TEST(BatchRamp, RefusesWhatDoesNotArrive) {
  for (const DataConfig& c : {ramp_config(16, 5, 100, 64), ramp_config(0, 8, 100, 64), ramp_config(16, 0, 100, 64),
                              ramp_config(72, 8, 100, 64), ramp_config(16, 8, -1, 64)})
    expect_error(ExitCode::kBadConfig, {"rampup_batch_size"}, [&] { check_batch_ramp(c); });
  expect_error(ExitCode::kBadConfig, {"train_batch_size"}, [] { check_batch_ramp(ramp_config(0, 0, 0, 0)); });
  expect_error(ExitCode::kBadConfig, {"train_iters"},
               [] { samples_after(ramp_config(0, 0, 0, 1 << 20), int64_t{1} << 50); });
}

// Together the ranks take every sample of a batch once, in order, also where it is no multiple of micro * dp.
TEST(BatchRamp, RanksCoverRaggedBatches) {
  for (const int64_t size : {1, 5, 12, 13, 24})
    for (const int64_t micro : {1, 2, 5})
      for (const int64_t dp : {1, 2, 3}) {
        int64_t next = 100;
        for (int64_t s = 0; s < micro_steps(size, micro, dp); ++s)
          for (int64_t r = 0; r < dp; ++r) {
            const SampleSpan span = micro_batch_samples(100, size, micro, dp, r, s);
            ASSERT_EQ(span.first, next);
            ASSERT_LE(span.rows, micro);
            next += span.rows;
          }
        ASSERT_EQ(next, 100 + size);
      }
}

// A sample is made of the documents that the index names, whatever their lengths: an oracle that lays the stream out.
TEST(GptDataset, RandomFilesReadLikeALaidOutStream) {
  std::mt19937 random(11);
  const test::TempDir dir;
  for (int trial = 0; trial < 30; ++trial) {
    std::vector<int> lengths(1 + random() % 20);
    for (int& n : lengths) n = static_cast<int>(random() % 4 == 0 ? random() % 2 : random() % 40);
    lengths[random() % lengths.size()] = 3;
    const std::string prefix = dir.file(std::to_string(trial));
    test::write_pair(prefix, lengths, 1 << 20);
    const auto file = std::make_shared<const TokenFile>(prefix, 1 << 20);
    const int64_t seq = 1 + static_cast<int64_t>(random() % 50), wanted = 1 + static_cast<int64_t>(random() % 60);
    const GptDataset set(file, {0, file->sequences()}, seq, wanted, random(), "train");
    ASSERT_GE(set.size(), wanted);
    std::vector<int32_t> stream, tokens(static_cast<size_t>(seq) + 1);
    for (int64_t row = 0; row < set.rows(); ++row)
      for (int p = 0; p < lengths[static_cast<size_t>(set.document(row))]; ++p)
        stream.push_back(static_cast<int32_t>(100 * set.document(row)) + p);
    ASSERT_EQ(set.size(), (static_cast<int64_t>(stream.size()) - 1) / seq);
    for (int64_t i = 0; i < set.size(); ++i) {
      set.read(i, tokens);
      const auto begin = stream.begin() + set.shuffled(i) * seq;
      ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), begin)) << "trial " << trial << " sample " << i;
    }
  }
}

TEST(GptDataset, RefusesWhatHasNoTokensOrNoEnd) {
  const test::TempDir dir;
  test::write_pair(dir.file("none"), {0, 0}, 100);
  test::write_pair(dir.file("one"), {1}, 100);
  const auto none = std::make_shared<const TokenFile>(dir.file("none"), 100);
  const auto one = std::make_shared<const TokenFile>(dir.file("one"), 100);
  expect_error(ExitCode::kBadData, {"none", "train", "no tokens"}, [&] { GptDataset(none, {0, 2}, 8, 1, 0, "train"); });
  expect_error(ExitCode::kBadConfig, {"one", "memory", "train_iters"}, [&] {
    GptDataset(one, {0, 1}, 1 << 20, int64_t{1} << 40, 0, "train");
  });
  expect_error(ExitCode::kBadConfig, {"one"}, [&] {
    GptDataset(one, {0, 1}, int64_t{1} << 39, int64_t{1} << 62, 0, "train");
  });
}

// The index of 10^8 tokens in 10^6 documents is built in seconds; the bound is loose so that a busy machine passes.
TEST(GptDataset, LargeFilesBuildInSeconds) {
  const test::TempDir dir;
  {
    // Every sequence lies at the start of one small .bin: the index does not mind, and the test writes no 200 MB.
    const int64_t n = 1000000;
    std::string idx("MMIDIDX\0\0", 9);
    const auto put = [&idx](auto v) { idx.append(reinterpret_cast<const char*>(&v), sizeof v); };
    put(uint64_t{1});
    put(uint8_t{8});
    put(static_cast<uint64_t>(n));
    put(static_cast<uint64_t>(n + 1));
    for (int64_t i = 0; i < n; ++i) put(static_cast<int32_t>(i % 201));
    for (int64_t i = 0; i < n; ++i) put(int64_t{0});
    for (int64_t i = 0; i <= n; ++i) put(i);
    test::spill(dir.file("big.idx"), idx);
    test::spill(dir.file("big.bin"), std::string(402, '\1'));
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto file = std::make_shared<const TokenFile>(dir.file("big"), 0);
  const GptDataset set(file, {0, file->sequences()}, 128, 1000000, 1234, "train");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(set.tokens_per_epoch(), file->tokens());
  EXPECT_GE(set.size(), 1000000);
  EXPECT_LT(seconds, 20.0);
  RecordProperty("seconds", std::to_string(seconds));
  std::vector<int32_t> tokens(129);
  set.read(set.size() - 1, tokens);
}

}  // namespace
}  // namespace thinwire::data_order_rules_test
