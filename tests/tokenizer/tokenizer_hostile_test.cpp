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
      {"/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", json::array()}}, "lacks ByteLevel"},
      {"/pre_tokenizer", {{"type", "Sequence"}}, "pretokenizers: an array"},
      {"/pre_tokenizer",
       {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Punctuation"}}}}},
       "pre_tokenizer.pretokenizers[0]: type \"Punctuation\" is not supported"},
      {"/pre_tokenizer",
       {{"type", "Sequence"}, {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}},
       "behind ByteLevel"},
      {"/pre_tokenizer",
       {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Digits"}}, {{"type", "ByteLevel"}}}}},
       "add_prefix_space: true behind"},
      {"/pre_tokenizer/use_regex", "no", "true or false"},
      {"/post_processor", {{"type", "BertProcessing"}}, "BertProcessing"},
      {"/post_processor", {{"type", "TemplateProcessing"}}, "post_processor.single: an array"},
      {"/post_processor", {{"type", "TemplateProcessing"}, {"single", json::array()}}, "lacks the Sequence A"},
      {"/post_processor",
       {{"type", "TemplateProcessing"}, {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}}, {"special_tokens", {}}},
       "\"<s>\" has no ids"},
      {"/post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
        {"special_tokens", {{"<s>", {{"ids", {560}}}}}}},
       "id 560 belongs to no token"},
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

// What the two regular expression libraries would take differently, and what is no pattern at all.
TEST_F(TokenizerHostile, SplitPatterns) {
  const auto with = [&](const json& pattern, const json& behavior = "Isolated") {
    json file = good();
    file["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", false}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}}}};
    return file;
  };
  const std::string place = "pre_tokenizer.pretokenizers[0].pattern: ";
  const struct {
    const char* pattern;
    const char* message;
  } kCases[] = {
      {"", "is empty"},
      {"a|^b", "at character 3: the anchor ^"},
      {"\\s+$", "the anchor $"},
      {"\\w+", "the escape \\w is not supported"},
      {"\\bx", "\\b is not"},
      {"(a)\\1", "\\1 is not"},
      {"a\\", "ends in a backslash"},
      {"\\p{Han}+", "\\p{Han} is not supported"},
      {"\\p{Mn}", "\\p{Mn} is not"},
      {"\\p{L", "\\p{NAME} is needed"},
      {"\\pL", "\\p{NAME} is needed"},
      {"(a", "a group is not closed"},
      {"a)", "')' closes no group"},
      {"(?i)a", "this kind of group"},
      {"(?<n>a)", "this kind of group"},
      {"(?i:\\p{L})", "inside of (?i: )"},
      {"(?i:\u00e9)", "ASCII only"},
      {"[a", "a set is not closed"},
      {"[]", "an empty set"},
      {"[a-z&&[b]]", "&&"},
      {"[[:alpha:]]", "[:"},
      {"[z-a]", "a range"},
      {"[a-\\s]", "a range"},
      {"[\\s-a]", "a dash of the text"},
      {"+", "nothing to repeat"},
      {"a**", "nothing to repeat"},
      {"a{2}?", "nothing to repeat"},
      {"(?=a)+", "nothing to repeat"},
      {"a{,3}", "a count of 0 to 1000"},
      {"a{3,2}", "m below n"},
      {"a{x}", "a brace of the text"},
      {"a{9999}", "a count of 0 to 1000"},
      {"\\xFF", "are bytes"},
      {"\\u12", "hexadecimal digits"},
      {"(?<=a*)b", "not a regular expression that ICU takes"},
  };
  for (const auto& c : kCases) {
    refused(with({{"Regex", c.pattern}}), c.message);
    refused(with({{"Regex", c.pattern}}), place + "the split pattern");
  }
  refused(with("a"), place + "{\"Regex\"");
  refused(with({{"Regex", 3}}), place + "{\"Regex\"");
  refused(with({{"Regex", "a"}}, "MergedWithNext"),
          "behavior: \"MergedWithNext\" is not supported (Isolated, Removed)");
  refused(with({{"Regex", std::string(200, '(') + "a" + std::string(200, ')')}}), "deeper than 64");
}

// A pattern that needs more than there is to have is an error of the file, soon.
TEST_F(TokenizerHostile, EndlessPattern) {
  json file = good();
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(?:(?:[a-z]|[a-z])+)+!"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}};
  const auto tokenizer = make_tokenizer("bpe:" + write("tokenizer.json", file.dump()));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("abc!d")), "abc!d");
  expect_error(ExitCode::kBadData,
               "tokenizer.json: pre_tokenizer.pretokenizers[0].pattern: the split pattern needs too much",
               [&] { tokenizer->encode(std::string(50, 'a')); });
}

TEST_F(TokenizerHostile, VocabAndMerges) {
  const std::string vocab = read("tests/golden/bpe/gpt2_pair/vocab.json");
  const std::string merges = read("tests/golden/bpe/gpt2_pair/merges.txt");
  const auto refused_pair = [&](const std::string& v, const std::string& m, const std::string& part) {
    const std::string spec = "bpe:" + write("vocab.json", v) + "," + write("merges.txt", m);
    SCOPED_TRACE(part);
    expect_error(ExitCode::kBadData, part, [&] { make_tokenizer(spec); });
  };
  const std::string lines = path("merges.txt");
  refused_pair(vocab, "", lines + ": holds no merges");
  refused_pair(vocab, "#version: 0.2\n\n", "holds no merges");
  refused_pair(vocab, merges + "a b c\n", lines + ":446: \"a b c\" is not two tokens");
  refused_pair(vocab, "#version: 0.2\na\n", lines + ":2: \"a\" is not two tokens");
  refused_pair(vocab, "q Q\n", lines + ":1: token \"qQ\" is not in the vocabulary");
  refused_pair(vocab, merges + merges.substr(14), "is listed twice");
  refused_pair("[]", merges, path("vocab.json") + ": an object {token: id}");
  refused_pair("{", merges, path("vocab.json") + ": not valid JSON");
  refused_pair(read("tests/golden/bpe/gpt2/tokenizer.json"), merges, "is a tokenizer.json: give bpe:FILE alone");
  json ids = json::parse(vocab);
  ids["the"] = 5;
  refused_pair(ids.dump(), merges, path("vocab.json") + ": [\"");
  refused_pair(ids.dump(), merges, "id 5 belongs to another token too");
  refused_text(vocab, "is a vocabulary alone: give its merges too");
  expect_error(ExitCode::kBadData, "none.txt",
               [&] { make_tokenizer("bpe:tests/golden/bpe/gpt2_pair/vocab.json," + path("none.txt")); });
  // Line ends of Windows, and no version line, are as good.
  std::string windows;
  for (const char c : merges.substr(14)) windows += c == '\n' ? "\r\n" : std::string(1, c);
  const auto good = make_tokenizer("bpe:tests/golden/bpe/gpt2_pair/vocab.json," + write("w.txt", windows));
  const auto same = make_tokenizer("bpe:tests/golden/bpe/gpt2_pair/vocab.json,tests/golden/bpe/gpt2_pair/merges.txt");
  EXPECT_EQ(good->encode("the free software"), same->encode("the free software"));
}

// Not hostile, but the one name of an end of document that is not ASCII.
TEST_F(TokenizerHostile, DeepSeeksEndOfDocumentIsKnown) {
  json file = good();
  const std::string end = "<\uFF5Cend\u2581of\u2581sentence\uFF5C>";
  file["added_tokens"][0]["content"] = end;
  file["model"]["vocab"].erase("<|endoftext|>");
  file["model"]["vocab"][end] = 0;
  EXPECT_EQ(make_tokenizer("bpe:" + write("tokenizer.json", file.dump()), true)->eod(), 0);
  file["added_tokens"][0]["content"] = "<end>";
  file["model"]["vocab"].erase(end);
  file["model"]["vocab"]["<end>"] = 0;
  const std::string other = write("tokenizer.json", file.dump());
  expect_error(ExitCode::kUsage, "<eos> <EOT> " + end, [&] { make_tokenizer("bpe:" + other, true); });
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
