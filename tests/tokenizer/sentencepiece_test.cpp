// SentencePiece models: the answers of its own package, and bad files.
#include <nlohmann/json.hpp>
#include <random>

#include "data/tokenizer/tokenizer_files.h"
#include "tests/tokenizer/tokenizer_test_support.h"

namespace thinwire::test::sentencepiece_test {
namespace {

constexpr const char* kModel = "tests/golden/sentencepiece/tiny.model";

class Sentencepiece : public ScratchTest {
 protected:
  void SetUp() override {
    ScratchTest::SetUp();
    if (!sentencepiece_available()) {
      expect_error(ExitCode::kUsage, "libsentencepiece-dev",
                   [] { make_tokenizer(std::string("sentencepiece:") + kModel); });
      GTEST_SKIP() << "built without libsentencepiece";
    }
  }
};

TEST_F(Sentencepiece, GoldenCases) {
  const auto tokenizer = make_tokenizer(std::string("sentencepiece:") + kModel, true);
  EXPECT_EQ(tokenizer->vocab_size(), 420);
  EXPECT_EQ(tokenizer->eod(), 2);
  const auto cases = nlohmann::json::parse(read("tests/golden/sentencepiece/cases.json"));
  ASSERT_FALSE(cases.empty());
  for (const auto& c : cases) {
    const std::vector<int32_t> want = c.at("ids");
    EXPECT_EQ(tokenizer->encode(c.at("text").get<std::string>()), want) << c.at("text").dump();
    EXPECT_EQ(tokenizer->decode(want), c.at("decoded").get<std::string>()) << c.at("text").dump();
  }
}

TEST_F(Sentencepiece, AnyBytesGiveIds) {
  const auto tokenizer = make_tokenizer(std::string("sentencepiece:") + kModel);
  std::mt19937_64 rng(2);
  for (int i = 0; i < 500; ++i) {
    std::string text(rng() % 60, ' ');
    for (char& c : text) c = static_cast<char>(rng() % 256);
    for (int32_t id : tokenizer->encode(text)) ASSERT_TRUE(id >= 0 && id < tokenizer->vocab_size());
  }
  expect_error(ExitCode::kBadData, "ids 0 to 419", [&] { tokenizer->decode(std::vector<int32_t>{420}); });
}

TEST_F(Sentencepiece, BadFiles) {
  const auto refused = [&](const std::string& content) {
    const std::string file = write("bad.model", content);
    expect_error(ExitCode::kBadData, file, [&] { make_tokenizer("sentencepiece:" + file); });
  };
  refused("");
  refused("no model at all");
  refused(std::string(1000, '\xFF'));
  refused(read(kModel).substr(0, 1001));
  expect_error(ExitCode::kBadData, "nowhere", [&] { make_tokenizer("sentencepiece:" + path("nowhere.model")); });
}

}  // namespace
}  // namespace thinwire::test::sentencepiece_test
