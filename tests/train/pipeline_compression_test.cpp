// Which messages between stages are critical, and which gradients: by the layers and the head of every stage, and by
// what the configuration says of link and layers.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "compression/codec_table.h"
#include "engine/base/core/error.h"
#include "engine/base/core/model_units.h"
#include "engine/run/config/load_config.h"
#include "engine/run/train/compression_setup.h"
#include "engine/run/train/dry_run.h"
#include "engine/run/train/gradient_bits.h"
#include "engine/run/train/plan_revisions.h"
#include "engine/run/train/rank_layout.h"
#include "engine/run/train/step_rehearsal.h"
#include "model/params.h"

namespace thinwire::pipeline_compression_test {
namespace {

constexpr int kMicroBatches = 4;

RunConfig two_stages(int vocab, std::vector<std::string> more) {
  const std::string text =
      "{\"num_layers\": 4, \"hidden_size\": 1024, \"num_attention_heads\": 4, \"seq_length\": 32, \"tokenizer\": "
      "\"byte\", "
      "\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 4, \"train_iters\": 4, \"lr\": 1e-3, "
      "\"pipe_parallel_size\": 2, \"global_num_gpus\": 2, \"schedule\": \"gpipe\", \"compression\": {\"pp.forward\": "
      "{\"codec\": \"block_int\", \"bits\": 8, \"select\": {\"micro_batches\": \"critical\"}}}}";
  more.push_back("vocab_size=" + std::to_string(vocab));
  return load_config_text({{"two.json", text}}, more, {.dry_run = true}).run;
}

int coded_activations(const RunConfig& config) {
  const PipelineCompression compression = pipeline_compression(config, layout_of(config, 0).pipeline);
  int count = 0;
  for (int micro = 0; micro < kMicroBatches; ++micro) count += compression.forward.front().coded(0, micro) ? 1 : 0;
  return count;
}

// Stages of about equal length (the small head is a sixteenth of a layer) wait for every activation; in front of a head
// as long as many layers only the first is waited for, the others queue.
TEST(PipelineCompression, AHeadThatTakesLongLeavesSlack) {
  EXPECT_EQ(coded_activations(two_stages(256, {})), kMicroBatches);
  EXPECT_EQ(coded_activations(two_stages(60000, {})), 1);
}

// 32 x 1024 fp32 activations are 128 KiB: 105 s at 10 kbit/s, nothing at 1 Tbit/s. A layer takes 3 ms, a stage's
// forward 2.
TEST(PipelineCompression, TheLinkDecidesWhatASlowerHeadHides) {
  const std::string costs = "pipe_partition_costs=[3,0,0]";
  EXPECT_EQ(coded_activations(two_stages(60000, {costs, "link_gbps=0.00001"})), kMicroBatches);
  EXPECT_EQ(coded_activations(two_stages(60000, {costs, "link_gbps=1000"})), 1);
  // Without knowing how long a layer takes the link says nothing.
  EXPECT_EQ(coded_activations(two_stages(60000, {"link_gbps=0.00001"})), 1);
}

// 1F1B in front of a head of 0.66 layers, 1 ms a layer's forward: the last stage takes 1.97 ms longer for a
// micro-batch, which is what hides the first two gradients. The third has no forward behind it, and 3.96 ms; the last
// one is waited for. Of three ways to send them each takes the one with the most bits that its slack hides.
TEST(PipelineCompression, AMessageHasTheMostBitsThatItsSlackHides) {
  const std::string select = R"("select": {"micro_batches": "critical"}, )";
  const auto config = [&](const char* link, const char* second) {
    return two_stages(8000,
                      {"schedule=1f1b", "pipe_partition_costs=[3,0,0]", link,
                       R"(compression.rules=[{"site": "pp.backward", )" + select +
                           R"("codec": "block_int", "bits": 4}, {"site": "pp.backward", )" + select + second + "}]"});
  };
  const char* const int8 = R"("codec": "block_int", "bits": 8)";
  const auto rules = [&](const char* link, const char* second) {
    const RunConfig run = config(link, second);
    const PipelineCompression compression = pipeline_compression(run, layout_of(run, 0).pipeline);
    std::vector<int> found;
    for (int micro = 0; micro < kMicroBatches; ++micro)
      found.push_back(compression.key({.forward = false, .edge = 0, .micro = micro}).rule);
    return found;
  };
  // As it is a message takes 1.5 ms, 2.5 ms (0.6 at 8 bits), and 10 ms (2.5 at 8 bits).
  EXPECT_EQ(rules("link_gbps=0.7", int8), (std::vector<int>{kNoRule, kNoRule, kNoRule, 0}));
  EXPECT_EQ(rules("link_gbps=0.42", int8), (std::vector<int>{1, 1, kNoRule, 0}));
  EXPECT_EQ(rules("link_gbps=0.105", int8), (std::vector<int>{0, 0, 1, 0}));
  // Factors of rank 8 are as long as 8 bits: 8 (32 + 1024) numbers for 32 x 1024.
  EXPECT_EQ(rules("link_gbps=0.42", R"("codec": "low_rank", "rank": 8)"), (std::vector<int>{1, 1, kNoRule, 0}));
  const std::string text = dry_run_text(config("link_gbps=0.42", int8));
  EXPECT_NE(text.find("slack: pp.backward: 1 of 4 messages are critical"), std::string::npos) << text;
  EXPECT_NE(text.find("slack: pp.backward: 2 of 4 messages are critical"), std::string::npos) << text;
}

// Gradients of 3 lengths: at 4 bits those that nothing hides, at 8 what 4 bits leave room for, the rest in bf16.
ResolvedConfig gradients(int stages, int layers, double gbps, std::vector<std::string> more = {}, int tensor = 1) {
  const std::string text =
      R"({"hidden_size": 128, "num_attention_heads": 4, "seq_length": 32, "tokenizer": "byte", "vocab_size": 256,
          "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, "train_iters": 4, "lr": 1e-3,
          "pipe_partition_method": "time", "pipe_partition_costs": [3, 0, 0], "zero_optimization": {"stage": 1},
          "compression": {"rules": [
            {"site": "dp.gradient", "select": {"micro_batches": "critical"}, "codec": "block_int", "bits": 4},
            {"site": "dp.gradient", "select": {"micro_batches": "critical"}, "codec": "block_int", "bits": 8},
            {"site": "dp.gradient", "codec": "cast"}]}})";
  for (const std::string& each :
       {"pipe_parallel_size=" + std::to_string(stages), "model_parallel_size=" + std::to_string(tensor),
        "global_num_gpus=" + std::to_string(2 * stages * tensor), "num_layers=" + std::to_string(layers),
        "link_gbps=" + std::to_string(gbps)})
    more.push_back(each);
  return load_config_text({{"gradients.json", text}}, more, {.dry_run = true});
}

std::vector<GradientBits> bits_of(const RunConfig& run, int stage) {
  const StepRehearsal rehearsal(run, layout_of(run, first_rank_of_stage(run, stage)));
  return gradient_bits(run, rehearsal.replica().layout(), rehearsal.replica().store());
}

// Numbers of messages by the first rule that is left to them.
std::vector<int> by_rule(const std::vector<GradientBits>& bits) {
  std::vector<int> count(3, 0);
  for (const GradientBits& b : bits) ++count[static_cast<size_t>(b.rules.front().number)];
  return count;
}

TEST(GradientBits, WhatNothingHidesHasTheFewest) {
  // 2 x 12 x 128^2 fp32 elements a block, 1.6 MB: at 4.1 bits 50 KB from each of two ranks.
  const RunConfig fast = gradients(1, 6, 1e5).run, slow = gradients(1, 6, 1e-4).run, some = gradients(1, 6, 0.5).run;
  // What is ready when the backward pass ends is behind the end, however short: the first attention, embedding,
  // positions.
  EXPECT_EQ(by_rule(bits_of(fast, 0)), (std::vector<int>{3, 0, 12}));
  EXPECT_EQ(by_rule(bits_of(slow, 0)), (std::vector<int>{15, 0, 0})) << "the link is the step";
  const std::vector<GradientBits> bits = bits_of(some, 0);
  for (size_t i = 1; i < bits.size(); ++i) {
    EXPECT_LE(bits[i].slack_ms, bits[i - 1].slack_ms + 1e-9);
    EXPECT_GE(bits[i].ready_ms, bits[i - 1].ready_ms);
  }
  EXPECT_EQ(bits.front().unit, 13) << "the head's gradient is made first";
  EXPECT_NEAR(bits.back().slack_ms, 0.0, 1e-6);
  EXPECT_NEAR(bits.back().bits, 4.125, 1e-6);
  // The first block's gradients are as many as the last one's; they alone differ in what is left behind them.
  EXPECT_GT(bits[1].bits, bits[12].bits);
}

// Optimus-CC compresses gradients of its early stages alone: on its schedule the late ones have made theirs before, and
// what they send is hidden by the early ones' last backward passes. The rule says so for each stage without a list.
TEST(GradientBits, EarlyStagesAreTheCriticalOnes) {
  for (const char* schedule : {"1f1b", "gpipe"}) {
    int before = INT32_MAX, first = 0, last = 0;
    const RunConfig run = gradients(4, 8, 1.0, {std::string("schedule=") + schedule}).run;
    for (int stage = 0; stage < 4; ++stage) {
      const int coded = by_rule(bits_of(run, stage))[0];
      EXPECT_LE(coded, before) << schedule << " stage " << stage;
      (stage == 0 ? first : last) = before = coded;
    }
    EXPECT_GT(first, 0) << schedule;
    EXPECT_EQ(last, 0) << schedule;
  }
}

// The class that loses more per byte gets bits first; with every class as its bytes are, nothing changes.
TEST(GradientBits, GoToWhatLosesMost) {
  // Mean of the attention units' bits and of the mlps', of the blocks that leave first.
  const auto bits = [](const std::vector<std::string>& more) {
    double sum[2] = {};
    for (const GradientBits& b : bits_of(gradients(1, 6, 0.5, more).run, 0))
      if (b.unit >= 1 && b.unit <= 12) sum[b.unit == attention_unit((b.unit - 1) / 2) ? 0 : 1] += b.bits / 6.0;
    return std::pair(sum[0], sum[1]);
  };
  const auto [attention, mlp] = bits({"compression.sensitivities=[1,1000,1,1]"});
  const auto [attention_last, mlp_first] = bits({"compression.sensitivities=[1,1,1000,1]"});
  EXPECT_GT(attention, attention_last);
  EXPECT_LT(mlp, mlp_first);
  // A class that costs nothing gets its first bits after the last ones of the others.
  const auto [attention_free, mlp_alone] = bits({"compression.sensitivities=[1,0,1,0]"});
  EXPECT_LT(attention_free, attention_last);
  EXPECT_GT(mlp_alone, mlp_first);
  // Elements of the four classes: embedding and positions, matrices of attention, of the mlp, vectors.
  const RunConfig run = gradients(1, 6, 0.5).run;
  double elements[4] = {};
  for (const ParamSpec& p : list_parameters(run.model)) {
    const bool rest = p.tensor_class > TensorClass::kMlp;
    if (p.tied_to.empty()) elements[rest ? 3 : static_cast<size_t>(p.tensor_class)] += static_cast<double>(p.count());
  }
  std::string alike = "compression.sensitivities=[";
  for (int i = 0; i < 4; ++i) alike += (i == 0 ? "" : ",") + std::to_string(elements[i]);
  EXPECT_EQ(bits({alike + "]"}), bits({}));
}

// Off is bf16 or, by a way of its own name, what the wire has uncoded: cast where that is longer and something may be
// lost.
TEST(CodingWays, FollowFromRulesAndTypes) {
  const auto ways = [](const std::string& preset, const std::string& precision) {
    const std::string text =
        R"({"num_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "seq_length": 32, "tokenizer": "byte",
            "train_micro_batch_size_per_gpu": 1, "train_iters": 4, "lr": 1e-3, "global_num_gpus": 2, "vocab_size": 256,
            "zero_optimization": {"stage": 1}})";
    const RunConfig run =
        load_config_text({{"ways.json", text}}, {"compression=" + preset, "precision=" + precision}, {.dry_run = true})
            .run;
    std::map<Site, std::string> words;
    for (const auto& [site, list] : coding_ways(run, mesh_shape(run)))
      for (const CodingWay way : list) words[site] += std::string(words[site].empty() ? "" : " ") + name_of(way);
    return words;
  };
  using Ways = std::map<Site, std::string>;
  EXPECT_EQ(ways("thinwire", "fp32"),
            (Ways{{Site::kDpGradient, "coded light bf16 plain"}, {Site::kZeroParameter, "coded light bf16 plain"}}));
  EXPECT_EQ(ways("thinwire", "bfloat16"),
            (Ways{{Site::kDpGradient, "coded light bf16 plain"}, {Site::kZeroParameter, "coded light plain"}}));
  EXPECT_EQ(ways("naive_mpc", "fp32"),
            (Ways{{Site::kDpGradient, "coded plain"}, {Site::kZeroParameter, "coded plain"}}));
  EXPECT_EQ(ways("bf16_wire", "fp32"), ways("naive_mpc", "fp32"));
  EXPECT_EQ(ways("none", "fp32"), Ways{});
}

// A replay of another run's revisions is refused by what differs, not with all rules of both.
TEST(Revisions, OfOtherRulesNameTheField) {
  const auto run_with = [](const std::string& field) {
    return load_config_text(
        {{"a.json", R"({"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32,
        "tokenizer": "byte", "vocab_size": 256, "train_micro_batch_size_per_gpu": 1, "train_iters": 10, "lr": 1e-3,
        "global_num_gpus": 2, "compression": "thinwire"})"}},
        {"pipe_parallel_size=2", "compression.dp.gradient." + field}, {.dry_run = true});
  };
  const auto refusal = [&](const std::string& said, const std::string& here) -> std::string {
    const std::string text = "{\"run\":" + revisions_run(run_with(said)) + "}\n";
    EXPECT_TRUE(PlanRevisions::replayed("r.jsonl", text, run_with(said), SiteWays()).replays());
    try {
      PlanRevisions::replayed("r.jsonl", text, run_with(here), SiteWays());
    } catch (const Error& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_EQ(refusal("rate=2.5", "rate=3"),
            "r.jsonl:1: belongs to a run with another \"rules\": /dp.gradient/rate is 2.5, here 3.0; replay it with "
            "the configuration that it was written under");
  // Where one list is the longer one, both are shown.
  EXPECT_NE(refusal("select.stages=[0]", "select.stages=[0, 1]").find("/select/stages is [0], here [0"),
            std::string::npos);
}

// From the plan and stated numbers: replicas of a stage agree, and what a rank's messages fall under is what is told.
TEST(GradientBits, AreWhatIsSentOnEveryRank) {
  const RunConfig run = gradients(2, 4, 0.5).run;
  for (int rank = 0; rank < 4; ++rank) {
    const RankLayout layout = layout_of(run, rank);
    const StepRehearsal rehearsal(run, layout);
    const ParamStore& store = rehearsal.replica().store();
    const std::vector<GradientBits> mine = gradient_bits(run, layout, store), first = bits_of(run, layout.at.pipeline);
    ASSERT_EQ(mine.size(), first.size());
    std::vector<UnitMemory> units = store.units();
    select_unit_messages(run, layout, store, units);
    int under_rules = 0;
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_EQ(mine[i].unit, first[i].unit);
      EXPECT_EQ(mine[i].bits, first[i].bits);
      for (const UnitPiece& piece : units[static_cast<size_t>(mine[i].unit)].pieces) {
        EXPECT_TRUE(piece.rule == kNoRule || piece.rule == mine[i].rules.front().number) << mine[i].unit;
        under_rules += piece.rule != kNoRule ? 1 : 0;
      }
    }
    EXPECT_GT(under_rules, 0) << "rank " << rank;
  }
  const std::string text = dry_run_text(run);
  EXPECT_NE(text.find("slack: dp.gradient, stage 0: "), std::string::npos) << text;
  EXPECT_NE(text.find("slack: dp.gradient, stage 1: "), std::string::npos) << text;
}

// Beside tensor ranks entropy frames leave out what all of them hold, which then goes as the next rule says.
TEST(GradientBits, CountWhatRulesLeaveToOthers) {
  const std::string rules = R"(compression.rules=[{"site": "dp.gradient", "select": {"micro_batches": "critical"},
                               "codec": "ecsq", "rate": 2.5}, {"site": "dp.gradient", "codec": "cast"}])";
  const RunConfig run = gradients(1, 4, 1e-4, {rules}, 2).run;
  const RankLayout layout = layout_of(run, 0);
  const StepRehearsal rehearsal(run, layout);
  const ParamStore& store = rehearsal.replica().store();
  std::vector<UnitMemory> units = store.units();
  select_unit_messages(run, layout, store, units);
  const Mesh::Compressions compressions = compressions_of(run, layout);
  const SiteCompressions& coders = compressions[static_cast<size_t>(Site::kDpGradient)];
  const std::vector<GradientBits> bits = gradient_bits(run, layout, store);
  ASSERT_FALSE(bits.empty());
  int left = 0;
  for (const GradientBits& each : bits) {
    const UnitMemory& unit = units[static_cast<size_t>(each.unit)];
    double bytes = 0.0;
    for (const UnitPiece& piece : unit.pieces) {
      ASSERT_NE(piece.rule, kNoRule);
      left += piece.rule == 1 ? 1 : 0;
      const SiteCompression& coder = *coders[static_cast<size_t>(piece.rule)];
      ASSERT_TRUE(is_coded(coder, INT64_MAX, piece.key(piece.shard), piece.range.count, DType::f32, true));
      bytes += static_cast<double>(coder.first->wire_bytes(piece.range.count, DType::f32));
    }
    EXPECT_NEAR(each.bits, 8.0 * bytes / static_cast<double>(unit.count), 1e-9) << each.unit;
  }
  EXPECT_GT(left, 0);
}

// Of a width that does not divide the last tensor rank has a row more, and with it longer messages of low_rank.
TEST(GradientBits, AreTheSameOnTensorRanksOfUnequalWidths) {
  const std::string rules = R"(compression.rules=[{"site": "dp.gradient", "select": {"micro_batches": "critical"},
                               "codec": "low_rank", "rank": 4}, {"site": "dp.gradient", "codec": "cast"}])";
  const RunConfig run = gradients(1, 4, 0.5, {rules, "ffn_hidden_size=301"}, 2).run;
  const std::vector<GradientBits> first = bits_of(run, 0);
  const StepRehearsal rehearsal(run, layout_of(run, 1));
  const std::vector<GradientBits> other = gradient_bits(run, rehearsal.replica().layout(), rehearsal.replica().store());
  ASSERT_FALSE(first.empty());
  ASSERT_EQ(other.size(), first.size());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(other[i].unit, first[i].unit);
    EXPECT_EQ(other[i].bits, first[i].bits) << first[i].unit;
    EXPECT_EQ(other[i].slack_ms, first[i].slack_ms) << first[i].unit;
  }
}

// What low_rank sends is longer where a tensor rank holds a row more, and a sum takes its order from that. So there it
// leaves out what all tensor ranks hold; of equal widths, and in units without such a tensor, it takes all.
TEST(UnitMessages, OfUnequalLengthsHoldNoCopies) {
  const std::string rule = R"(compression.rules=[{"site": "dp.gradient", "codec": "low_rank", "rank": 4}])";
  for (const int ffn : {300, 301}) {
    const RunConfig run = gradients(1, 2, 0.5, {rule, "ffn_hidden_size=" + std::to_string(ffn)}, 2).run;
    for (int rank = 0; rank < 2; ++rank) {
      const RankLayout layout = layout_of(run, rank);
      const StepRehearsal rehearsal(run, layout);
      const ParamStore& store = rehearsal.replica().store();
      std::vector<UnitMemory> units = store.units();
      select_unit_messages(run, layout, store, units);
      const auto coded_copies = [&](int number) {
        const Unit& unit = store.layout().units[static_cast<size_t>(number)];
        int coded = 0, copies = 0;
        for (const Segment& segment : unit.segments) {
          const int64_t at = segment.offset - unit.first;
          if (store.params()[static_cast<size_t>(segment.param)].is_sharded()) continue;
          ++copies;
          for (const UnitPiece& piece : units[static_cast<size_t>(number)].pieces)
            coded += piece.rule == 0 && at >= piece.range.first && at < piece.range.first + piece.range.count ? 1 : 0;
        }
        EXPECT_GT(copies, 0) << number;
        return std::pair(coded, copies);
      };
      const auto [in_attention, of_attention] = coded_copies(attention_unit(0));
      const auto [in_mlp, of_mlp] = coded_copies(mlp_unit(0));
      EXPECT_EQ(in_attention, of_attention) << ffn << " rank " << rank;
      EXPECT_EQ(in_mlp, ffn % 2 == 0 ? of_mlp : 0) << ffn << " rank " << rank;
    }
  }
}

// Groups that hold copies, or share an embedding, must not take a node for other numbers of ranks.
TEST(RankLayout, RefusesNodesThatAreUnlikeForGroupsThatBelongTogether) {
  const auto config = [](std::vector<std::string> more) {
    const std::string text =
        R"({"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "tokenizer": "byte",
            "vocab_size": 256, "train_micro_batch_size_per_gpu": 1, "train_iters": 4, "lr": 1e-3,
            "global_num_gpus": 8, "placement": {"optimizer": "node"}})";
    return load_config_text({{"nodes.json", text}}, more, {.dry_run = true}).run;
  };
  const std::vector<int> stages = {0, 0, 1, 1, 2, 2, 2, 2}, tensors = {0, 0, 0, 0, 0, 1, 0, 1};
  const RunConfig tied = config({"pipe_parallel_size=2"}),
                  untied = config({"pipe_parallel_size=2", "no_weight_tying=true"}),
                  tensor = config({"model_parallel_size=2"});
  for (const int rank : {0, 4}) {
    EXPECT_THROW(layout_of(tied, rank, stages), Error) << rank;
    EXPECT_EQ(layout_of(untied, rank, stages).where.placement.optimizer, rank == 0 ? 2 : 4);
  }
  for (const int rank : {0, 1}) EXPECT_THROW(layout_of(tensor, rank, tensors), Error) << rank;
  EXPECT_EQ(layout_of(tied, 0, {0, 0, 1, 1, 2, 2, 3, 3}).where.placement.optimizer, 2);
}

TEST(DryRun, NamesACodecThatSavesNothing) {
  const auto said = [](const std::string& rate) {
    return dry_run_text(
        gradients(1, 4, 0.5,
                  {"compression.rules=[{\"site\": \"dp.gradient\", \"codec\": \"zfp\", \"rate\": " + rate + "}]"})
            .run);
  };
  EXPECT_NE(said("32").find("fp32, none of it by zfp(rate=32)"), std::string::npos) << said("32");
  EXPECT_NE(said("16").find("fp32, 1/2.00 of it by zfp(rate=16)"), std::string::npos) << said("16");
}

}  // namespace
}  // namespace thinwire::pipeline_compression_test
