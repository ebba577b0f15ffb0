// metrics.jsonl: keys, exact numbers, repair after a kill, and a disk that is full.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "engine/run/trace/memory_probe.h"
#include "engine/run/trace/metrics_log.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::test_metrics_log {
namespace {

using nlohmann::json;
constexpr int64_t kKeepAll = std::numeric_limits<int64_t>::max();

StepRecord step_record(int64_t step) {
  StepRecord r;
  r.step = step;
  r.consumed_samples = 16 * step;
  r.consumed_tokens = 2048 * step;
  r.loss = 5.0 / static_cast<double>(step);
  return r;
}

std::vector<int64_t> steps_in(const std::string& path) {
  std::vector<int64_t> steps;
  std::istringstream lines(test::slurp(path));
  for (std::string line; std::getline(lines, line);) steps.push_back(json::parse(line)["step"].get<int64_t>());
  return steps;
}

std::set<std::string> keys_of(const json& j) {
  std::set<std::string> keys;
  for (const auto& [key, value] : j.items()) keys.insert(key);
  return keys;
}

TEST(MetricsLog, StepLineHasExactlyTheDocumentedKeys) {
  StepRecord r = step_record(7);
  r.time_ms = {{"data", 0.5}, {"forward", 30.25}};
  r.comm.push_back({.site = "dp.gradient",
                    .logical_bytes = 100,
                    .wire_bytes = 25,
                    .logical_bytes_total = 400,
                    .wire_bytes_total = 100,
                    .baseline_dtype = "fp32",
                    .encode_ms = 1.5,
                    .decode_ms = 0.5,
                    .busy_ms = 3,
                    .exposed_ms = 1,
                    .rel_error = 0.01,
                    .residual_norm = {}});
  const json j = json::parse(to_json_line(r));
  EXPECT_EQ(keys_of(j), (std::set<std::string>{"step",
                                               "consumed_samples",
                                               "consumed_tokens",
                                               "loss",
                                               "lr",
                                               "grad_norm",
                                               "loss_scale",
                                               "skipped",
                                               "wall_s",
                                               "step_ms",
                                               "samples_per_s",
                                               "tokens_per_s",
                                               "model_tflops_per_rank",
                                               "model_tflops_full_attn",
                                               "hw_tflops",
                                               "mfu",
                                               "memory_peak_bytes",
                                               "time_ms",
                                               "non_finite",
                                               "comm"}));
  EXPECT_TRUE(j["mfu"].is_null());
  EXPECT_TRUE(j["non_finite"].is_null());
  EXPECT_EQ(j["time_ms"]["forward"], 30.25);
  EXPECT_EQ(
      keys_of(j["comm"]["dp.gradient"]),
      (std::set<std::string>{"logical_bytes", "wire_bytes", "logical_bytes_total", "wire_bytes_total", "baseline_dtype",
                             "encode_ms", "decode_ms", "busy_ms", "exposed_ms", "rel_error", "residual_norm"}));
  EXPECT_EQ(j["comm"]["dp.gradient"]["rel_error"], 0.01);
  EXPECT_TRUE(j["comm"]["dp.gradient"]["residual_norm"].is_null());
  r.comm.front().dense_messages = 3;
  EXPECT_EQ(json::parse(to_json_line(r))["comm"]["dp.gradient"]["dense_messages"], 3);
  EXPECT_EQ(json::parse(to_json_line(step_record(1)))["comm"], json::object());
}

TEST(MetricsLog, SpikesAndStragglersStandWhereTheyAre) {
  StepRecord r = step_record(7);
  const size_t keys = keys_of(json::parse(to_json_line(r))).size();
  r.spike_spreads = 12.5, r.spike_median = 3.0;
  r.stragglers = {StragglerRecord{.rank = 37, .host = "n12", .ratio = 1.625, .since = 400},
                  StragglerRecord{.rank = 2, .waits = true, .ratio = 0.92, .since = 500}};
  const json j = json::parse(to_json_line(r));
  EXPECT_EQ(keys_of(j).size(), keys + 2);
  EXPECT_EQ(j["spike"], (json{{"spreads", 12.5}, {"median", 3.0}}));
  EXPECT_EQ(j["stragglers"][0],
            (json{{"rank", 37}, {"host", "n12"}, {"kind", "computes"}, {"ratio", 1.625}, {"since", 400}}));
  EXPECT_EQ(j["stragglers"][1]["kind"], "waits");
  EXPECT_EQ(text_of((*r.stragglers)[0]), "rank 37 (n12) computes 1.6 x the median since step 400");
  EXPECT_EQ(text_of((*r.stragglers)[1]),
            "rank 2 keeps others waiting in 92 % of the steps, and computes no longer than they do, since step 500");
  r.stragglers->clear();
  EXPECT_EQ(json::parse(to_json_line(r))["stragglers"], json::array()) << "compared, and nobody named";
}

TEST(MetricsLog, NumbersComeBackBitForBit) {
  std::mt19937_64 random(20250131);
  for (int i = 0; i < 20000; ++i) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    StepRecord r;
    r.loss = value;
    const auto back = json::parse(to_json_line(r))["loss"].get<double>();
    ASSERT_EQ(std::bit_cast<uint64_t>(back), std::bit_cast<uint64_t>(value)) << value;
  }
}

TEST(MetricsLog, NonFiniteIsNullWithAWord) {
  StepRecord r = step_record(3);
  r.loss = std::nan("");
  r.grad_norm = -std::numeric_limits<double>::infinity();
  r.skipped = true;
  r.non_finite = "layers.0.mlp.fc1.weight";
  const json j = json::parse(to_json_line(r));
  EXPECT_TRUE(j["loss"].is_null());
  EXPECT_EQ(j["loss_text"], "nan");
  EXPECT_TRUE(j["grad_norm"].is_null());
  EXPECT_EQ(j["grad_norm_text"], "-inf");
  EXPECT_EQ(j["non_finite"], "layers.0.mlp.fc1.weight");
  EXPECT_FALSE(json::parse(to_json_line(step_record(3))).contains("loss_text"));
}

TEST(MetricsLog, ANamedStepHasNoLoss) {
  StepRecord r = step_record(3);
  r.loss = r.grad_norm = std::nan("");
  r.skipped = r.listed = true;
  const json j = json::parse(to_json_line(r));
  EXPECT_TRUE(j["loss"].is_null() && j["grad_norm"].is_null() && j["non_finite"].is_null());
  EXPECT_EQ(j["skipped_by"], "iterations_to_skip");
  EXPECT_FALSE(j.contains("loss_text") || j.contains("grad_norm_text"));
}

TEST(MetricsLog, EvaluationLine) {
  EvalRecord e;
  e.step = 200;
  e.eval_loss = 800.0;
  e.perplexity = std::exp(800.0);
  e.by_position = {801.5, std::nan(""), 798.5};
  const json j = json::parse(to_json_line(e));
  EXPECT_EQ(j["step"], 200);
  EXPECT_EQ(j["eval_loss"], 800.0);
  EXPECT_TRUE(j["perplexity"].is_null());
  EXPECT_EQ(j["perplexity_text"], "inf");
  EXPECT_EQ(j["eval_loss_by_position"], json::parse("[801.5, null, 798.5]"));
}

TEST(MetricsLog, ResumeCutsLaterLinesAndTheTornOne) {
  const test::Scratch scratch;
  const std::string path = scratch / "metrics.jsonl";
  {
    MetricsLog log(path, 0);
    for (int64_t s = 1; s <= 10; ++s) {
      log.write(step_record(s));
      if (s % 5 == 0) {
        EvalRecord e;
        e.step = s;
        log.write(e);
      }
    }
  }
  const std::string whole = test::slurp(path);
  test::spill(path, whole + to_json_line(step_record(11)).substr(0, 40));
  {
    MetricsLog log(path, 7);
    log.write(step_record(8));
  }
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3, 4, 5, 5, 6, 7, 8}));
  { MetricsLog log(path, 0); }
  EXPECT_EQ(test::slurp(path), "");
}

// kill -9 may tear a line anywhere: whatever is left, whole lines before it stay byte for byte and nothing else does.
TEST(MetricsLog, AnyTearIsRepaired) {
  const test::Scratch scratch;
  const std::string path = scratch / "metrics.jsonl";
  const std::string first = to_json_line(step_record(1)) + "\n", second = to_json_line(step_record(2)) + "\n";
  for (size_t cut = 0; cut <= second.size(); cut += cut + 8 < second.size() ? 7 : 1) {
    test::spill(path, first + second.substr(0, cut));
    { MetricsLog log(path, kKeepAll); }
    // Only the newline is missing when cut == size - 1: the record is whole and is kept.
    ASSERT_EQ(test::slurp(path), cut + 1 >= second.size() ? first + second : first) << "cut at " << cut;
  }
}

TEST(MetricsLog, RubbishInTheMiddleIsRemovedAndForeignSpacingIsRead) {
  const test::Scratch scratch;
  const std::string path = scratch / "metrics.jsonl";
  test::spill(path, "{ \"loss\": 1, \"step\": 1 }\n\0\0\xff rubbish\n[1,2]\n\n{\"step\":\"x\"}\n{\"step\":2}\n");
  const std::string zeros(64, '\0');
  test::spill(path, "{ \"loss\": 1, \"step\": 1 }\n" + zeros + "\n[1,2]\n\n{\"step\":\"x\"}\n{\"step\":2}\n");
  MetricsLog log(path, kKeepAll);
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2}));
}

// The file of a long run is larger than what a rank has left, and would count as the peak of every step to come.
TEST(MetricsLog, ResumeHoldsOneLineAtATime) {
  const test::Scratch scratch;
  const std::string path = scratch / "metrics.jsonl";
  {
    std::ofstream out(path);
    for (int step = 1; step <= 64; ++step)
      out << "{\"step\":" << step << ",\"pad\":\"" << std::string(1 << 20, 'x') << "\"}\n";
  }
  const int64_t before = peak_rss_bytes();
  { MetricsLog log(path, 62); }
  EXPECT_LT(peak_rss_bytes() - before, 16 << 20);
  const std::string kept = test::slurp(path);
  EXPECT_EQ(std::count(kept.begin(), kept.end(), '\n'), 62);
}

// A file size limit behaves like a full disk, with short writes. (SIGXFSZ would end the process otherwise.)
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    previous_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { lift(); }
  void lift() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    ::signal(SIGXFSZ, previous_);
  }

 private:
  rlimit old_{};
  void (*previous_)(int) = nullptr;
};

TEST(MetricsLog, FullDiskLosesLinesButNeverTearsOne) {
  const test::Scratch scratch;
  const std::string path = scratch / "metrics.jsonl";
  MetricsLog log(path, 0);
  log.write(step_record(1));
  const size_t size = test::slurp(path).size();
  {
    FileSizeLimit limit(size + 100);  // room for a third of a line
    for (int64_t s = 2; s <= 4; ++s) log.write(step_record(s));
  }
  EXPECT_EQ(test::slurp(path).size(), size);
  log.write(step_record(5));
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 5}));
}

// A job that starts on a full disk: no room for a copy, and yet no step twice once there is room again.
TEST(MetricsLog, ResumeCutsOnAFullDisk) {
  const test::Scratch scratch;
  const std::string path = scratch / "metrics.jsonl";
  const std::string rubbish = "[1,2]\n", torn = to_json_line(step_record(9)).substr(0, 40);
  for (const bool middle : {false, true}) {
    std::string text;
    for (int64_t s = 1; s <= 8; ++s) text += to_json_line(step_record(s)) + "\n" + (middle && s == 2 ? rubbish : "");
    test::spill(path, text + torn);
    FileSizeLimit limit(100);
    MetricsLog log(path, 5);
    limit.lift();
    for (int64_t s = 6; s <= 7; ++s) log.write(step_record(s));
    text.clear();
    for (int64_t s = 1; s <= 7; ++s) text += to_json_line(step_record(s)) + "\n" + (middle && s == 2 ? rubbish : "");
    EXPECT_EQ(test::slurp(path), text) << "what only a copy could remove stays, and nothing else";
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1);
  }
}

TEST(MetricsLog, UnwritablePlacesNeverThrow) {
  const test::Scratch scratch;
  test::spill(scratch / "file", "x");
  MetricsLog log(scratch / "file/metrics.jsonl", 0);
  log.write(step_record(1));
  EXPECT_EQ(test::slurp(scratch / "file"), "x");
  MetricsLog full("/dev/full", 0);
  full.write(step_record(1));
}

}  // namespace
}  // namespace thinwire::test_metrics_log
