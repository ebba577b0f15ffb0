// The order law: every index array, token list, blend and consumption order of the reference vectors, number by number.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/batch_ramp.h"
#include "data/blend.h"
#include "data/gpt_dataset.h"
#include "data/sample_stream.h"
#include "data/split.h"
#include "tests/data/data_test_files.h"

namespace thinwire::data_order_law_test {
namespace {

using nlohmann::json;
using Numbers = std::vector<int64_t>;
const char* const kSplits[] = {"train", "valid", "test"};

// The directories that are walked: our own golden files, and the shared vectors where they exist. Any directory with
// the same layout works; nothing about the cases is known here.
class DataOrderLaw : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string which = GetParam();
    if (which == "golden") {
      directory_ = "tests/golden/data_order";
    } else {
      const char* set = std::getenv("THINWIRE_VECTORS");
      const std::string vectors = set != nullptr ? set : "../shared/vectors";
      if (!std::filesystem::exists(vectors)) GTEST_SKIP() << "no reference vectors at " << vectors;
      directory_ = vectors + "/data_order";
    }
    std::ifstream in(directory_ + "/expected.json");
    ASSERT_TRUE(in.good()) << directory_ << "/expected.json is missing";
    expected_ = json::parse(in);
  }

  std::string prefix(const std::string& dataset) const {
    return directory_ + "/" + expected_.at("datasets").at(dataset).at("prefix").get<std::string>();
  }
  std::shared_ptr<const TokenFile> open(const std::string& dataset) const {
    return std::make_shared<const TokenFile>(prefix(dataset), 0);
  }

  std::string directory_;
  json expected_;
};

std::optional<int64_t> request_of(const json& want) {
  const json& n = want.at("num_samples_requested");
  return n.is_null() ? std::nullopt : std::optional<int64_t>(n.get<int64_t>());
}

Numbers read_sample(const std::function<void(std::span<int32_t>)>& read, int64_t seq) {
  std::vector<int32_t> tokens(static_cast<size_t>(seq) + 1, -1);
  read(tokens);
  return {tokens.begin(), tokens.end()};
}

void compare(const GptDataset& got, const json& want, int64_t seq) {
  EXPECT_EQ(got.range().first, want.at("first_sequence").get<int64_t>());
  EXPECT_EQ(got.range().count(), want.at("num_sequences").get<int64_t>());
  EXPECT_EQ(got.tokens_per_epoch(), want.at("tokens_per_epoch").get<int64_t>());
  EXPECT_EQ(got.epochs(), want.at("num_epochs").get<int64_t>());
  EXPECT_EQ(got.separate_final_epoch(), want.at("separate_final_epoch").get<bool>());
  ASSERT_EQ(got.size(), want.at("num_samples_built").get<int64_t>());
  Numbers documents, shuffle;
  std::vector<Numbers> samples;
  for (int64_t row = 0; row < got.rows(); ++row) documents.push_back(got.document(row));
  for (int64_t k = 0; k <= got.size(); ++k) samples.push_back({got.position(k).row, got.position(k).offset});
  for (int64_t i = 0; i < got.size(); ++i) shuffle.push_back(got.shuffled(i));
  EXPECT_EQ(documents, want.at("document_index").get<Numbers>());
  EXPECT_EQ(samples, want.at("sample_index").get<std::vector<Numbers>>());
  EXPECT_EQ(shuffle, want.at("shuffle_index").get<Numbers>());
  if (!want.contains("tokens")) return;
  int64_t i = 0;
  for (const json& tokens : want.at("tokens")) {
    EXPECT_EQ(read_sample([&](std::span<int32_t> out) { got.read(i, out); }, seq), tokens.get<Numbers>())
        << "sample " << i;
    ++i;
  }
}

TEST_P(DataOrderLaw, FilesReadAsDescribed) {
  for (const auto& [name, want] : expected_.at("datasets").items()) {
    SCOPED_TRACE(name);
    const auto file = open(name);
    EXPECT_EQ(static_cast<int>(file->type()), want.at("dtype_code").get<int>());
    ASSERT_EQ(file->sequences(), want.at("sequence_count").get<int64_t>());
    ASSERT_EQ(file->documents() + 1, want.at("document_index_count").get<int64_t>());
    EXPECT_EQ(file->tokens(), want.at("total_tokens").get<int64_t>());
    Numbers lengths, offsets, bounds;
    for (int64_t s = 0; s < file->sequences(); ++s) {
      lengths.push_back(file->length(s));
      offsets.push_back(file->offset(s));
    }
    for (int64_t d = 0; d <= file->documents(); ++d) bounds.push_back(file->boundary(d));
    EXPECT_EQ(lengths, want.at("sequence_lengths").get<Numbers>());
    EXPECT_EQ(offsets, want.at("sequence_pointers").get<Numbers>());
    EXPECT_EQ(bounds, want.at("document_indices").get<Numbers>());
    int64_t base = 0, stride = 0;
    ASSERT_EQ(std::sscanf(want.at("token_formula").get<std::string>().c_str(), "%ld + %ld", &base, &stride), 2);
    for (int64_t s = 0; s < file->sequences(); ++s) {
      std::vector<int32_t> ids(static_cast<size_t>(file->length(s)));
      file->read(s, 0, ids);
      for (size_t p = 0; p < ids.size(); ++p)
        ASSERT_EQ(ids[p], base + stride * s + static_cast<int64_t>(p)) << "sequence " << s;
    }
  }
}

TEST_P(DataOrderLaw, CasesHaveTheseIndicesAndTokens) {
  for (const json& c : expected_.at("cases")) {
    SCOPED_TRACE(c.at("name").get<std::string>());
    const auto file = open(c.at("dataset"));
    const SplitFractions fractions = parse_split(c.at("split"));
    const int64_t seq = c.at("seq_length");
    for (size_t which = 0; which < 3; ++which) {
      SCOPED_TRACE(kSplits[which]);
      if (c.contains("split_matrix")) {
        const json& part = c.at("split_matrix").at(which);
        ASSERT_EQ(fractions.part[which].has_value(), !part.is_null());
        if (!part.is_null()) {
          EXPECT_EQ(*fractions.part[which], (part.get<std::array<double, 2>>()));
        }  // to the last bit
      }
      const auto range = split_range(fractions, static_cast<Split>(which), file->sequences());
      const json& want_range = c.at("sequence_ranges").at(which);
      ASSERT_EQ(range.has_value(), !want_range.is_null());
      if (!range) continue;
      EXPECT_EQ((Numbers{range->first, range->last}), want_range.get<Numbers>());
      if (!c.contains(kSplits[which]) || c.at(kSplits[which]).is_null()) continue;
      const json& want = c.at(kSplits[which]);
      compare(GptDataset(file, *range, seq, request_of(want), c.at("seed").get<uint32_t>(), kSplits[which]), want, seq);
    }
  }
}

// The same through the configuration, as `train --print-samples` goes.
TEST_P(DataOrderLaw, StreamGivesTheSameTokens) {
  for (const json& c : expected_.at("cases")) {
    SCOPED_TRACE(c.at("name").get<std::string>());
    if (c.at("train").is_null()) continue;
    DataConfig config;
    config.data = {{prefix(c.at("dataset"))}};
    config.split = c.at("split");
    config.seq_length = c.at("seq_length");
    config.seed = c.at("seed");
    config.train_iters = request_of(c.at("train")).value_or(0);
    const SampleStream stream(config);
    EXPECT_EQ(stream.size(Split::kTrain), c.at("train").at("num_samples_built").get<int64_t>());
    int64_t i = 0;
    for (const json& tokens : c.at("train").at("tokens")) {
      EXPECT_EQ(read_sample([&](std::span<int32_t> out) { stream.read(Split::kTrain, i, out); }, config.seq_length),
                tokens.get<Numbers>());
      ++i;
    }
    const json& valid = c.at("valid");
    if (valid.is_null() || !request_of(valid)) continue;
    config.eval_iters = *request_of(valid);
    const SampleStream both(config, EvalCheck::kLeaveOut);
    ASSERT_EQ(both.size(Split::kValid), valid.at("num_samples_built").get<int64_t>());
    i = 0;
    for (const json& tokens : valid.at("tokens")) {
      EXPECT_EQ(read_sample([&](std::span<int32_t> out) { both.read(Split::kValid, i, out); }, config.seq_length),
                tokens.get<Numbers>());
      ++i;
    }
  }
}

TEST_P(DataOrderLaw, BlendTakesTurnsLikeThis) {
  json blends = expected_.at("blend");
  if (blends.is_object()) blends = json::array({blends});
  for (const json& b : blends) {
    const auto weights = b.at("weights").get<std::vector<double>>();
    const auto normalized = normalize_weights(weights, "weights");
    EXPECT_EQ(normalized, b.at("normalized_weights").get<std::vector<double>>());
    const int64_t size = b.at("size"), seq = b.at("seq_length");
    const double surplus = b.value("surplus", 0.005);
    const Blend blend(normalize_weights(normalized, "weights"), size);
    Numbers which, position;
    for (int64_t i = 0; i < size; ++i) {
      which.push_back(blend.dataset(i));
      position.push_back(blend.sample(i));
    }
    EXPECT_EQ(which, b.at("dataset_index").get<Numbers>());
    EXPECT_EQ(position, b.at("dataset_sample_index").get<Numbers>());

    DataConfig config;
    std::vector<GptDataset> sets;
    for (size_t k = 0; k < weights.size(); ++k) {
      const json& mid = b.at("mid_level").at(k);
      SCOPED_TRACE(mid.at("dataset").get<std::string>());
      const auto file = open(mid.at("dataset"));
      config.data.push_back({file->prefix(), weights[k]});
      EXPECT_EQ(blend_request(size, normalized[k], surplus), request_of(mid));
      sets.emplace_back(file, *split_range(parse_split(b.at("split")), Split::kTrain, file->sequences()), seq,
                        request_of(mid), b.at("seed").get<uint32_t>(), "train");
      compare(sets.back(), mid, seq);
    }
    for (size_t i = 0; i < (b.contains("first_50") ? b.at("first_50").size() : 0); ++i)
      EXPECT_EQ((Numbers{which[i], position[i], sets[static_cast<size_t>(which[i])].shuffled(position[i])}),
                b.at("first_50").at(i).get<Numbers>());

    config.split = b.at("split");
    config.blend_surplus = surplus;
    config.seq_length = seq;
    config.seed = b.at("seed");
    config.train_iters = size;
    const SampleStream stream(config);
    EXPECT_GE(stream.size(Split::kTrain), size);
    int64_t i = 0;
    for (const json& tokens : b.at("tokens")) {
      EXPECT_EQ(read_sample([&](std::span<int32_t> out) { stream.read(Split::kTrain, i, out); }, seq),
                tokens.get<Numbers>())
          << "position " << i;
      ++i;
    }
  }
}

TEST_P(DataOrderLaw, RanksTakeTheseSamples) {
  for (const json& c : expected_.at("consumption")) {
    const int64_t size = c.at("global_batch"), micro = c.at("micro_batch"), dp = c.at("data_parallel"),
                  start = c.at("consumed_samples");
    const int64_t steps = micro_steps(size, micro, dp);
    EXPECT_EQ(steps, c.at("micro_steps_per_global_batch").get<int64_t>());
    const json& ids = c.at("ids");
    for (size_t g = 0; g < ids.size(); ++g)
      for (int64_t s = 0; s < steps; ++s)
        for (int64_t r = 0; r < dp; ++r) {
          const SampleSpan span = micro_batch_samples(start + static_cast<int64_t>(g) * size, size, micro, dp, r, s);
          Numbers got;
          for (int64_t i = 0; i < span.rows; ++i) got.push_back(span.first + i);
          EXPECT_EQ(got, ids.at(g).at(static_cast<size_t>(s)).at(static_cast<size_t>(r)).get<Numbers>());
        }
    const int64_t left =
        (c.at("total_samples").get<int64_t>() - start) / (micro * dp) - steps * static_cast<int64_t>(ids.size());
    for (const json& want : c.at("remaining_micro_steps_per_rank")) EXPECT_EQ(left, want.get<int64_t>());
  }
}

INSTANTIATE_TEST_SUITE_P(Directories, DataOrderLaw, ::testing::Values("golden", "shared"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace thinwire::data_order_law_test
