// Which shapes cuDNN's fused attention supports on which GPU, by cuDNN's own check, which needs no GPU: a change of the
// library, or of how we describe our tensors to it, shows without one.
#include <gtest/gtest.h>

#include <string>

#include "engine/base/ops/attention_fused.h"

namespace thinwire::attention_support_test {
namespace {

// The properties of a GPU in cuDNN's own form (device_properties_json writes them on a GPU).
std::string device_json(int sm) {
  struct Kind {
    int sm, processors, shared, shared_optin, l2;
    const char* name;
  };
  constexpr Kind kinds[] = {{80, 108, 49152, 166912, 41943040, "NVIDIA A100-SXM4-80GB"},
                            {90, 132, 49152, 232448, 52428800, "NVIDIA H100 80GB HBM3"},
                            {100, 148, 49152, 232448, 132644864, "NVIDIA B200"}};
  const Kind& k = sm == 80 ? kinds[0] : sm == 90 ? kinds[1] : kinds[2];
  const auto number = [](const char* name, long long value) {
    return "\"" + std::string(name) + "\": " + std::to_string(value) + ", ";
  };
  return "{" + std::string("\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], ") +
         number("regsPerBlock", 65536) + number("multiProcessorCount", k.processors) + number("warpSize", 32) +
         number("maxSharedMemoryPerBlock", k.shared) + number("maxSharedMemoryPerBlockOptin", k.shared_optin) +
         number("reservedSharedMemoryPerBlock", 1024) + number("maxRegistersPerSM", 65536) +
         number("maxCtasPerSM", 32) + number("maxThreadsPerBlock", 1024) + number("maxThreadsPerSM", 2048) +
         number("pciDeviceId", 0) + number("isTccDriver", 0) + number("supportCoopLaunch", 1) +
         number("totalGlobalMem", 85000000000LL) + number("smClockRateKHz", 1980000) +
         number("memClockRateKHz", 2619000) + number("l2CacheSize", k.l2) + number("cudaDeviceId", 0) +
         number("deviceVer", sm * 10) + number("driverVer", 13000) + "\"deviceName\": \"" + k.name + "\"}";
}

struct Wanted {
  AttentionQuestion question;
  const char* what;
};

TEST(AttentionSupport, TheShapesWeTrainRunFused) {
  const Wanted wanted[] = {
      {{.batch = 32, .length = 1024, .groups = 12, .head_dim = 64}, "GPT-2 124M"},
      {{.batch = 8, .length = 2048, .groups = 8, .heads_per_group = 4, .head_dim = 64}, "Llama 1B"},
      {{.batch = 4, .length = 2048, .groups = 8, .heads_per_group = 3, .head_dim = 128}, "Llama 3B"},
      {{.batch = 4, .length = 2048, .groups = 32, .head_dim = 128}, "Llama 7B"},
      {{.batch = 4, .length = 2048, .groups = 64, .head_dim = 96}, "GPT-NeoX 20B"},
      {{.batch = 2, .length = 1000, .groups = 6, .head_dim = 72}, "a ragged length"},
      // What attention_fused_cuda_test asks for on a GPU.
      {{.batch = 2, .length = 17, .groups = 2, .heads_per_group = 4, .head_dim = 64}, "a short length"},
      {{.batch = 2, .length = 63, .groups = 4, .heads_per_group = 3, .head_dim = 128}, "groups of three"},
      {{.batch = 4, .length = 1000, .groups = 8, .heads_per_group = 4, .head_dim = 128}, "the repeated one"},
      // Dropout, a mask of ours.
      {{.batch = 8, .length = 1024, .groups = 3, .head_dim = 80, .dropout = 0.1f}, "Optimus-CC 2.5B"},
      {{.batch = 8, .length = 1024, .groups = 3, .head_dim = 128, .dropout = 0.1f}, "Optimus-CC 8.3B"},
      {{.batch = 2, .length = 72, .groups = 2, .heads_per_group = 4, .head_dim = 64, .dropout = 0.1f}, "a short mask"}};
  for (int sm : {80, 90, 100}) {
    for (const Wanted& w : wanted) {
      for (DType dtype : {DType::bf16, DType::f16}) {
        AttentionQuestion q = w.question;
        q.dtype = dtype;
        EXPECT_EQ(attention_support_fault(sm, device_json(sm), q), "") << w.what << " forward, sm_" << sm;
        q.backward = true;
        for (bool deterministic : {true, false}) {
          q.deterministic = deterministic;
          const bool refused = sm == 100 && deterministic && q.dropout > 0.0f;
          EXPECT_EQ(attention_support_fault(sm, device_json(sm), q).empty(), !refused)
              << w.what << " backward, sm_" << sm << (deterministic ? ", deterministic" : "");
        }
      }
    }
  }
}

// Parts of a sequence: every query sees all keys, or they are causal, with as many keys as queries or more.
TEST(AttentionSupport, PartsOfLongSequencesRunFused) {
  struct Part {
    int64_t queries, keys;
    bool causal;
  };
  const Part parts[] = {{4096, 4096, false}, {4096, 8192, false}, {4096, 4096, true},  {4096, 8192, true},
                        {1000, 4096, false}, {1000, 1000, true},  {1000, 9192, true},  {18, 24, false},
                        {48, 24, false},     {8192, 8192, false}, {8192, 65536, true}, {8192, 8192, true}};
  for (int sm : {80, 90, 100}) {
    for (const Part& p : parts) {
      for (int64_t members : {1, 4}) {
        for (int64_t d : {64, 128}) {
          AttentionQuestion q{.length = p.queries, .groups = 16 / members, .heads_per_group = members, .head_dim = d};
          q.keys = p.keys, q.causal = p.causal, q.dtype = d == 64 ? DType::f16 : DType::bf16;
          const std::string what = std::to_string(p.queries) + " queries, " + std::to_string(p.keys) + " keys" +
                                   (p.causal ? " on a diagonal, " : ", ") + std::to_string(members) + " x " +
                                   std::to_string(d) + ", sm_" + std::to_string(sm);
          EXPECT_EQ(attention_support_fault(sm, device_json(sm), q), "") << what;
          q.backward = true;
          for (bool deterministic : {true, false}) {
            q.deterministic = deterministic;
            EXPECT_EQ(attention_support_fault(sm, device_json(sm), q), "")
                << what << " backward" << (deterministic ? ", deterministic" : "");
          }
        }
      }
    }
  }
}

// What goes to our own kernels, and why they have to be there.
TEST(AttentionSupport, WhatIsRefused) {
  EXPECT_NE(attention_support_fault(90, device_json(90), {.head_dim = 60}), "");
  EXPECT_NE(attention_support_fault(80, device_json(80), {.head_dim = 256, .backward = true}), "");
  EXPECT_EQ(attention_support_fault(90, device_json(90), {.head_dim = 256, .backward = true}), "");
}

}  // namespace
}  // namespace thinwire::attention_support_test
