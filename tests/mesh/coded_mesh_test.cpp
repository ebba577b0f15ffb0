// Every preset under layouts of all kinds: it trains about as the plain run does, sends exactly what is priced, keeps
// replicas equal, and repeats its bits. (The last three are checked inside of each run.) Each layout takes a third of
// the presets, and all of them in `scripts/test.sh full`.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "compression/site.h"
#include "engine/run/config/presets.h"
#include "tests/mesh/mesh_harness.h"
#include "tests/support/thorough.h"

namespace thinwire::mesh::coded_mesh_test {
namespace {

constexpr int kSamples = 12, kSteps = 12;

std::vector<Layout> layouts() {
  return {{.data = 2},
          {.data = 4, .weights = "replicated", .gradients = "replicated", .optimizer = "global", .accumulation = 3},
          {.data = 4, .weights = "global", .gradients = "global", .optimizer = "global", .ranks_per_node = 2},
          {.tensor = 2},
          {.data = 2, .tensor = 2, .sequence_parallel = true, .optimizer = "global"},
          {.data = 2, .context = 2, .optimizer = "global"},
          {.pipeline = 2, .schedule = "1f1b", .accumulation = 4},
          {.pipeline = 2, .data = 2, .schedule = "interleaved", .chunks = 2, .accumulation = 3},
          {.pipeline = 4, .schedule = "zb_h1", .accumulation = 6},
          {.pipeline = 2, .data = 2, .tensor = 2, .schedule = "1f1b", .optimizer = "global", .accumulation = 2}};
}

bool is_variant(const std::string& preset) {
  for (const char* base : {"mzhybrid_", "zhybrid_", "powersgd_", "loco_", "one_bit_adam_", "optimus_cc_cb_fe_sc_"})
    if (preset.starts_with(base)) return true;
  return false;
}

// Whether a preset codes all that is sent, in any layout.
bool codes_all(const std::string& preset) {
  return std::ranges::any_of(std::vector<std::string>{"bf16_wire", "naive_zfp", "zhybrid", "thinwire"},
                             [&](const std::string& one) { return one == preset; });
}

double bytes_of(const Curve& curve) {
  return std::accumulate(curve.wire.begin(), curve.wire.end(), 0.0);
}

// What a layout does without compression is the same beside every preset.
const Curve& plain_run(const Layout& layout) {
  static std::map<std::string, Curve> known;
  const auto [at, fresh] = known.try_emplace(layout.name());
  if (fresh) at->second = run({}, layout, kSamples, kSteps);
  return at->second;
}

class CodedMesh : public testing::TestWithParam<std::string> {};

TEST_P(CodedMesh, TrainsUnderEveryLayout) {
  const std::string preset = GetParam();
  const std::vector<std::string> all = preset_names();
  const auto number = static_cast<uint64_t>(std::ranges::find(all, preset) - all.begin());
  uint64_t place = 0;
  for (Layout layout : layouts()) {
    // Momentum is sent whole: every rank keeps all of it.
    if (preset.starts_with("one_bit_adam") && layout.optimizer != "replicated") continue;
    // Variants of another preset, by a number or two: the layout with all dimensions (momentum: the first).
    if (is_variant(preset) && layout.ranks() != (preset == "one_bit_adam_20" ? 2 : 8)) continue;
    if (!is_variant(preset) && !test::in_turn(place++, number, 3)) continue;
    const Curve& plain = plain_run(layout);
    // A preset may bring a placement of its own, which an explicit one would override.
    layout.more = {"compression=" + preset};
    // A tenth of twelve updates is no warm-up for a variance that is frozen behind it.
    if (preset.starts_with("one_bit_adam")) layout.more.push_back("compression.dp.gradient.warmup_steps=6");
    SCOPED_TRACE(preset + " " + layout.name());
    Curve coded;
    ASSERT_NO_THROW(coded = run({}, layout, kSamples, kSteps));
    // Once more, with checksums: they are priced like all else, and change no bit.
    layout.more.push_back(layout.ranks_per_node > 0 ? "checksum=between_nodes" : "checksum=true");
    const Curve again = run({}, layout, kSamples, kSteps);
    EXPECT_EQ(coded.loss, again.loss);
    EXPECT_EQ(coded.norm, again.norm);
    EXPECT_GT(bytes_of(again), bytes_of(coded));
    // A price that forgets the codec, too, would be met.
    if (codes_all(preset)) {
      EXPECT_LT(bytes_of(coded), bytes_of(plain));
      EXPECT_NE(coded.loss, plain.loss);
    }
    // It learns: at least half of what the plain run has learned, and never blows up.
    const double gained = plain.loss.front() - plain.loss.back();
    EXPECT_TRUE(std::isfinite(coded.loss.back()));
    EXPECT_LT(coded.loss.back(), coded.loss.front() - 0.5 * gained);
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, CodedMesh, testing::ValuesIn(preset_names()),
                         [](const auto& info) { return info.param; });

// Rules for the messages that would make a step longer. Which those are follows from the plan, so what has to hold
// is that the two ends agree (a sender that codes what the receiver takes as it is hangs, and the watchdog ends it),
// that some messages are coded and some are not, that all of them shrink by the same, and what every preset has to.
TEST(CodedMeshCritical, CodesSomeOfTheMessagesOfARealPipeline) {
  for (Layout layout :
       {Layout{.pipeline = 4, .data = 2, .schedule = "1f1b", .accumulation = 6},
        Layout{.pipeline = 2, .tensor = 2, .sequence_parallel = true, .schedule = "zb_h1", .accumulation = 6}}) {
    SCOPED_TRACE(layout.name());
    const Curve plain = run({}, layout, kSamples, kSteps);
    const auto coded = [&](const std::string& which) {
      Layout l = layout;
      l.more = {"compression.pp.backward.codec=low_rank",
                "compression.pp.backward.rank=4",
                "compression.pp.backward.residual=lazy",
                "compression.pp.backward.select.micro_batches=" + which,
                "compression.pp.forward.codec=block_int",
                "compression.pp.forward.bits=8",
                "compression.pp.forward.select.micro_batches=" + which};
      return run({}, l, kSamples, kSteps);
    };
    const Curve all = coded("all"), critical = coded("critical");
    EXPECT_EQ(coded("critical"), critical);
    const double gained = plain.loss.front() - plain.loss.back();
    EXPECT_LT(critical.loss.back(), critical.loss.front() - 0.5 * gained);
    for (const Site site : {Site::kPpForward, Site::kPpBackward}) {
      SCOPED_TRACE(name_of(site));
      const auto at = static_cast<size_t>(site);
      const double messages = (layout.pipeline - 1) * layout.accumulation * layout.data * layout.tensor;
      const double saved = (plain.wire.at(at) - all.wire.at(at)) / messages;
      EXPECT_GT(saved, 0.0);
      const double some = (plain.wire.at(at) - critical.wire.at(at)) / saved;
      EXPECT_EQ(some, std::round(some));
      // At least each edge's first activation, and its last gradient: nothing hides the fill and the drain.
      EXPECT_GE(some, messages / layout.accumulation);
      EXPECT_LT(some, messages);
      std::printf("%s: %g of %g messages coded\n", std::string(name_of(site)).c_str(), some, messages);
    }
  }
}

// Tensor ranks code a part of each message: fewer bytes by their number, residuals as large as the parts, and what
// comes together is the same everywhere (each run compares replicas, bytes with prices, states with plans, and bits of
// two).
TEST(CodedMeshParts, PipelineMessagesOfTensorRanks) {
  constexpr int kFew = 6;
  for (Layout layout : {Layout{.pipeline = 3, .tensor = 2, .schedule = "zb_h1", .accumulation = 3},
                        Layout{.pipeline = 2, .tensor = 3, .schedule = "interleaved", .chunks = 2, .accumulation = 2},
                        Layout{.pipeline = 2, .tensor = 2, .context = 2, .accumulation = 2, .recompute = "full"}}) {
    SCOPED_TRACE(layout.name());
    const Curve plain = run({}, layout, kSamples, kFew);
    for (const std::string codec :
         {R"({"codec": "block_int", "bits": 8, "rounding": "stochastic"})",
          R"({"codec": "low_rank", "rank": 4, "residual": "lazy"})", R"({"codec": "entropy"})"}) {
      SCOPED_TRACE(codec);
      const bool matrices = codec.find("low_rank") != std::string::npos;
      const auto coded = [&](const char* parts) {
        Layout l = layout;
        l.more = {"compression.pp.backward=" + codec, std::string("scatter_gather_tensors_in_pipeline=") + parts};
        if (!matrices) l.more.push_back("compression.pp.forward=" + codec);
        return run({}, l, kSamples, kFew);
      };
      const Curve parts = coded("true"), whole = coded("false");
      const auto at = static_cast<size_t>(Site::kPpBackward), around = static_cast<size_t>(Site::kTpBackward);
      EXPECT_EQ(parts.wire[around] - plain.wire[around], (layout.tensor - 1) * (parts.wire[at] - plain.wire[at]));
      if (matrices) {  // as many columns for each part as for the whole
        EXPECT_EQ(coded("true"), parts);
        EXPECT_LT(parts.loss.back(), parts.loss.front());
        EXPECT_LT(parts.wire[at], whole.wire[at]);
      } else {
        EXPECT_NEAR(parts.loss.back(), plain.loss.back(), codec.find("entropy") != std::string::npos ? 0.0 : 0.01);
        EXPECT_NEAR(parts.wire[at], whole.wire[at] / layout.tensor, 0.01 * whole.wire[at]);
      }
    }
  }
}

// Several rules for one site: by class of tensors, layer, stage and micro-batch, some with states of their own at one
// slot. Each run checks its bytes against the price, its replicas and its repetition; a rule more sends fewer bytes.
TEST(CodedMeshRules, SeveralForOneSite) {
  for (Layout layout : {Layout{.data = 4, .gradients = "global", .optimizer = "global", .accumulation = 2},
                        Layout{.data = 2, .tensor = 2, .sequence_parallel = true, .optimizer = "global"},
                        Layout{.pipeline = 2, .data = 2, .schedule = "1f1b", .accumulation = 4},
                        Layout{.pipeline = 4, .schedule = "zb_h1", .accumulation = 6}}) {
    SCOPED_TRACE(layout.name());
    const std::string ef = R"("residual": "error_feedback")", lazy = R"("residual": "lazy")";
    const std::vector<std::string> rules = {
        R"({"site": "dp.gradient", "select": {"tensor_classes": ["mlp"]}, "codec": "block_int", "bits": 4, )" + ef +
            "}",
        R"({"site": "dp.gradient", "select": {"layers": [0, 1], "tensor_classes": ["attention"]}, "codec": "low_rank", )"
        R"("rank": 2, )" +
            ef + "}",
        R"({"site": "dp.gradient", "select": {"tensor_classes": ["norm", "bias"]}, "codec": "identity"})",
        R"({"site": "dp.gradient", "codec": "cast"})",
        R"({"site": "zero.parameter", "select": {"layers": [1]}, "codec": "block_int", "bits": 8})",
        R"({"site": "zero.parameter", "codec": "cast"})",
        R"({"site": ["tp.forward", "tp.backward"], "select": {"layers": [0]}, "codec": "block_int", "bits": 8})",
        R"({"site": ["tp.forward", "tp.backward"], "codec": "cast"})",
        R"({"site": "pp.backward", "select": {"micro_batches": "critical"}, "codec": "low_rank", "rank": 4, )" + lazy +
            "}",
        R"({"site": "pp.backward", "codec": "block_int", "bits": 4, )" + lazy + "}",
        R"({"site": "pp.forward", "select": {"stages": [0]}, "codec": "block_int", "bits": 8})",
        R"({"site": "pp.forward", "codec": "cast"})"};
    const Curve plain = run({}, layout, kSamples, kSteps);
    std::string list;
    Curve coded;
    double before = bytes_of(plain);
    for (size_t n : {size_t{1}, size_t{4}, rules.size()}) {
      list.clear();
      for (size_t i = 0; i < n; ++i) list += (i > 0 ? ", " : "") + rules[i];
      layout.more = {"compression.rules=[" + list + "]"};
      ASSERT_NO_THROW(coded = run({}, layout, kSamples, kSteps));
      const double bytes = bytes_of(coded);
      EXPECT_LE(bytes, before) << n;
      before = bytes;
    }
    EXPECT_LT(before, bytes_of(plain));
    EXPECT_EQ(run({}, layout, kSamples, kSteps), coded);
    EXPECT_LT(coded.loss.back(), coded.loss.front() - 0.5 * (plain.loss.front() - plain.loss.back()));
  }
}

// Keys, values and their gradients between context-parallel ranks: what is computed again, and gathered again for the
// backward pass, is what was computed with; fewer bytes travel; and it learns.
TEST(CodedMeshSequence, KeysAndValues) {
  uint64_t number = 0, place = 0;
  for (const auto& [family, way] : {std::pair<std::string, std::string>("gpt2", "all_gather"),
                                    {"llama", "all_gather"},
                                    {"gpt2", "a2a"},
                                    {"llama", "a2a"},
                                    {"llama", "p2p"}}) {
    const Model model{.family = family};
    ++number;
    for (Layout layout : {Layout{.context = 2}, Layout{.context = 3}, Layout{.tensor = 2, .context = 2}}) {
      if (!test::in_turn(number, place++, 3)) continue;
      SCOPED_TRACE(layout.name());
      const auto site = [](const Curve& c, Site s) { return c.wire[static_cast<size_t>(s)]; };
      layout.more = {"cp_comm_type=" + way};
      const Curve plain = run(model, layout, kSamples, kSteps);
      layout.more = {"cp_comm_type=" + way,
                     "compression.sequence={\"codec\": \"block_int\", \"bits\": 8, \"block\": 32}"};
      const Curve coded = run(model, layout, kSamples, kSteps);
      for (Site s : {Site::kSequenceForward, Site::kSequenceBackward}) {
        EXPECT_LT(site(coded, s), 0.4 * site(plain, s)) << name_of(s);
        EXPECT_GT(site(coded, s), 0.25 * site(plain, s)) << name_of(s);
      }
      EXPECT_NE(coded.loss, plain.loss);
      EXPECT_NEAR(coded.loss.back(), plain.loss.back(), 0.02 * plain.loss.back());
      for (const char* level : {"selective", "full"}) {
        layout.recompute = level;
        const Curve again = run(model, layout, kSamples, kSteps);
        EXPECT_EQ(again.loss, coded.loss) << level;
        EXPECT_EQ(again.norm, coded.norm) << level;
      }
    }
  }
}

// Activations of the blocks that a rule names, and of no others: also where a weight half gathers them again, and where
// the gradient leaves the first block for the embedding. (Each run checks its bytes against the price.)
TEST(CodedMeshLayers, TensorSitesCodeTheBlocksThatAreNamed) {
  const auto rule = [](const std::string& site, const std::string& layers) {
    const std::string at = "compression." + site + ".";
    return std::vector<std::string>{at + "codec=block_int", at + "bits=8", at + "select.layers=[" + layers + "]"};
  };
  for (const Layout& layout :
       {Layout{.pipeline = 2, .tensor = 2, .sequence_parallel = true, .schedule = "zb_h1", .accumulation = 4},
        Layout{.pipeline = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 2},
        Layout{.tensor = 4, .sequence_parallel = true}}) {
    std::map<std::string, double> sent;  // by the blocks that are named
    for (const std::string layers : {"0", "2", "4", "1,3"}) {
      Layout coded = layout;
      for (const char* site : {"tp.forward", "tp.backward"})
        for (const std::string& key : rule(site, layers)) coded.more.push_back(key);
      SCOPED_TRACE(coded.name());
      Curve curve;
      ASSERT_NO_THROW(curve = run({}, coded, kSamples, 2));
      sent[layers] =
          curve.wire.at(static_cast<size_t>(Site::kTpForward)) + curve.wire.at(static_cast<size_t>(Site::kTpBackward));
    }
    EXPECT_LT(sent.at("1,3"), sent.at("2")) << "two blocks save more than one: " << layout.name();
  }
}

}  // namespace
}  // namespace thinwire::mesh::coded_mesh_test
