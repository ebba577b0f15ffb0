// Cluster and machine files: what is read, and the one message for each thing that is wrong.
#include "engine/run/plan/cluster.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>

#include "engine/base/core/error.h"

namespace thinwire::cluster_test {
namespace {

std::string write(const std::string& text) {
  const std::string file = (std::filesystem::temp_directory_path() / "thinwire_cluster_test.json").string();
  std::ofstream(file) << text;
  return file;
}

const std::string kMachine = R"("machine": {"gflops": 100, "memory_gbytes_per_s": 10})";

TEST(ClusterFile, IsReadInTenLines) {
  const Cluster c =
      read_cluster(write(R"({"nodes": 8, "ranks_per_node": 4, "nodes_per_rack": 2, "memory_gb_per_rank": 2, // two
    "links": [{"between": "ranks", "gbps": 100}, {"between": "nodes", "gbps": 8, "latency_us": 5, "efficiency": 0.5},
              {"between": "racks", "oversubscription": 4}],)" +
                         kMachine + "}"));
  EXPECT_EQ(c.ranks(), 32);
  EXPECT_EQ(c.reach(0, 3), Reach::kNode);
  EXPECT_EQ(c.reach(3, 4), Reach::kNodes);
  EXPECT_EQ(c.reach(7, 8), Reach::kRacks);
  EXPECT_DOUBLE_EQ(c.links[1].bytes_per_second(), 0.5e9);
  EXPECT_DOUBLE_EQ(c.links[2].bytes_per_second(), 0.25e9);  // both nodes together, divided by four
  EXPECT_TRUE(c.machine.ranking_only);
  EXPECT_EQ(c.machine.cores, 4);                             // none stated: one for each rank of a node
  EXPECT_DOUBLE_EQ(c.machine.beside_plan, 3.0 * (1 << 20));  // not measured
}

TEST(ClusterFile, SaysWhatIsWrongAndWhere) {
  const std::string links = R"("links": [{"between": "nodes", "gbps": 1}], )";
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"{\"nodes\": 2,, }", ":1:13: "},
      {"", ":1:1: the text is empty"},
      {"[1]", ":1:1: an object { ... } is needed here"},
      {"{\"nodes\": 2, " + kMachine + "}", "links: is missing"},
      {"{" + links + "\"nodes\": 2}", "machine: is missing"},
      {"{" + links + "\"nodes\": 0, " + kMachine + "}", "nodes: 0 is outside of 1 to"},
      {"{" + links + "\n \"nodes\": 2.5, " + kMachine + "}", ":2:11: nodes: a whole number is needed"},
      {"{" + links + "\"nods\": 2, \"nodes\": 2, " + kMachine + "}", "nods: no such key; did you mean \"nodes\"?"},
      {"{" + links + "\"nodes\": \"2\", " + kMachine + "}", "nodes: a number is needed, not a string"},
      {"{\"nodes\": 2, \"links\": [{\"between\": \"planets\", \"gbps\": 1}], " + kMachine + "}",
       "links[0].between: \"planets\" is none of ranks"},
      {"{\"nodes\": 2, \"links\": [{\"between\": \"nodes\"}], " + kMachine + "}", "links[0].gbps: is missing"},
      {"{\"nodes\": 2, \"links\": [{\"between\": \"nodes\", \"gbps\": -1}], " + kMachine + "}",
       "links[0].gbps: -1 is outside"},
      {"{\"nodes\": 2, \"links\": [3], " + kMachine + "}", "links[0]: an object"},
      {"{" + links + "\"nodes\": 2, \"machine\": \"nowhere.json\"}", "nowhere.json does not exist"},
      {"{" + links + "\"nodes\": 2, \"machine\": {\"gflops\": 1}}", "machine.memory_gbytes_per_s: is missing"},
      {"{" + links +
           "\"nodes\": 2, \"machine\": {\"gflops\": 1, \"memory_gbytes_per_s\": 1, \"products\": {\"matmul\": [[5, 1], "
           "[4, 1]]}}}",
       "machine.products.matmul: work has to grow"},
      {"{" + links +
           "\"nodes\": 2, \"machine\": {\"gflops\": 1, \"memory_gbytes_per_s\": 1, \"products\": {\"gemm\": [[5, "
           "1]]}}}",
       "machine.products.gemm: is none of matmul, attention_forward"},
      {"{" + links +
           "\"nodes\": 2, \"machine\": {\"gflops\": 1, \"memory_gbytes_per_s\": 1, \"passes\": {\"matmul\": [[5, "
           "1]]}}}",
       "machine.passes.matmul: no op whose work is bytes"},
      {"{\"nodes\": 2, \"links\": [{\"between\": \"nodes\", \"gbps\": 1}, {\"between\": \"racks\", \"gbps\": 1}], " +
           kMachine + "}",
       "nodes_per_rack is missing"},
      // What is wrong with the machine hides nothing else.
      {"{" + links + "\"nodes\": 2, \"nods\": 2, \"machine\": {\"gflops\": 1}}", "nods: no such key"},
      {"{" + links + "\"nodes\": 2, \"stragglers\": [{\"rank\": 2}], " + kMachine + "}",
       "stragglers[0].rank: 2 is outside of 0 to 1"},
  };
  for (const auto& [text, message] : bad) {
    const std::string file = write(text);
    try {
      read_cluster(file);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what() << "\nwanted: " << message;
      EXPECT_EQ(std::string(error.what()).rfind(file + ":", 0), 0u) << error.what();
    }
  }
  for (const auto& [file, message] :
       {std::pair(std::string("/nowhere/cluster.json"), "there is no such file"),
        std::pair(std::filesystem::temp_directory_path().string(), "is a directory, a file is needed")}) {
    try {
      read_cluster(file);
      ADD_FAILURE() << "accepted: " << file;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      EXPECT_EQ(error.what(), file + ": " + message);
    }
  }
}

// A process may need less here than its plan says.
TEST(MachineFile, WhatWasMeasuredReplacesWhatIsAssumed) {
  const Machine m = read_machine(write(
      R"({"gflops": 100, "memory_gbytes_per_s": 10, "uneven": 0.03, "waiting_share": 0.12, "beside_plan_mib": -1.5, "calibrated": true})"));
  EXPECT_DOUBLE_EQ(m.uneven, 0.03);
  EXPECT_DOUBLE_EQ(m.waiting_share, 0.12);
  EXPECT_DOUBLE_EQ(m.beside_plan, -1.5 * (1 << 20));
  EXPECT_FALSE(m.ranking_only);
}

TEST(MachineFile, WhatMemoryCostsIsPerKibibyte) {
  const Machine m = read_machine(write(R"({"gflops": 100, "memory_gbytes_per_s": 10,
    "from_memory": {"encode_ns_per_kib": 1024, "residual_ns_per_kib": 2048, "decode_ns_per_kib": 512}})"));
  EXPECT_DOUBLE_EQ(m.from_memory.encode, 1e-9);
  EXPECT_DOUBLE_EQ(m.from_memory.residual, 2e-9);
  EXPECT_DOUBLE_EQ(m.from_memory.decode, 0.5e-9);
  EXPECT_EQ(m.from_memory.message, 0.0);
}

// Codecs were measured at 1 and at 64 MiB, messages at 4 and at 64: a rank that holds less than the one pays nothing.
TEST(MachineFile, WhatMemoryCostsDependsOnWhatARankHolds) {
  const FromMemory all = {.encode = 1.0, .residual = 2.0, .decode = 4.0, .message = 8.0};
  for (const auto& [mib, coding, sending] :
       {std::tuple(0.0, 0.0, 0.0), std::tuple(1.0, 0.0, 0.0), std::tuple(4.0, 1.0 / 3.0, 0.0),
        std::tuple(8.0, 0.5, 0.25), std::tuple(16.0, 2.0 / 3.0, 0.5), std::tuple(1e4, 1.0, 1.0)}) {
    const FromMemory some = all.of_rank(mib * 1048576.0);
    EXPECT_NEAR(some.encode, coding, 1e-12) << mib;
    EXPECT_NEAR(some.residual, 2.0 * coding, 1e-12) << mib;
    EXPECT_NEAR(some.decode, 4.0 * coding, 1e-12) << mib;
    EXPECT_NEAR(some.message, 8.0 * sending, 1e-12) << mib;
  }
}

TEST(MachineFile, RatesByWork) {
  RateCurve curve;
  curve.add(1e3, 1.0), curve.add(1e5, 3.0);
  EXPECT_DOUBLE_EQ(curve.at(1.0), 1.0);
  EXPECT_DOUBLE_EQ(curve.at(1e4), 2.0);
  EXPECT_DOUBLE_EQ(curve.at(1e9), 3.0);
  Machine m;
  m.codecs["block_int(bits=4,block=128)"] = {4, 4};
  m.codecs["block_int(bits=8,block=128)"] = {8, 8};
  m.any_codec = {1, 1};
  EXPECT_EQ(m.codec("block_int(bits=8,block=64) + error_feedback").encode, 8);
  EXPECT_EQ(m.codec("hadamard + block_int(bits=4,block=128)").encode, 4);
  EXPECT_EQ(m.codec("zfp(rate=8)").encode, 1);
  m.products["matmul"].alone.add(1e6, 2e9), m.products["matmul"].loaded.add(1e6, 1e9);
  m.loaded_slowdown = 1.25, m.flops = m.bytes_per_second = 1e9;
  EXPECT_DOUBLE_EQ(m.op_time("matmul", 2e9, 8.0).alone, 1.0);
  EXPECT_DOUBLE_EQ(m.op_time("matmul", 2e9, 8.0).loaded, 2.0);
  EXPECT_DOUBLE_EQ(m.op_time("another", 2e9, 8.0).loaded, 2.5);
}

}  // namespace
}  // namespace thinwire::cluster_test
