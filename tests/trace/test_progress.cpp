// Console lines: the documented wording, human units at their borders, and no control characters off a terminal.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "engine/base/core/log.h"
#include "engine/run/trace/console_progress.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::test_progress {
namespace {

TEST(Progress, Units) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(999.96), "1.0k");
  EXPECT_EQ(format_count(18432), "18.4k");
  EXPECT_EQ(format_count(999'960), "1.0M");
  EXPECT_EQ(format_count(20'554'567'680), "20.6B");
  EXPECT_EQ(format_count(2.5), "2.5");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1.2 * 1024 * 1024 * 1024), "1.2 GiB");
  EXPECT_EQ(format_bytes(1024.0 * 1024 - 1), "1.0 MiB");
  EXPECT_EQ(format_duration(0.44), "0.4s");
  EXPECT_EQ(format_duration(9.96), "10s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(20160), "5h36m");
  EXPECT_EQ(format_duration(273600), "3d04h");
  EXPECT_EQ(format_duration(std::nan("")), "?");
  EXPECT_EQ(format_scientific(3e-4), "3.0e-4");
  EXPECT_EQ(format_scientific(9.97e-5), "1.0e-4");
  EXPECT_EQ(format_scientific(0), "0");
  EXPECT_EQ(format_scientific(12.0), "1.2e1");
}

StepRecord record() {
  StepRecord r;
  r.step = 120;
  r.loss = 3.41214;
  r.grad_norm = 0.912;
  r.lr = 3e-4;
  r.step_ms = 412.2;
  r.tokens_per_s = 18432;
  r.model_tflops_per_rank = 0.531;
  r.memory_peak_bytes = 1288490188;
  return r;
}

TEST(Progress, StepLine) {
  StepRecord r = record();
  EXPECT_EQ(format_step_line(r, 5000, 20160.0),
            "step 120/5000 | loss 3.4121 | gnorm 0.91 | lr 3.0e-4 | 412 ms | 18.4k tok/s | 0.53 TFLOP/s | mem 1.2 GiB "
            "| eta 5h36m");
  r.mfu = 0.41;
  r.loss = std::nan("");
  r.skipped = true;
  r.loss_scale = 2048;
  r.non_finite = "layers.1.attention.qkv.weight";
  r.comm.push_back({.site = "dp.gradient", .logical_bytes = 4096, .wire_bytes = 1024, .exposed_ms = 18});
  EXPECT_EQ(format_step_line(r, 0, {}),
            "step 120 | loss nan | gnorm 0.91 | SKIPPED non-finite in layers.1.attention.qkv.weight | lr 3.0e-4 | "
            "scale 2048 | 412 ms | 18.4k tok/s | "
            "0.53 TFLOP/s (mfu 41.0%) | wire 1.0 KiB (4.0x, exposed 18 ms) | mem 1.2 GiB");
}

TEST(Progress, ASpikeIsNamed) {
  StepRecord r = record();
  r.spike_spreads = 12.4, r.spike_median = 3.0;
  EXPECT_NE(format_step_line(r, 0, {}).find(" | SPIKE of 12 spreads | lr "), std::string::npos);
  r.skipped = true;
  EXPECT_NE(format_step_line(r, 0, {}).find(" | SKIPPED spike of 12 spreads | lr "), std::string::npos);
}

TEST(Progress, ANamedStepHasNoNumbers) {
  StepRecord r = record();
  r.skipped = r.listed = true;
  EXPECT_EQ(format_step_line(r, 5000, 20160.0), "step 120/5000 | SKIPPED by iterations_to_skip");
}

TEST(Progress, EvalLine) {
  EvalRecord e;
  e.step = 200;
  e.eval_loss = 3.2011;
  e.perplexity = 24.559;
  e.eval_ms = 1234;
  EXPECT_EQ(format_eval_line(e), "eval at step 200 | loss 3.2011 | perplexity 24.56 | 1.2s");
  e.split = "test";
  EXPECT_EQ(format_eval_line(e), "eval at step 200 (test) | loss 3.2011 | perplexity 24.56 | 1.2s");
}

TEST(Progress, BarIsAsWideAsAsked) {
  for (const int width : {40, 79, 200}) {
    for (const int64_t at : {0, 1, 119, 120, 239, 240})
      EXPECT_EQ(format_bar(at, 240, 130.0, width).size(), static_cast<size_t>(width));
  }
  EXPECT_EQ(format_bar(0, 10, {}, 40).find('='), std::string::npos);
  EXPECT_EQ(format_bar(10, 10, {}, 40).find(' '), format_bar(10, 10, {}, 40).find(']') + 1);
  EXPECT_EQ(format_bar(5, 10, {}, 5).size(), 40u);
}

TEST(Progress, PlainLinesOffATerminal) {
  const test::Scratch scratch;
  std::FILE* out = std::fopen((scratch / "out").c_str(), "w");
  ASSERT_NE(out, nullptr);
  {
    ConsoleProgress progress(out, 25, 10, 4);
    for (int64_t s = 4; s <= 25; ++s) {
      StepRecord r = record();
      r.step = s;
      r.skipped = s == 17;
      progress.step(r);
    }
  }
  std::fclose(out);
  std::istringstream lines(test::slurp(scratch / "out"));
  std::vector<std::string> starts;
  for (std::string line; std::getline(lines, line);) starts.push_back(line.substr(0, line.find(" |")));
  EXPECT_EQ(starts, (std::vector<std::string>{"step 4/25", "step 10/25", "step 17/25", "step 20/25", "step 25/25"}));
  EXPECT_EQ(test::slurp(scratch / "out").find('\033'), std::string::npos);
}

// As a watchdog logs beside the thread that trains.
TEST(Log, LinesForTheFileAloneDoNotSilenceTheConsole) {
  constexpr int kLines = 3000;
  const auto count = [](const std::string& text, const std::string& line) {
    int found = 0;
    for (size_t at = 0; (at = text.find(line, at)) != std::string::npos; at += line.size()) ++found;
    return found;
  };
  const test::Scratch scratch;
  log_open_file(scratch / "log");
  testing::internal::CaptureStderr();
  std::thread other([] {
    for (int i = 0; i < kLines; ++i) log_write_file(LogLevel::kError, "for the file");
  });
  for (int i = 0; i < kLines; ++i) log_warning("for both");
  other.join();
  const std::string console = testing::internal::GetCapturedStderr();
  log_close_file();
  EXPECT_EQ(count(console, "for both"), kLines);
  EXPECT_EQ(count(console, "for the file"), 0);
  EXPECT_EQ(count(test::slurp(scratch / "log"), "for both"), kLines);
  EXPECT_EQ(count(test::slurp(scratch / "log"), "for the file"), kLines);
}

}  // namespace
}  // namespace thinwire::test_progress
