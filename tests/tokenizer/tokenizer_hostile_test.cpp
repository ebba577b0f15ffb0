// Bad tokenizer files: each is refused with a message that names the place, none crashes or allocates without bound.
#include <nlohmann/json.hpp>
#include <random>

#include "data/tokenizer/tokenizer.h"
#include "tests/tokenizer/tokenizer_test_support.h"

namespace thinwire::test::tokenizer_hostile_test {
namespace {

using nlohmann::json;

class TokenizerHostile : public ScratchTest {
 protected:
  json good() const { return json::parse(read("tests/golden/bpe/gpt2/tokenizer.json")); }
  void refused(const json& file, const std::string& part) { refused_text(file.dump(), part); }
  void refused_text(const std::string& text, const std::string& part) {
    const std::string file = write("tokenizer.json", text);
    SCOPED_TRACE(part);
    expect_error(ExitCode::kBadData, part, [&] { make_tokenizer("bpe:" + file); });
    expect_error(ExitCode::kBadData, file, [&] { make_tokenizer("bpe:" + file); });
  }
};

TEST_F(TokenizerHostile, WrongValues) {
  const struct {
    const char* pointer;
    json value;
    const char* message;
  } kCases[] = {
      {"/model", nullptr, "model: an object"},
      {"/model", json::array(), "model: an object"},
      {"/model/type", "WordPiece", "WordPiece"},
      {"/model/type", 3, "model: an object with a \"type\""},
      {"/model/vocab", json::array(), "model.vocab"},
      {"/model/vocab", json::object(), "not in model.vocab"},
      {"/model/vocab/the", "x", "must be an integer"},
      {"/model/vocab/the", 1.5, "must be an integer"},
      {"/model/vocab/the", -1, "outside 0"},
      {"/model/vocab/the", 4294967296, "outside 0"},
      {"/model/vocab/the", 18446744073709551615u, "outside 0"},
      {"/model/vocab/the", 1u << 30, "outside 0"},
      {"/model/vocab/the", 10000000, "holes"},
      {"/model/vocab/the", 5, "belongs to another token too"},
      {"/model/vocab/the", 561, "belongs to no token"},
      {"/model/vocab/", 560, "empty token"},
      {"/model/merges", 5, "model.merges: an array"},
      {"/model/merges/3", 5, "model.merges[3]"},
      {"/model/merges/3", "ab", "not two tokens"},
      {"/model/merges/3", "a b c", "not two tokens"},
      {"/model/merges/3", {"a"}, "model.merges[3]"},
      {"/model/merges/3", {"a", 1}, "model.merges[3]"},
      {"/model/merges/3", {"a", "zzqq"}, "\"zzqq\" is not in model.vocab"},
      {"/model/merges/3", {"q", "Q"}, "\"qQ\" is not in model.vocab"},
      {"/model/byte_fallback", true, "byte_fallback"},
      {"/model/byte_fallback", "yes", "true or false"},
      {"/model/ignore_merges", 1, "true or false"},
      {"/model/dropout", 0.1, "dropout"},
      {"/model/continuing_subword_prefix", "##", "continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
      {"/normalizer", {{"type", "NFKC"}}, "NFKC"},
      {"/normalizer", "NFC", "normalizer"},
      {"/pre_tokenizer", nullptr, "pre_tokenizer"},
      {"/pre_tokenizer", {{"type", "Whitespace"}}, "Whitespace"},
      {"/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", json::array()}}, "Llama 3"},
      {"/pre_tokenizer/use_regex", "no", "true or false"},
      {"/post_processor", {{"type", "TemplateProcessing"}}, "TemplateProcessing"},
      {"/decoder", {{"type", "Metaspace"}}, "Metaspace"},
      {"/added_tokens", "x", "added_tokens"},
      {"/added_tokens/0", 7, "added_tokens[0]"},
      {"/added_tokens/0/content", "", "is empty"},
      {"/added_tokens/0/content", nullptr, "added_tokens[0]"},
      {"/added_tokens/0/content", "other", "belongs to another token too"},
      {"/added_tokens/0/id", 12, "in model.vocab"},
      {"/added_tokens/0/id", "0", "must be an integer"},
      {"/added_tokens/0/single_word", true, "single_word"},
      {"/added_tokens/0/lstrip", 1, "true or false"},
  };
  for (const auto& c : kCases) {
    json file = good();
    file[json::json_pointer(c.pointer)] = c.value;
    SCOPED_TRACE(c.pointer);
    refused(file, c.message);
  }
}

TEST_F(TokenizerHostile, RepeatedEntries) {
  json file = good();
  file["model"]["merges"].push_back(file["model"]["merges"][0]);
  refused(file, "listed twice");
  file = good();
  file["added_tokens"].push_back(file["added_tokens"][0]);
  refused(file, "listed twice");
}

TEST_F(TokenizerHostile, MissingParts) {
  for (const char* key : {"model", "pre_tokenizer"}) {
    json file = good();
    file.erase(key);
    refused(file, key);
  }
  for (const char* key : {"vocab", "merges"}) {
    json file = good();
    file["model"].erase(key);
    refused(file, std::string("model.") + key);
  }
}

TEST_F(TokenizerHostile, NotJson) {
  refused_text("", "not valid JSON");
  refused_text("{", "not valid JSON");
  refused_text("[]", "a JSON object is needed");
  refused_text("null", "a JSON object is needed");
  refused_text("\xFF\xFE{}", "not valid JSON");
  refused_text("{\"model\": \"\xC3(\"}", "not valid JSON");
  refused_text(std::string(2'000'000, '['), "nested deeper");
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  refused_text(deep, "nested deeper");
  const std::string whole = read("tests/golden/bpe/gpt2/tokenizer.json");
  for (size_t n : {1ul, 100ul, whole.size() / 2, whole.size() - 2}) refused_text(whole.substr(0, n), "not valid JSON");
}

TEST_F(TokenizerHostile, NoSuchFile) {
  expect_error(ExitCode::kBadData, "nowhere.json", [&] { make_tokenizer("bpe:" + path("nowhere.json")); });
  expect_error(ExitCode::kBadData, "directory", [&] { make_tokenizer("bpe:" + directory_.string()); });
}

// A byte that no token stands for is an error of the text's encoding, not a lost byte.
TEST_F(TokenizerHostile, IncompleteAlphabet) {
  const std::string file = write(
      "tokenizer.json",
      R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"pre_tokenizer":{"type":"ByteLevel"}})");
  const auto tokenizer = make_tokenizer("bpe:" + file);
  expect_error(ExitCode::kBadData, "no token for byte 32", [&] { tokenizer->encode("ab"); });  // the prefix space
  expect_error(ExitCode::kBadData, "ids 0 to 2", [&] { tokenizer->decode(std::vector<int32_t>{3}); });
  expect_error(ExitCode::kBadData, "-1", [&] { tokenizer->decode(std::vector<int32_t>{-1}); });
}

// One flipped byte anywhere: refused or read, never a crash; what is read must still work.
TEST_F(TokenizerHostile, FlippedBytes) {
  const std::string whole = read("tests/golden/bpe/strips/tokenizer.json");
  std::mt19937_64 rng(9);
  int read_anyway = 0;
  for (int i = 0; i < 400; ++i) {
    std::string text = whole;
    text[rng() % text.size()] = static_cast<char>(rng() % 256);
    const std::string file = write("tokenizer.json", text);
    try {
      const auto tokenizer = make_tokenizer("bpe:" + file);
      for (int32_t id : tokenizer->encode("Thou art <mask> more\n"))
        ASSERT_TRUE(id >= 0 && id < tokenizer->vocab_size());
      ++read_anyway;
    } catch (const Error& e) {
      ASSERT_EQ(static_cast<int>(e.code()), static_cast<int>(ExitCode::kBadData)) << e.what();
    }
  }
  EXPECT_LT(read_anyway, 400);
}

}  // namespace
}  // namespace thinwire::test::tokenizer_hostile_test
