// The mesh law: 10 steps under each of more than 80 layouts and three families equal one rank's. Each layout takes one
// of the families in turn, and all three in `scripts/test.sh full`.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "compression/site.h"
#include "tests/mesh/mesh_harness.h"
#include "tests/support/thorough.h"

namespace thinwire::mesh::mesh_law_test {
namespace {

constexpr int kSamples = 24, kSteps = 10;
constexpr const char* kFamilies[] = {"gpt2", "neox", "llama"};

// Whether the model's family is the one that this layout takes.
bool taken(const Model& model, const Layout& layout) {
  const auto family = static_cast<uint64_t>(std::ranges::find(kFamilies, model.family) - std::begin(kFamilies));
  const std::string kind = model.dtype + std::to_string(model.dropout) + std::to_string(model.documents);
  return test::in_turn(std::hash<std::string>()(layout.name() + kind), family, std::size(kFamilies));
}

// Expects one rank's numbers.
void expect_same(const Model& model, const Layout& layout, int samples, int steps) {
  if (!taken(model, layout)) return;
  EXPECT_EQ(compare(model, layout, samples, steps), "");
}

// Expects other numbers, not an error.
void expect_different(const Model& model, const Layout& layout, int samples, int steps) {
  const std::string what = compare(model, layout, samples, steps);
  EXPECT_NE(what.find("(one rank "), std::string::npos) << what;
}

std::vector<Layout> table() {
  std::vector<Layout> list;
  const auto add = [&](Layout l) { list.push_back(std::move(l)); };
  // One dimension.
  for (int n : {2, 3, 4}) {
    add({.tensor = n});
    add({.tensor = n, .sequence_parallel = true});
    add({.data = n});
    for (const char* schedule : {"gpipe", "1f1b", "zb_h1"}) {
      add({.pipeline = n, .schedule = schedule, .accumulation = 6});
    }
    add({.pipeline = n, .schedule = "1f1b", .accumulation = 1});  // fewer micro-batches than stages
    add({.pipeline = n, .schedule = "zb_h1", .accumulation = 2});
  }
  add({.pipeline = 2, .schedule = "interleaved", .chunks = 2, .accumulation = 4});
  add({.pipeline = 2, .schedule = "interleaved", .chunks = 2, .accumulation = 3});
  // Every placement, with 2, 4 and 8 data ranks on pretended nodes.
  struct Levels {
    const char *w, *g, *o, *s;
  };
  const Levels placements[] = {{"replicated", "replicated", "global", ""},
                               {"replicated", "global", "global", ""},
                               {"global", "global", "global", ""},
                               {"global", "global", "global", "node"},
                               {"pair", "node", "global", ""},
                               {"node", "node", "node", ""},
                               {"replicated", "node", "global", ""},
                               {"replicated", "replicated", "node", ""},
                               {"pair", "pair", "pair", ""},
                               {"global", "global", "global", "pair"},
                               {"node", "global", "global", ""},
                               {"replicated", "pair", "node", ""}};
  for (const Levels& p : placements) {
    add({.data = 4,
         .weights = p.w,
         .gradients = p.g,
         .optimizer = p.o,
         .secondary = p.s,
         .accumulation = 2,
         .ranks_per_node = 2});
    add({.data = 8,
         .weights = p.w,
         .gradients = p.g,
         .optimizer = p.o,
         .secondary = p.s,
         .accumulation = 3,
         .ranks_per_node = 4});
  }
  for (const char* hold : {"unit", "micro_batch", "step"})
    add({.data = 3,
         .weights = "global",
         .gradients = "global",
         .optimizer = "global",
         .hold = hold,
         .accumulation = 2});
  // Placements with tensor and pipeline parallelism.
  for (int stage = 1; stage <= 3; ++stage) {
    const char* g = stage >= 2 ? "global" : "replicated";
    const char* w = stage >= 3 ? "global" : "replicated";
    add({.data = 2, .tensor = 2, .weights = w, .gradients = g, .optimizer = "global", .accumulation = 2});
    add({.data = 2, .tensor = 3, .sequence_parallel = true, .weights = w, .gradients = g, .optimizer = "global"});
    for (const char* schedule : {"gpipe", "1f1b", "zb_h1"}) {
      add({.pipeline = 2,
           .data = 2,
           .schedule = schedule,
           .weights = w,
           .gradients = g,
           .optimizer = "global",
           .accumulation = 3});
      add({.pipeline = 2,
           .data = 2,
           .tensor = 2,
           .sequence_parallel = stage == 2,
           .schedule = schedule,
           .weights = w,
           .gradients = g,
           .optimizer = "global",
           .accumulation = 2});
    }
    add({.pipeline = 2,
         .data = 2,
         .schedule = "interleaved",
         .chunks = 2,
         .weights = w,
         .gradients = g,
         .optimizer = "global",
         .accumulation = 3});
  }
  // The tied embedding, its two ways.
  for (const char* way : {"fused", "two_step"}) {
    add({.pipeline = 2, .data = 2, .embedding = way, .accumulation = 2});
    add({.pipeline = 3, .data = 2, .optimizer = "global", .embedding = way, .accumulation = 2});
    add({.pipeline = 2,
         .data = 4,
         .weights = "pair",
         .gradients = "node",
         .optimizer = "global",
         .embedding = way,
         .accumulation = 1,
         .ranks_per_node = 2});
    add({.pipeline = 2,
         .data = 2,
         .tensor = 2,
         .weights = "global",
         .gradients = "global",
         .optimizer = "global",
         .embedding = way,
         .accumulation = 3});
  }
  // Recompute.
  for (const char* level : {"selective", "full"}) {
    add({.tensor = 4, .recompute = level});
    add({.tensor = 2, .sequence_parallel = true, .accumulation = 2, .recompute = level});
    add({.pipeline = 2, .schedule = "zb_h1", .accumulation = 4, .recompute = level});
    add({.pipeline = 2,
         .data = 2,
         .tensor = 2,
         .schedule = "1f1b",
         .weights = "global",
         .gradients = "global",
         .optimizer = "global",
         .accumulation = 2,
         .recompute = level});
  }
  add({.pipeline = 3, .accumulation = 4, .partition = "parameters"});
  add({.pipeline = 4, .tensor = 2, .sequence_parallel = true, .schedule = "zb_h1", .accumulation = 4});
  // Placements by nodes where a node holds tensor ranks, too (ranks lie stage by stage, data ranks in them, tensor
  // ranks innermost): a secondary copy, MiCS, and weights < gradients < optimizer.
  const auto nodes = [&](Layout l, const Levels& p, int per_node, int accumulation) {
    l.weights = p.w, l.gradients = p.g, l.optimizer = p.o, l.secondary = p.s;
    l.ranks_per_node = per_node, l.accumulation = accumulation;
    add(std::move(l));
  };
  const Levels second{"global", "global", "global", "node"}, mics{"node", "node", "node", ""},
      three{"pair", "node", "global", ""};
  nodes({.data = 4, .tensor = 2}, second, 4, 3);
  nodes({.data = 4, .tensor = 2, .sequence_parallel = true, .hold = "micro_batch"}, mics, 4, 2);
  nodes({.data = 8, .tensor = 2}, three, 8, 1);  // widths 2, 4 and 8 need that many
  nodes({.pipeline = 2, .data = 4, .schedule = "1f1b", .embedding = "fused"}, second, 2, 3);
  nodes({.pipeline = 2, .data = 4, .schedule = "zb_h1", .embedding = "fused"}, mics, 2, 2);
  nodes({.pipeline = 2, .data = 4, .schedule = "interleaved", .chunks = 2, .embedding = "two_step"}, three, 2, 3);
  // Each rank of such a group is alone on its node: the secondary copy is all of the weights.
  nodes({.pipeline = 2, .data = 2, .tensor = 2, .schedule = "interleaved", .chunks = 2}, second, 2, 4);
  nodes({.pipeline = 2, .data = 2, .tensor = 2, .schedule = "1f1b"}, {"global", "global", "global", "node"}, 1, 2);
  return list;
}

// Without sequence parallelism, where tensor ranks send pipeline messages in parts: ragged ones, in all schedules.
std::vector<Layout> in_parts() {
  return {{.pipeline = 2, .tensor = 2, .schedule = "1f1b", .accumulation = 4},
          {.pipeline = 2, .tensor = 3, .schedule = "gpipe", .accumulation = 3},
          // One stage's tensor ranks on two nodes, in many pieces.
          {.pipeline = 2,
           .tensor = 2,
           .schedule = "1f1b",
           .accumulation = 4,
           .ranks_per_node = 3,
           .more = {"communication.chunk_bytes=256"}},
          {.pipeline = 3, .tensor = 4, .schedule = "zb_h1", .accumulation = 6},
          {.pipeline = 2, .tensor = 2, .schedule = "interleaved", .chunks = 2, .accumulation = 4, .recompute = "full"},
          {.pipeline = 2,
           .data = 2,
           .tensor = 2,
           .schedule = "interleaved",
           .chunks = 2,
           .weights = "global",
           .gradients = "global",
           .optimizer = "global",
           .accumulation = 2,
           .recompute = "selective"},
          {.pipeline = 2, .tensor = 2, .context = 2, .schedule = "1f1b", .accumulation = 4},
          {.pipeline = 2, .tensor = 3, .context = 2, .schedule = "zb_h1", .accumulation = 2, .recompute = "full"},
          {.pipeline = 2, .tensor = 3, .context = 3, .schedule = "1f1b", .accumulation = 24}};  // 8 rows for 3 ranks
}

class MeshLaw : public testing::TestWithParam<const char*> {};

TEST_P(MeshLaw, EveryLayoutGivesTheNumbersOfOneRank) {
  const std::vector<Layout> layouts = table();
  ASSERT_GE(layouts.size(), 80u);
  for (const Layout& layout : layouts) expect_same({.family = GetParam()}, layout, kSamples, kSteps);
}
INSTANTIATE_TEST_SUITE_P(Families, MeshLaw, testing::ValuesIn(kFamilies));

// Parts that come together are the bits that one message would have been, and fewer bytes between stages.
TEST(MeshLawMore, PipelineMessagesInParts) {
  for (Layout layout : in_parts()) {
    SCOPED_TRACE(layout.name());
    EXPECT_EQ(compare({.family = "llama"}, layout, kSamples, 3), "");
    const Model model{.family = "neox", .dtype = "bf16", .dropout = 0.1};
    const Curve parts = run(model, layout, kSamples, 3);
    Layout off = layout;
    off.more = {"scatter_gather_tensors_in_pipeline=false"};
    const Curve whole = run(model, off, kSamples, 3);
    EXPECT_EQ(parts.loss, whole.loss);
    EXPECT_EQ(parts.norm, whole.norm);
    const double t = layout.tensor;
    const std::pair<Site, Site> ways[] = {{Site::kPpForward, Site::kTpForward}, {Site::kPpBackward, Site::kTpBackward}};
    for (const auto& [between, around] : ways) {
      const auto p = static_cast<size_t>(between), a = static_cast<size_t>(around);
      EXPECT_EQ(parts.wire[p] * t, whole.wire[p]) << name_of(between);
      EXPECT_EQ(parts.wire[a] - whole.wire[a], parts.wire[p] * (t - 1.0)) << name_of(around);
    }
  }
}

TEST(MeshLawMore, ThreeChunksSevenLayersOtherTying) {
  const Layout three{.pipeline = 2, .schedule = "interleaved", .chunks = 3, .accumulation = 4};
  for (const char* family : {"gpt2_untied", "llama_tied", "neox"})
    EXPECT_EQ(compare({.family = family, .layers = 7}, three, kSamples, kSteps), "");
  const Layout deep{
      .pipeline = 3, .data = 2, .schedule = "interleaved", .chunks = 2, .optimizer = "global", .accumulation = 4};
  for (const char* family : {"gpt2", "llama_tied"})
    EXPECT_EQ(compare({.family = family, .layers = 7}, deep, kSamples, kSteps), "");
}

// OLMo's norms, with a tied head, which then has no unit of its own. The first step is that of norms with gain 1 and
// shift 0; every layout gives one rank's numbers.
TEST(MeshLawMore, NormsWithoutParameters) {
  const Model olmo{.family = "olmo", .layers = 4};
  const FirstUpdate trained = first_update({.family = "olmo_trained", .layers = 4}, {}, 12);
  Tensors weights = trained.before;
  std::erase_if(weights, [](const auto& named) { return named.first.find("norm") != std::string::npos; });
  const FirstUpdate bare = first_update(olmo, {}, 12, 0, weights);
  EXPECT_EQ(bare.loss, trained.loss);
  EXPECT_EQ(bare.gradient.size(), weights.size());
  for (const auto& [name, gradient] : bare.gradient) EXPECT_EQ(gradient, trained.gradient.at(name)) << name;
  for (const Layout& layout :
       {Layout{.tensor = 2, .sequence_parallel = true}, Layout{.pipeline = 3, .accumulation = 4},
        Layout{.pipeline = 3, .accumulation = 4, .partition = "parameters"}, zero(3, {.data = 3, .accumulation = 2}),
        zero(2, {.pipeline = 2, .data = 2, .schedule = "zb_h1", .accumulation = 3}),
        zero(1, {.pipeline = 2, .data = 2, .schedule = "interleaved", .chunks = 2, .accumulation = 3})})
    EXPECT_EQ(compare(olmo, layout, 12, 4), "");
}

// Masks are keyed by sample, layer and global element: cutting the model does not change them.
TEST(MeshLawMore, Dropout) {
  for (const char* family : kFamilies) {
    const Model model{.family = family, .layers = 3, .dropout = 0.2};
    expect_same(model, {.data = 2, .tensor = 2, .sequence_parallel = true}, 12, 5);
    expect_same(model, {.pipeline = 3, .tensor = 2, .accumulation = 2, .recompute = "full"}, 12, 5);
    expect_same(model, {.pipeline = 2, .schedule = "zb_h1", .accumulation = 3, .recompute = "selective"}, 12, 5);
  }
}

// Documents of their own, and a loss over what is left of all tokens of a step: another number of them on every rank
// and in every micro-batch.
TEST(MeshLawMore, Documents) {
  for (const char* family : kFamilies) {
    const Model model{.family = family, .layers = 4, .documents = true};
    for (const Layout& l :
         {Layout{.data = 3, .accumulation = 2}, Layout{.data = 2, .tensor = 2, .sequence_parallel = true},
          Layout{.pipeline = 3, .tensor = 2, .accumulation = 2, .recompute = "full"},
          Layout{.pipeline = 2, .data = 2, .schedule = "zb_h1", .accumulation = 3, .recompute = "selective"},
          Layout{.data = 4,
          .weights = "global",
          .gradients = "global",
          .optimizer = "global",
          .accumulation = 2,
          .recompute = "selective"},
          Layout{.pipeline = 2, .data = 2, .schedule = "interleaved", .chunks = 2, .accumulation = 3}}) {
      expect_same(model, l, 12, 5);
    }
    // A mean of micro-batches' means is something else.
    expect_different(model, {.data = 3, .more = {"calculate_per_token_loss=false"}}, 12, 5);
  }
}

// Sequences cut over ranks, with every other cut; 24 tokens over 3 and 5 ranks are uneven. Dropout is the same bits
// under every cut.
TEST(MeshLawMore, ContextParallel) {
  const Layout layouts[] = {
      Layout{.context = 2},
      Layout{.context = 3, .accumulation = 2, .recompute = "selective"},
      Layout{.context = 5},
      Layout{.data = 2, .context = 2, .optimizer = "global"},
      Layout{.tensor = 2, .context = 2, .sequence_parallel = true, .recompute = "full"},
      Layout{.pipeline = 2, .context = 2, .schedule = "zb_h1", .accumulation = 3},
      Layout{.pipeline = 2, .context = 3, .schedule = "interleaved", .chunks = 2, .accumulation = 3},
      Layout{.data = 2,
             .context = 2,
             .weights = "global",
             .gradients = "global",
             .optimizer = "global",
             .accumulation = 2},
      Layout{.data = 2,
             .context = 2,
             .weights = "pair",
             .gradients = "pair",
             .optimizer = "global",
             .recompute = "full",
             .ranks_per_node = 2},
      Layout{.pipeline = 2, .tensor = 2, .context = 2, .accumulation = 2}};
  for (const char* family : kFamilies) {
    Model model{.family = family, .layers = 4};
    for (const Layout& l : layouts) expect_same(model, l, 12, 4);
    model.dropout = 0.1;
    for (const Layout& l : {layouts[1], layouts[2], layouts[4], layouts[7]}) expect_same(model, l, 12, 4);
    model = {.family = family, .layers = 4, .documents = true};
    for (const Layout& l : {layouts[0], layouts[2], layouts[3], layouts[5]}) expect_same(model, l, 12, 4);
    model = {.family = family, .layers = 4, .window = 5};
    for (const Layout& l : {layouts[0], layouts[2], layouts[4]}) expect_same(model, l, 12, 4);
  }
}

// Keys and values that go around: every layout above, and with 4 ranks, 7 of uneven runs, and 16 bits.
TEST(MeshLawMore, ContextParallelRing) {
  Layout layouts[] = {Layout{.context = 2},
                      Layout{.context = 3, .accumulation = 2, .recompute = "selective"},
                      Layout{.context = 7},
                      Layout{.context = 4, .recompute = "full"},
                      Layout{.data = 2, .context = 2, .optimizer = "global"},
                      Layout{.tensor = 2, .context = 2, .sequence_parallel = true, .recompute = "full"},
                      Layout{.pipeline = 2, .context = 3, .schedule = "interleaved", .chunks = 2, .accumulation = 3},
                      Layout{.data = 2,
                             .context = 2,
                             .weights = "global",
                             .gradients = "global",
                             .optimizer = "global",
                             .accumulation = 2},
                      Layout{.data = 2,
                             .context = 2,
                             .weights = "pair",
                             .gradients = "pair",
                             .optimizer = "global",
                             .recompute = "full",
                             .ranks_per_node = 2},
                      Layout{.pipeline = 2, .tensor = 2, .context = 2, .schedule = "zb_h1", .accumulation = 2}};
  for (Layout& l : layouts) l.more = {"cp_comm_type=p2p"};
  for (const char* family : kFamilies) {
    for (const Layout& l : layouts) expect_same({.family = family, .layers = 4}, l, 12, 4);
    const Model dropped{.family = family, .layers = 4, .dropout = 0.1};
    for (const Layout& l : {layouts[1], layouts[2], layouts[5]}) expect_same(dropped, l, 12, 4);
    const Model masked{.family = family, .layers = 4, .documents = true, .window = 6};
    for (const Layout& l : {layouts[2], layouts[3], layouts[7]}) expect_same(masked, l, 12, 4);
    const Model narrow{.family = family, .layers = 4, .dtype = "bf16"};
    for (const Layout& l : {layouts[0], layouts[6]}) expect_same(narrow, l, 12, 4);
  }
}

// Layers take some tokens at a time: chunks of the 24 that divide them, that do not, and of the runs of a cut.
TEST(MeshLawMore, ChunksOfTokens) {
  Layout layouts[] = {
      Layout{.accumulation = 2},
      Layout{.tensor = 2, .recompute = "full"},
      Layout{.data = 2, .tensor = 3, .optimizer = "global", .accumulation = 2, .recompute = "selective"},
      Layout{.pipeline = 3, .accumulation = 3, .recompute = "full"},
      Layout{.pipeline = 2, .data = 2, .schedule = "interleaved", .chunks = 2, .accumulation = 3},
      Layout{.data = 4, .weights = "global", .gradients = "global", .optimizer = "global", .recompute = "full"},
      Layout{.context = 3, .accumulation = 2, .recompute = "full"},
      Layout{.pipeline = 2,
             .data = 2,
             .tensor = 2,
             .weights = "global",
             .gradients = "global",
             .optimizer = "global",
             .recompute = "full"},
      Layout{.data = 2, .context = 2, .weights = "global", .gradients = "global", .optimizer = "global"},
      Layout{.pipeline = 2, .tensor = 2, .context = 2, .recompute = "selective"}};
  int tokens = 0;
  for (Layout& l : layouts)
    l.more = {"sequence_chunk_size=" + std::to_string(std::vector{8, 5, 7, 1, 3, 11}[tokens++ % 6])};
  for (const char* family : kFamilies) {
    for (size_t i = 0; i < std::size(layouts); ++i) {
      Model model{.family = family, .layers = 4};
      if (i % 2 == 0) model.documents = true, model.window = 6;
      if (i % 2 == 1) model.dropout = 0.1;
      expect_same(model, layouts[i], 12, 3);
    }
    expect_same({.family = family, .layers = 4, .dtype = "bf16"}, layouts[8], 12, 3);
  }
}

// Waiting on disk changes no bit of any layout, and moves what --dry-run says (the harness counts).
TEST(MeshLawMore, OffloadChangesNoBit) {
  const std::string place = "run_dir=" + testing::TempDir();
  Layout layouts[] = {Layout{.tensor = 2, .accumulation = 2, .recompute = "full"},
                      Layout{.pipeline = 2, .data = 2, .schedule = "interleaved", .chunks = 2, .accumulation = 3},
                      Layout{.pipeline = 2, .schedule = "gpipe", .accumulation = 3, .recompute = "full"},
                      Layout{.data = 2,
                             .context = 2,
                             .weights = "global",
                             .gradients = "global",
                             .optimizer = "global",
                             .recompute = "selective"}};
  for (const char* family : kFamilies) {
    for (Layout l : layouts) {
      const Model model{.family = family, .layers = 4, .dropout = 0.1, .window = 9};
      if (!taken(model, l)) continue;
      l.more = {"sequence_chunk_size=4", place};
      const Curve memory = run(model, l, 12, 2);
      l.more.push_back("activation_offload=disk");
      EXPECT_TRUE(run(model, l, 12, 2) == memory) << family << " " << l.name();
    }
  }
}

// All tokens of a share of the heads instead.
TEST(MeshLawMore, ContextParallelByHeads) {
  Layout layouts[] = {Layout{.context = 2},
                      Layout{.context = 3, .accumulation = 2, .recompute = "selective"},
                      Layout{.data = 2, .context = 4, .optimizer = "global"},
                      Layout{.tensor = 2, .context = 2, .sequence_parallel = true, .recompute = "full"},
                      Layout{.pipeline = 2, .context = 2, .schedule = "zb_h1", .accumulation = 3},
                      Layout{.data = 2,
                             .context = 2,
                             .weights = "global",
                             .gradients = "global",
                             .optimizer = "global",
                             .accumulation = 2}};
  for (Layout& l : layouts) l.more = {"cp_comm_type=a2a"};
  for (const char* family : kFamilies) {
    for (const Layout& l : layouts) {
      expect_same({.family = family, .layers = 4}, l, 12, 4);
      expect_same({.family = family, .layers = 4, .dropout = 0.1}, l, 12, 4);
      expect_same({.family = family, .layers = 4, .documents = true, .window = 6}, l, 12, 4);
    }
  }
}

TEST(MeshLawMore, Bf16) {
  for (const char* family : kFamilies) {
    const Model model{.family = family, .dtype = "bf16"};
    for (const Layout& l : {Layout{.data = 2, .optimizer = "global"}, Layout{.tensor = 2, .sequence_parallel = true},
                            Layout{.pipeline = 2,
                            .data = 2,
                            .weights = "global",
                            .gradients = "global",
                            .optimizer = "global",
                            .accumulation = 2}}) {
      expect_same(model, l, 12, 5);
    }
  }
}

// Same layout, same bits: nothing depends on which thread was faster.
TEST(MeshLawMore, SameBitsAgain) {
  const Layout cube{.pipeline = 2,
                    .data = 2,
                    .tensor = 2,
                    .sequence_parallel = true,
                    .weights = "global",
                    .gradients = "global",
                    .optimizer = "global",
                    .accumulation = 3};
  const Curve first = run({}, cube, 12, 5);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run({}, cube, 12, 5) == first);
}

// The comparison can fail: another learning rate is another curve, and in 16 bits other weights are another loss.
TEST(MeshLawMore, TheComparisonSeesADifference) {
  expect_different({}, {.data = 2, .more = {"optimizer.params.lr=1.01e-3"}}, kSamples, kSteps);
  expect_different({.dtype = "bf16"}, {.data = 2, .more = {"init_method_std=0.4"}}, kSamples, 1);
}

}  // namespace
}  // namespace thinwire::mesh::mesh_law_test
