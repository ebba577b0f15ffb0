// status.json: what a batch script reads, and that failing to write it ends nothing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/run/trace/status_file.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::test_status_file {
namespace {

TEST(StatusFile, FromRunningToPreempted) {
  const test::Scratch scratch;
  const std::string path = scratch / "status.json";
  StatusFile file(path, 500, std::chrono::milliseconds(0));
  file.running(12);
  const auto running = nlohmann::json::parse(test::slurp(path));
  EXPECT_EQ(running["state"], "running");
  EXPECT_TRUE(running["code"].is_null());
  EXPECT_EQ(running["step"], 12);
  EXPECT_EQ(running["pid"], ::getpid());
  EXPECT_EQ(running["total_steps"], 500);
  file.ended(ExitCode::kPreempted, 13, "saved after SIGTERM");
  const auto ended = nlohmann::json::parse(test::slurp(path));
  EXPECT_EQ(ended["state"], "preempted");
  EXPECT_EQ(ended["code"], 75);
  EXPECT_EQ(ended["reason"], "preempted");
  EXPECT_EQ(ended["requeue"], true);
  EXPECT_EQ(ended["step"], 13);
  EXPECT_EQ(ended["started"], running["started"]);
  const RunStatus back = read_status(path);
  EXPECT_EQ(back.state, "preempted");
  EXPECT_EQ(back.code, 75);
  EXPECT_EQ(back.message, "saved after SIGTERM");
  EXPECT_TRUE(back.requeue);
}

// Whether its wall time counts from the moment at which the file is made.
bool counts_from_now(const std::string& path) {
  const auto start = std::chrono::steady_clock::now();
  const double wall = StatusFile(path, 5).wall_seconds();
  return wall <= std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Two jobs with time between them: wall time counts from the first start.
TEST(StatusFile, WallTimeGoesOnThroughLives) {
  const test::Scratch scratch;
  const std::string path = scratch / "status.json";
  double end = 0.0;
  EXPECT_TRUE(counts_from_now(path));
  {
    StatusFile first(path, 5);
    first.ended(ExitCode::kPreempted, 2);
    end = first.wall_seconds();
  }
  EXPECT_GE(StatusFile(path, 5).wall_seconds(), end) << "also within the second";
  auto j = nlohmann::json::parse(test::slurp(path));
  EXPECT_EQ(j["first_started"], j["started"]);
  j["first_started"] = "2026-01-01T00:00:00Z", j["started"] = "2026-02-01T00:00:00Z";
  test::spill(path, j.dump());
  const auto since_then = [] { return static_cast<double>(std::time(nullptr)) - 1767225600.0; };
  const double least = since_then();
  StatusFile second(path, 5);
  const double wall = second.wall_seconds();
  EXPECT_GE(wall, least);
  EXPECT_LE(wall, since_then() + 1.0) << "whole seconds";
  second.running(3);
  EXPECT_EQ(nlohmann::json::parse(test::slurp(path))["first_started"], "2026-01-01T00:00:00Z");
  EXPECT_NE(nlohmann::json::parse(test::slurp(path))["started"], "2026-02-01T00:00:00Z");
  // A file that is no status: it counts from now.
  test::spill(path, "{\"first_started\": \"soon\"}");
  EXPECT_TRUE(counts_from_now(path));
}

TEST(StatusFile, OnlyHungPeerAndPreemptedAreRequeued) {
  const test::Scratch scratch;
  for (const int code : {0, 64, 65, 70, 71, 73, 74, 75, 76, 78}) {
    StatusFile file(scratch / "status.json", 1);
    file.running(0);
    file.ended(static_cast<ExitCode>(code), 1);
    const RunStatus s = read_status(scratch / "status.json");
    EXPECT_EQ(s.code, code);
    EXPECT_EQ(s.requeue, code == 71 || code == 75) << code;
    EXPECT_EQ(s.state, code == 0 ? "finished" : code == 75 ? "preempted" : "failed");
  }
}

TEST(StatusFile, WhatAPeerHasFailedOfIsNotOverwrittenByItsLoss) {
  const test::Scratch scratch;
  const std::string path = scratch / "status.json", lost = "rank 0: MPI_Test failed";
  const std::string killed = std::string("rank 1 (host n): ") + kKilledForMemory + ", with 1 GiB";
  for (const auto& [code, said] :
       {std::pair(ExitCode::kIo, killed), std::pair(ExitCode::kBadData, std::string("rank 1: a token outside")),
        std::pair(ExitCode::kInternal, std::string("rank 1: CHECK"))}) {
    StatusFile(path, 1).ended(code, 3, said);
    StatusFile(path, 1).ended(ExitCode::kHungPeer, 3, lost);
    EXPECT_EQ(read_status(path).code, static_cast<int>(code));
    EXPECT_EQ(read_status(path).message, said);
    EXPECT_FALSE(read_status(path).requeue);
  }
  StatusFile next_life(path, 1);
  next_life.running(4);
  next_life.ended(ExitCode::kHungPeer, 4, lost);
  EXPECT_EQ(read_status(path).code, 71);
  StatusFile(path, 1).ended(ExitCode::kHungPeer, 4, "watchdog");
  EXPECT_EQ(read_status(path).message, "watchdog");
  // Long ago: of a job that ended before this one could say that it runs.
  StatusFile(path, 1).ended(ExitCode::kBadData, 4, "a token outside");
  auto j = nlohmann::json::parse(test::slurp(path));
  j["updated"] = "2026-01-01T00:00:00Z";
  test::spill(path, j.dump());
  StatusFile(path, 1).ended(ExitCode::kHungPeer, 4, lost);
  EXPECT_EQ(read_status(path).code, 71);
}

TEST(StatusFile, ARunThatGoesOnDoesNotOverwriteTheEndThatAPeerWrote) {
  const test::Scratch dir;
  const std::string path = dir / "status.json";
  StatusFile first(path, 10, std::chrono::milliseconds(0));
  {
    const test::Scratch other;
    StatusFile begins(other / "status.json", 10);
    StatusFile(other / "status.json", 10).ended(ExitCode::kIo, 0, "rank 1: before the first line");
    begins.running(0);
    EXPECT_EQ(read_status(other / "status.json").state, "failed");
  }
  first.running(1);
  first.running(2);
  EXPECT_EQ(read_status(path).step, 2);
  StatusFile(path, 10).ended(ExitCode::kIo, 2, "rank 1: disk full");
  first.running(3);
  first.plans_memory("1 GiB");
  EXPECT_EQ(read_status(path).message, "rank 1: disk full");
  first.ended(ExitCode::kPreempted, 3);
  EXPECT_EQ(read_status(path).state, "preempted");
  StatusFile next(path, 10);
  next.running(3);
  EXPECT_EQ(read_status(path).state, "running") << "the next job";
}

TEST(StatusFile, ARankThatWritesTheEndKeepsWhatTheFirstOneHasSaidOfTheJob) {
  const test::Scratch scratch;
  const std::string path = scratch / "status.json";
  StatusFile first(path, 500, std::chrono::milliseconds(0));
  first.running(1);
  first.plans_memory("1 GiB");
  first.spike("step 2: loss 9");
  first.stragglers({"rank 1 (n) computes 2.0 x the median"});
  first.running(2);
  auto j = nlohmann::json::parse(test::slurp(path));
  j["host"] = "n0", j["pid"] = 1;
  test::spill(path, j.dump());
  StatusFile other(path, 10);
  other.adopt(first.status().started);
  other.ended(ExitCode::kIo, 3, "rank 1: disk full");
  const auto ended = nlohmann::json::parse(test::slurp(path));
  for (const char* key :
       {"total_steps", "host", "pid", "first_started", "started", "spike", "stragglers", "planned_memory", "oom_kills"})
    EXPECT_EQ(ended[key], j[key]) << key;
  EXPECT_EQ(ended["code"], 74);
  EXPECT_EQ(ended["state"], "failed");
  EXPECT_EQ(ended["step"], 3);
  EXPECT_EQ(ended["message"], "rank 1: disk full");
  StatusFile next(path, 10);
  next.adopt("9999-01-01T00:00:00Z");  // the file is of a job before
  next.ended(ExitCode::kIo, 0);
  EXPECT_EQ(read_status(path).planned_memory, "");
  EXPECT_EQ(read_status(path).total_steps, 10);
}

TEST(StatusFile, RunningIsThrottledButTheEndIsNot) {
  const test::Scratch scratch;
  StatusFile file(scratch / "status.json", 100, std::chrono::hours(1));
  file.running(1);
  file.running(2);
  EXPECT_EQ(read_status(scratch / "status.json").step, 1);
  file.ended(ExitCode::kFinished, 3);
  EXPECT_EQ(read_status(scratch / "status.json").step, 3);
}

TEST(StatusFile, SpikesAndStragglersAreWrittenAtOnce) {
  const test::Scratch scratch;
  StatusFile file(scratch / "status.json", 100, std::chrono::hours(1));
  file.running(1);
  EXPECT_EQ(read_status(scratch / "status.json").spike, "");
  file.spike("step 2: loss 9");
  file.running(2);
  EXPECT_EQ(read_status(scratch / "status.json").spike, "step 2: loss 9");
  file.stragglers({"rank 1 \xff"});
  file.running(3);
  EXPECT_EQ(read_status(scratch / "status.json").stragglers.size(), 1u);
  file.stragglers({});
  file.running(4);
  EXPECT_TRUE(read_status(scratch / "status.json").stragglers.empty());
  file.stragglers({});  // no news
  file.running(5);
  EXPECT_EQ(read_status(scratch / "status.json").step, 4);
}

TEST(StatusFile, BytesThatAreNoUtf8DoNotBreakIt) {
  const test::Scratch scratch;
  StatusFile file(scratch / "status.json", 1);
  file.ended(ExitCode::kBadData, 0, "bad name \xff\xfe \"quoted\"");
  EXPECT_NE(read_status(scratch / "status.json").message.find("\"quoted\""), std::string::npos);
}

TEST(StatusFile, UnwritableIsAWarningOnly) {
  const test::Scratch scratch;
  StatusFile file(scratch / "absent/status.json", 1);
  EXPECT_NO_THROW(file.running(1));
  EXPECT_NO_THROW(file.ended(ExitCode::kFinished, 1));
  // What cannot be read either, as a file of a network file system at times.
  const std::string folder = scratch / "folder";
  std::filesystem::create_directory(folder);
  StatusFile unreadable(folder, 1, std::chrono::milliseconds(0));
  EXPECT_NO_THROW(unreadable.running(1));
  std::filesystem::remove(folder);
  EXPECT_NO_THROW(unreadable.running(1));
  EXPECT_EQ(read_status(folder).step, 1);
}

TEST(StatusFile, BrokenFilesAreRefused) {
  const test::Scratch scratch;
  for (const char* text : {R"({"code": 9e29})", R"({"step": -1e300})", R"({"oom_kills": {"a": 1e99}})"}) {
    test::spill(scratch / "large.json", text);
    EXPECT_THROW(read_status(scratch / "large.json"), Error) << text;
  }
  for (const char* text : {"", "{", "[1]", "{\"state\":5}", "{\"step\":\"x\"}", "{\"code\":\"x\"}"}) {
    test::spill(scratch / "status.json", text);
    try {
      read_status(scratch / "status.json");
      FAIL() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kBadData);
    }
  }
}

}  // namespace
}  // namespace thinwire::test_status_file
