// SentencePiece models: the answers of its own package, and bad files.
#include <nlohmann/json.hpp>
#include <random>

#include "data/token_file.h"
#include "data/tokenizer/text_reader.h"
#include "data/tokenizer/text_stream.h"
#include "data/tokenizer/tokenize_files.h"
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

TEST_F(Sentencepiece, IdsOneByOneGiveTheText) {
  const auto tokenizer = make_tokenizer(std::string("sentencepiece:") + kModel);
  const auto streamed_after = [&](const std::vector<int32_t>& ids, ptrdiff_t known) {
    TextStream stream(*tokenizer, std::vector<int32_t>(ids.begin(), ids.begin() + known));
    std::string text;
    for (auto id = ids.begin() + known; id != ids.end(); ++id) text += stream.add(*id);
    return text + stream.finish();
  };
  for (const auto& c : nlohmann::json::parse(read("tests/golden/sentencepiece/cases.json"))) {
    const std::vector<int32_t> ids = c.at("ids");
    const std::string text = c.at("decoded").get<std::string>();
    for (size_t known = 0; known <= ids.size(); ++known) {
      const std::string prompt = tokenizer->decode(std::span(ids).first(known));
      if (!text.starts_with(prompt)) continue;  // ends inside of a character
      EXPECT_EQ(prompt + streamed_after(ids, static_cast<ptrdiff_t>(known)), text) << known;
    }
  }
  std::mt19937_64 rng(3);
  for (int i = 0; i < 300; ++i) {
    std::vector<int32_t> ids(rng() % 100);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 420);
    EXPECT_EQ(streamed_after(ids, 0), tokenizer->decode(ids)) << i;
  }
}

// A word brings its blank at once; bytes wait for their character.
TEST_F(Sentencepiece, TextIsToldAsSoonAsItIsCertain) {
  const auto tokenizer = make_tokenizer(std::string("sentencepiece:") + kModel);
  TextStream stream(*tokenizer, tokenizer->encode("a"));
  EXPECT_EQ(stream.add(260), " a");
  const int32_t bytes[] = {233, 154, 168};  // E6 97 A5
  EXPECT_EQ(stream.add(bytes[0]), "");
  EXPECT_EQ(stream.add(bytes[1]), "");
  EXPECT_EQ(stream.add(bytes[2]), "\xE6\x97\xA5");
  EXPECT_EQ(stream.add(bytes[0]), "");
  EXPECT_EQ(stream.add(260), "\xEF\xBF\xBD a");
  EXPECT_EQ(stream.add(bytes[0]), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

// Also of models that keep blanks as they are, as Llama's does, and that put none in front.
TEST_F(Sentencepiece, PiecesHaveTheIdsOfTheWhole) {
  const char* const kParts[] = {" ", "  ", "\n", "\t", "the", "day's", "12", "...", "\xC3\xA9", "tomorrow"};
  for (const std::string& changed :
       {std::string(), std::string("\x1A\x02\x20\x00", 4),  // remove_extra_whitespaces false
        std::string("\x1A\x04\x18\x00\x20\x00", 6)}) {      // and add_dummy_prefix, too
    const auto tokenizer = make_tokenizer("sentencepiece:" + write("a.model", read(kModel) + changed));
    std::mt19937_64 rng(5);
    int checked = 0;
    for (int i = 0; i < 500; ++i) {
      std::string text = "x";
      for (size_t n = 20 + rng() % 20; n > 0; --n) text += kParts[rng() % std::size(kParts)];
      const std::string_view view = text += "x";
      const size_t cut = safe_cut(view, 20 + rng() % 20);
      if (cut == view.size() || view[cut] != ' ') continue;
      ++checked;
      auto ids = tokenizer->encode(view.substr(0, cut));
      const auto rest = tokenizer->encode_further(view.substr(cut));
      ids.insert(ids.end(), rest.begin(), rest.end());
      ASSERT_EQ(ids, tokenizer->encode(text)) << text << " cut at " << cut;
    }
    EXPECT_GT(checked, 200);
  }
}

TEST_F(Sentencepiece, DocumentsOfBlanksAreLeftOut) {
  const auto tokenizer = make_tokenizer(std::string("sentencepiece:") + kModel, true);
  TokenizeOptions options;
  options.inputs = {write("a.jsonl", "{\"text\":\"a b\"}\n{\"text\":\"   \"}\n")};
  options.prefix = path("a");
  for (const bool eod : {false, true}) {
    options.append_eod = eod;
    const TokenizeSummary summary = tokenize_files(*tokenizer, options);
    EXPECT_EQ(summary.empty_documents, 1);
    EXPECT_EQ(summary.outputs.at(0).documents, 1);
    const TokenFile file(path("a_text_document"), tokenizer->vocab_size());
    EXPECT_EQ(file.documents(), 1);
    ASSERT_EQ(file.sequences(), 1);
    EXPECT_EQ(file.length(0), static_cast<int64_t>(tokenizer->encode("a b").size()) + (eod ? 1 : 0));
  }
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
