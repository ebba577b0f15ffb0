// The stream from a configuration: sizes, separate files, absent splits, blends, messages and printing.
#include "data/sample_stream.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/data/data_test_files.h"

namespace thinwire::sample_stream_test {
namespace {

using test::expect_error;
using test::TempDir;

class Streams : public ::testing::Test {
 protected:
  Streams() {
    test::write_pair(dir_.file("a"), std::vector<int>(40, 25), 10000);
    test::write_pair(dir_.file("b"), std::vector<int>(30, 17), 10000, 5000);
    test::write_pair(dir_.file("tiny"), {30, 4}, 10000, 9000);
    config_.data = {{dir_.file("a")}};
    config_.split = "80,15,5";
    config_.seq_length = 16;
    config_.vocab = 10000;
    config_.micro_batch = 2;
    config_.global_batch = 6;
    config_.train_iters = 10;
  }
  std::vector<int32_t> read(const SampleStream& stream, Split split, int64_t i) const {
    std::vector<int32_t> tokens(static_cast<size_t>(config_.seq_length) + 1);
    stream.read(split, i, tokens);
    return tokens;
  }

  TempDir dir_;
  DataConfig config_;
};

TEST_F(Streams, SizesFollowMegatron) {
  config_.eval_interval = 4;
  config_.eval_iters = 3;
  SplitSizes sizes = split_sizes(config_);
  EXPECT_EQ(sizes.train, 60);
  EXPECT_EQ(sizes.valid, (10 / 4 + 1) * 3 * 6);
  EXPECT_EQ(sizes.test, 3 * 6);
  config_.eval_interval = 0;
  EXPECT_EQ(split_sizes(config_).valid, 3 * 6);
  config_.ramp_start = 2;
  config_.ramp_increment = 2;
  config_.ramp_samples = 12;  // 2 2 2 | 4 4 (at 6 and 10) ... of 6 from 12 on: 0 2 4 | 6 10 | 14 and then 6 each
  EXPECT_EQ(split_sizes(config_).train, 14 + 5 * 6);
  config_.train_iters = int64_t{1} << 62;
  expect_error(ExitCode::kBadConfig, {"train_iters"}, [&] { split_sizes(config_); });
}

TEST_F(Streams, SplitsAreDisjointAndSizedAtLeastAsAsked) {
  config_.eval_interval = 5;
  config_.eval_iters = 2;
  const SampleStream stream(config_);
  const SplitSizes sizes = split_sizes(config_);
  EXPECT_GE(stream.size(Split::kTrain), sizes.train);
  EXPECT_GE(stream.size(Split::kValid), sizes.valid);
  EXPECT_GE(stream.size(Split::kTest), sizes.test);
  const auto check = [&](Split split, int first, int last) {
    for (int64_t i = 0; i < stream.size(split); ++i)
      for (const int32_t id : read(stream, split, i)) {
        ASSERT_GE(id / 100, first);
        ASSERT_LT(id / 100, last);
      }
  };
  check(Split::kTrain, 0, 32);
  check(Split::kValid, 32, 38);
  check(Split::kTest, 38, 40);
  EXPECT_NE(stream.describe().find("data valid: "), std::string::npos);
}

TEST_F(Streams, ALongerBinThanItsIndexIsPointedOut) {
  EXPECT_EQ(SampleStream(config_).describe().find("warning"), std::string::npos);
  test::spill(dir_.file("a.bin"), test::slurp(dir_.file("a.bin")) + std::string(6, '\1'));
  const std::string text = SampleStream(config_).describe();
  EXPECT_NE(text.find("warning: " + dir_.file("a") + ".bin: the last 6 bytes are in no sequence"), std::string::npos)
      << text;
}

TEST_F(Streams, EvaluationOffLeavesTheSplitsOut) {
  const SampleStream stream(config_);
  EXPECT_FALSE(stream.has(Split::kValid));
  EXPECT_NE(stream.describe().find("data valid: none (eval_iters is 0)"), std::string::npos) << stream.describe();
  expect_error(ExitCode::kBadConfig, {"valid", "eval_iters"}, [&] { stream.require(Split::kValid); });
}

TEST_F(Streams, RequestedEvaluationWithoutSamplesIsRefused) {
  config_.split = "999,1,0";
  config_.eval_interval = 5;
  config_.eval_iters = 2;
  expect_error(ExitCode::kBadConfig, {"valid", "40 sequences", "split", "eval_iters=0"},
               [&] { SampleStream stream(config_); });
  const SampleStream lenient(config_, EvalCheck::kLeaveOut);
  EXPECT_EQ(lenient.size(Split::kValid), 0);
  EXPECT_GT(lenient.size(Split::kTrain), 0);
  config_.split = "1,0,0";  // a split that was not asked for is no mistake
  EXPECT_FALSE(SampleStream(config_).has(Split::kValid));
  config_.split = "0,1,0";
  expect_error(ExitCode::kBadConfig, {"train", "split"}, [&] { SampleStream stream(config_); });
}

// The last document has no token, and one share is that document.
TEST_F(Streams, ASplitOfEmptySequencesIsAbsent) {
  std::vector<int> lengths(20, 25);
  lengths.back() = 0;
  test::write_pair(dir_.file("ends"), lengths, 10000);
  config_.data = {{dir_.file("ends")}};
  config_.split = "16,3,1";
  config_.eval_interval = 5;
  config_.eval_iters = 1;
  const SampleStream stream(config_);
  EXPECT_TRUE(stream.has(Split::kValid));
  EXPECT_FALSE(stream.has(Split::kTest));
  EXPECT_NE(stream.describe().find("ends has only empty sequences in it"), std::string::npos) << stream.describe();
  config_.split = "19,1,0";
  expect_error(ExitCode::kBadConfig, {"valid", "only empty sequences", "eval_iters=0"},
               [&] { SampleStream refused(config_); });
  EXPECT_GT(SampleStream(config_, EvalCheck::kLeaveOut).size(Split::kTrain), 0);
}

TEST_F(Streams, SeparateFilesPerSplit) {
  config_.data.clear();
  config_.train = {{dir_.file("a")}};
  config_.valid = {{dir_.file("b")}};
  config_.eval_interval = 5;
  config_.eval_iters = 1;
  const SampleStream stream(config_);
  EXPECT_LT(read(stream, Split::kTrain, 0)[0], 5000);
  EXPECT_GE(read(stream, Split::kValid, 0)[0], 5000);
  EXPECT_FALSE(stream.has(Split::kTest));
  // All of `a` is used: the stream of the whole file with split "1,0,0".
  DataConfig whole = config_;
  whole.train.clear();
  whole.valid.clear();
  whole.data = {{dir_.file("a")}};
  whole.split = "1,0,0";
  const SampleStream other(whole);
  for (int64_t i = 0; i < 60; ++i) ASSERT_EQ(read(stream, Split::kTrain, i), read(other, Split::kTrain, i));
}

TEST_F(Streams, BlendFollowsTheWeights) {
  config_.data = {{dir_.file("a"), 3}, {dir_.file("b"), 1}};
  config_.train_iters = 20;
  const SampleStream stream(config_);
  int from_b = 0;
  for (int64_t i = 0; i < 120; ++i) from_b += read(stream, Split::kTrain, i)[0] >= 5000;
  EXPECT_NEAR(from_b, 30, 1);
}

TEST_F(Streams, MistakesAreNamed) {
  const auto refuse = [&](ExitCode code, const std::vector<std::string>& parts,
                          const std::function<void(DataConfig&)>& change) {
    DataConfig config = config_;
    change(config);
    SCOPED_TRACE(parts[0]);
    expect_error(code, parts, [&] { SampleStream stream(config); });
  };
  refuse(ExitCode::kBadConfig, {"data_path", "missing"}, [](DataConfig& c) { c.data.clear(); });
  refuse(ExitCode::kBadConfig, {"data_path", "not both"}, [](DataConfig& c) { c.train = c.data; });
  refuse(ExitCode::kBadConfig, {"train_data_paths"}, [](DataConfig& c) { c.valid.swap(c.data); });
  refuse(ExitCode::kBadConfig, {"seq_length"}, [](DataConfig& c) { c.seq_length = 0; });
  refuse(ExitCode::kBadConfig, {"seed", "2^32"}, [](DataConfig& c) { c.seed = uint64_t{1} << 32; });
  refuse(ExitCode::kBadConfig, {"split"}, [](DataConfig& c) { c.split = "a, b"; });
  refuse(ExitCode::kBadConfig, {"weight", "positive"}, [&](DataConfig& c) { c.data.push_back({dir_.file("b"), 0.0}); });
  refuse(ExitCode::kBadConfig, {"weight"}, [&](DataConfig& c) { c.data.push_back({dir_.file("b"), std::nan("")}); });
  refuse(ExitCode::kBadConfig, {"rampup_batch_size"},
         [](DataConfig& c) { c.ramp_start = 1, c.ramp_increment = 4, c.ramp_samples = 9; });
  refuse(ExitCode::kBadConfig, {"train_iters"}, [&](DataConfig& c) {
    c.train_iters = 0;
    c.data.push_back({dir_.file("b"), 1.0});
  });
  refuse(ExitCode::kBadConfig, {"fewer than seq_length", "tiny"}, [&](DataConfig& c) {
    c.train_iters = 0;
    c.data = {{dir_.file("tiny")}};
    c.seq_length = 64;
  });
  refuse(ExitCode::kBadData, {"missing.idx"}, [&](DataConfig& c) { c.data = {{dir_.file("missing")}}; });
  refuse(ExitCode::kBadConfig, {"index", "memory"}, [](DataConfig& c) { c.train_iters = int64_t{1} << 50; });
}

TEST_F(Streams, ReadingPastTheEndIsACheck) {
  const SampleStream stream(config_);
  std::vector<int32_t> tokens(17), small(16);
  expect_error(ExitCode::kInternal, {"train"}, [&] { stream.read(Split::kTrain, stream.size(Split::kTrain), tokens); });
  expect_error(ExitCode::kInternal, {"train"}, [&] { stream.read(Split::kTrain, -1, tokens); });
  expect_error(ExitCode::kInternal, {"valid"}, [&] { stream.read(Split::kValid, 0, tokens); });
  expect_error(ExitCode::kInternal, {}, [&] { stream.read(Split::kTrain, 0, small); });
}

TEST_F(Streams, FingerprintListsEveryFileOnce) {
  config_.data = {{dir_.file("a"), 3}, {dir_.file("b"), 1}, {dir_.file("a"), 1}};
  const std::string both = SampleStream(config_).fingerprint();
  EXPECT_EQ(std::count(both.begin(), both.end(), ' '), 1);
  config_.data = {{dir_.file("b"), 3}, {dir_.file("a"), 1}};
  EXPECT_NE(both, SampleStream(config_).fingerprint());
}

// Evaluation may be switched on and off from one job of a run to the next; the data stay the same.
TEST_F(Streams, FingerprintDoesNotDependOnEvaluation) {
  config_.train = {{dir_.file("a")}};
  config_.data.clear();
  config_.valid = {{dir_.file("b")}};
  config_.test = {{dir_.file("tiny")}, {dir_.file("b")}};  // tiny holds no sample of this length: nothing is built
  config_.seq_length = 40;
  config_.eval_interval = 5;
  const std::string off = SampleStream(config_).fingerprint();
  EXPECT_EQ(std::count(off.begin(), off.end(), ' '), 2);
  config_.eval_iters = 2;
  EXPECT_EQ(SampleStream(config_).fingerprint(), off);
  config_.valid = {{dir_.file("tiny")}};
  EXPECT_NE(SampleStream(config_, EvalCheck::kLeaveOut).fingerprint(), off);
}

TEST_F(Streams, PrintsSamplesAsJsonLines) {
  const SampleStream stream(config_);
  std::ostringstream out;
  print_samples(stream, 12, out);
  EXPECT_EQ(out.str().find(' '), std::string::npos);
  EXPECT_EQ(out.str().rfind("{\"sample\":0,\"tokens\":[", 0), 0u);
  std::istringstream in(out.str());
  std::string line;
  int64_t i = 0;
  for (; std::getline(in, line); ++i) {
    const auto parsed = nlohmann::json::parse(line);
    EXPECT_EQ(parsed.at("sample").get<int64_t>(), i);
    EXPECT_EQ(parsed.at("tokens").get<std::vector<int32_t>>(), read(stream, Split::kTrain, i));
  }
  EXPECT_EQ(i, 12);
  expect_error(ExitCode::kUsage, {"--print-samples"}, [&] { print_samples(stream, 1 << 20, out); });
  std::ostringstream broken;
  broken.setstate(std::ios::badbit);
  expect_error(ExitCode::kIo, {"--print-samples"}, [&] { print_samples(stream, 1, broken); });
}

}  // namespace
}  // namespace thinwire::sample_stream_test
