// A dozen layouts of the mesh law for the fast part of the tests.
#include <gtest/gtest.h>

#include "tests/mesh/mesh_harness.h"

namespace thinwire::mesh::mesh_smoke_test {
namespace {

TEST(MeshSmoke, EachDimensionAlone) {
  for (const char* family : {"gpt2", "neox", "llama"}) {
    const Model model{.family = family};
    EXPECT_EQ(compare(model, {.data = 2}, 12, 3), "");
    EXPECT_EQ(compare(model, {.tensor = 2}, 12, 3), "");
    EXPECT_EQ(compare(model, {.tensor = 2, .sequence_parallel = true}, 12, 3), "");
    EXPECT_EQ(compare(model, {.pipeline = 2, .accumulation = 3}, 12, 3), "");
    EXPECT_EQ(compare(model, {.data = 2, .optimizer = "global"}, 12, 3), "");
    EXPECT_EQ(compare(model, {.data = 2, .weights = "global", .gradients = "global", .optimizer = "global"}, 12, 3),
              "");
  }
}

TEST(MeshSmoke, AllDimensionsTogether) {
  const Layout cube{.pipeline = 2, .data = 2, .tensor = 2, .optimizer = "global", .accumulation = 2};
  for (const char* family : {"gpt2", "neox", "llama"}) EXPECT_EQ(compare({.family = family}, cube, 12, 3), "");
}

// Parts that tensor ranks hold of a gradient are summed before it is rounded.
TEST(MeshSmoke, GradientsKeptInBf16) {
  for (const char* family : {"gpt2", "llama"}) {
    const Model model{.family = family, .dtype = "bf16"};
    for (bool sequence_parallel : {false, true})
      EXPECT_EQ(
          compare(model, {.tensor = 2, .sequence_parallel = sequence_parallel, .more = {"grad_dtype=bf16"}}, 4, 3), "");
  }
}

}  // namespace
}  // namespace thinwire::mesh::mesh_smoke_test
