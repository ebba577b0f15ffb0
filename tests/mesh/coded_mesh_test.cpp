// Every preset under layouts of all kinds: it trains about as the plain run does, sends exactly what is priced, keeps
// replicas equal, and repeats its bits. (The last three are checked inside of each run.)
#include <gtest/gtest.h>

#include <cmath>

#include "compression/presets.h"
#include "tests/mesh/mesh_harness.h"

namespace thinwire::mesh {
namespace {

constexpr int kSamples = 12, kSteps = 12;

std::vector<Layout> layouts() {
  return {{.data = 2},
          {.data = 4, .weights = "replicated", .gradients = "replicated", .optimizer = "global", .accumulation = 3},
          {.data = 4, .weights = "global", .gradients = "global", .optimizer = "global", .ranks_per_node = 2},
          {.tensor = 2},
          {.data = 2, .tensor = 2, .sequence_parallel = true, .optimizer = "global"},
          {.pipeline = 2, .schedule = "1f1b", .accumulation = 4},
          {.pipeline = 2, .data = 2, .schedule = "interleaved", .chunks = 2, .accumulation = 3},
          {.pipeline = 4, .schedule = "zb_h1", .accumulation = 6},
          {.pipeline = 2, .data = 2, .tensor = 2, .schedule = "1f1b", .optimizer = "global", .accumulation = 2}};
}

class CodedMesh : public testing::TestWithParam<std::string> {};

TEST_P(CodedMesh, TrainsUnderEveryLayout) {
  const std::string preset = GetParam();
  for (Layout layout : layouts()) {
    // Momentum is sent whole: every rank keeps all of it.
    if (preset == "one_bit_adam" && layout.optimizer != "replicated") continue;
    const Curve plain = run({}, layout, kSamples, kSteps);
    // A preset may bring a placement of its own, which an explicit one would override.
    layout.more = {"compression=" + preset};
    // A tenth of twelve updates is no warm-up for a variance that is frozen behind it.
    if (preset == "one_bit_adam") layout.more.push_back("compression.dp.gradient.warmup_steps=6");
    SCOPED_TRACE(preset + " " + layout.name());
    Curve coded;
    ASSERT_NO_THROW(coded = run({}, layout, kSamples, kSteps));
    const Curve again = run({}, layout, kSamples, kSteps);
    EXPECT_EQ(coded, again);
    // It learns: at least half of what the plain run has learned, and never blows up.
    const double gained = plain.loss.front() - plain.loss.back();
    EXPECT_TRUE(std::isfinite(coded.loss.back()));
    EXPECT_LT(coded.loss.back(), coded.loss.front() - 0.5 * gained);
  }
}

std::vector<std::string> names() {
  std::vector<std::string> list;
  for (const Preset& p : presets()) list.push_back(p.name);
  return list;
}

INSTANTIATE_TEST_SUITE_P(Presets, CodedMesh, testing::ValuesIn(names()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace thinwire::mesh
