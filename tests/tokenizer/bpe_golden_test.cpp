// Byte-level BPE gives the ids of the Hugging Face tokenizers package, and text comes back.
#include <array>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/word_splitter.h"
#include "tests/tokenizer/tokenizer_test_support.h"

namespace thinwire::test::bpe_golden_test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

json load(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path << " is missing";
  return json::parse(in, nullptr, false);
}

void check_directory(const std::string& directory) {
  SCOPED_TRACE(directory);
  const bool pair = fs::exists(directory + "/merges.txt");
  const auto tokenizer =
      make_tokenizer("bpe:" + directory + (pair ? "/vocab.json," + directory + "/merges.txt" : "/tokenizer.json"));
  const json cases = load(directory + "/cases.json");
  ASSERT_TRUE(cases.is_array() && !cases.empty());
  for (const json& c : cases) {
    const std::string text = c.at("text");
    const std::vector<int32_t> want = c.at("ids");
    ASSERT_EQ(tokenizer->encode(text), want) << c.at("text").dump();
    // Twice: the second answer comes from the word cache.
    ASSERT_EQ(tokenizer->encode(text), want) << c.at("text").dump() << " (cached)";
    if (c.contains("whole")) {
      std::vector<int32_t> whole(tokenizer->before_text().begin(), tokenizer->before_text().end());
      whole.insert(whole.end(), want.begin(), want.end());
      whole.insert(whole.end(), tokenizer->after_text().begin(), tokenizer->after_text().end());
      ASSERT_EQ(whole, c.at("whole").get<std::vector<int32_t>>()) << c.at("text").dump();
    } else if (&c == &cases[0]) {
      ASSERT_TRUE(tokenizer->before_text().empty() && tokenizer->after_text().empty());
    }
    const std::string back = c.contains("decoded") ? c.at("decoded").get<std::string>() : text;
    const std::string got = tokenizer->decode(want);
    // The package decodes the letters of an added token like <café> as bytes and prints what that breaks; we print the
    // token.
    if (got != back) {
      ASSERT_TRUE(text.find("\xC3\xA9>") != std::string::npos || text.find("\xCC\x81>") != std::string::npos)
          << c.dump();
    }
  }
}

void check_all_below(const std::string& root) {
  std::vector<std::string> directories;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().filename() == "cases.json") directories.push_back(entry.path().parent_path().string());
  }
  ASSERT_FALSE(directories.empty()) << "no cases.json below " << root;
  for (const std::string& d : directories) check_directory(d);
}

TEST(BpeGolden, OurOwnFiles) {
  check_all_below("tests/golden/bpe");
}

TEST(BpeGolden, SharedVectors) {
  const char* set = std::getenv("THINWIRE_VECTORS");
  const std::string vectors = set != nullptr ? set : "../shared/vectors";
  if (!fs::exists(vectors)) GTEST_SKIP() << "no reference vectors at " << vectors;
  ASSERT_TRUE(fs::exists(vectors + "/bpe/tokenizer.json")) << vectors << "/bpe is incomplete";
  check_all_below(vectors + "/bpe");
}

std::string random_bytes(std::mt19937_64& rng, size_t n) {
  // Half of the strings are mostly ASCII, so that words and bad bytes meet.
  const bool tame = rng() % 2 == 0;
  std::string s(n, '\0');
  for (char& c : s) c = static_cast<char>(tame && rng() % 8 != 0 ? " abe'st1.\n"[rng() % 10] : rng() % 256);
  return s;
}

TEST(BpeRoundTrip, AnyBytes) {
  std::mt19937_64 rng(7);
  for (const char* name : {"gpt2", "whole", "ignore_merges", "llama3", "gpt4", "deepseek"}) {
    const auto tokenizer = make_tokenizer(std::string("bpe:tests/golden/bpe/") + name + "/tokenizer.json");
    for (int i = 0; i < 3000; ++i) {
      const std::string text = random_bytes(rng, rng() % 120);
      const auto ids = tokenizer->encode(text);
      ASSERT_EQ(tokenizer->decode(ids), text) << name << " case " << i;
      for (int32_t id : ids) ASSERT_TRUE(id >= 0 && id < tokenizer->vocab_size());
    }
  }
}

TEST(BpeRoundTrip, NormalisedTextKeepsBadBytes) {
  const auto tokenizer = make_tokenizer("bpe:tests/golden/bpe/neox/tokenizer.json");
  const std::string text =
      "e\xCC\x81\xFF"
      "e\xCC\x81\xC3(\xED\xA0\x80 ok";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), "\xC3\xA9\xFF\xC3\xA9\xC3(\xED\xA0\x80 ok");
}

TEST(BpeRoundTrip, OneMillionLetters) {
  const auto tokenizer = make_tokenizer("bpe:tests/golden/bpe/gpt2/tokenizer.json");
  std::mt19937_64 rng(3);
  std::string word(1'000'000, 'a');
  for (char& c : word) c = "tomorwandesh"[rng() % 12];
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(word)), word);
  // A quadratic merge would take minutes; the heap needs about 0.2 s, so ten seconds leave room for a busy machine.
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 10.0);
}

TEST(BpeThreads, ShareOneTokenizer) {
  const auto tokenizer = make_tokenizer("bpe:tests/golden/bpe/gpt2/tokenizer.json");
  const std::string text = "Shall I compare thee to a summer's day? 12345 \xE6\x97\xA5";
  const auto want = tokenizer->encode(text);
  std::vector<std::thread> threads;
  std::array<int, 4> wrong{};
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) wrong[t] += tokenizer->encode(text) != want;
    });
  }
  for (auto& thread : threads) thread.join();
  for (int w : wrong) EXPECT_EQ(w, 0);
}

TEST(BpeEod, IsTheSpecialToken) {
  EXPECT_EQ(make_tokenizer("bpe:tests/golden/bpe/gpt2/tokenizer.json", true)->eod(), 0);
  EXPECT_EQ(make_tokenizer("bpe:tests/golden/bpe/gpt2/tokenizer.json")->vocab_size(), 560);
}

uint64_t fnv(std::string_view text, uint64_t state = 0xCBF29CE484222325) {
  for (const char c : text) state = (state ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return state;
}

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// Every character there is, against what the tokenizers package says of it.
TEST(Unicode, EveryCharacter) {
  const json facts = load("tests/golden/bpe/unicode.json");
  std::string everything, marked;
  for (uint32_t code = 1; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    append_utf8(everything, code);
    marked += 'a';
    append_utf8(marked, code);
    marked += "\xCC\xB4 ";
  }
  int64_t classes = 0;
  for (const auto& [pattern, want] : facts.items()) {
    if (pattern == "NFC") continue;
    SCOPED_TRACE(pattern);
    const WordSplitter splitter({{"here", pattern, true, false}});
    WordSplitter::Worker worker(splitter);
    uint64_t hash = fnv("");
    int64_t matched = 0;
    for (const auto& word : worker.cut(everything)) {
      hash = fnv(std::string_view(everything).substr(word.begin, word.end - word.begin), hash);
      ++matched;
    }
    EXPECT_EQ(matched, want[0]);
    EXPECT_EQ(hex(hash), want[1]);
    ++classes;
  }
  EXPECT_GT(classes, 30);
  EXPECT_EQ(hex(fnv(nfc(marked))), facts["NFC"][1]);
}

// Properties from the standard itself: NFC is stable under repetition, and equal for canonically equivalent spellings.
TEST(Nfc, KnownForms) {
  EXPECT_EQ(nfc("A\xCC\x8A"), "\xC3\x85");
  EXPECT_EQ(nfc("\xE2\x84\xAB"), "\xC3\x85");                              // Angstrom sign
  EXPECT_EQ(nfc("q\xCC\x87\xCC\xA3"), "q\xCC\xA3\xCC\x87");                // marks are sorted
  EXPECT_EQ(nfc("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB"), "\xED\x95\x9C");  // Hangul L V T
  EXPECT_EQ(nfc("\xE0\xA5\x98"), "\xE0\xA4\x95\xE0\xA4\xBC");              // composition exclusion
  EXPECT_EQ(nfc("a\xCC\x84\xCC\x82"), "\xC4\x81\xCC\x82");                 // same class: the second is blocked
}

TEST(Nfc, IsIdempotent) {
  std::mt19937_64 rng(11);
  const uint32_t pool[] = {'a',    'e',    'q',    0xE9,   0x300, 0x301, 0x323, 0x327,  0x338,   0x344,
                           0x1100, 0x1161, 0x11A8, 0xAC00, 0x915, 0x93C, 0x958, 0x1E69, 0x1D15E, 0x2F800};
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (size_t n = rng() % 8; n > 0; --n) append_utf8(text, pool[rng() % std::size(pool)]);
    const std::string once = nfc(text);
    ASSERT_EQ(nfc(once), once);
  }
}

TEST(Utf8, RefusesIllFormedSequences) {
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3", "\xE2\x82", "\xFF"}) {
    EXPECT_FALSE(decode_utf8(bad, 0).valid) << static_cast<int>(static_cast<uint8_t>(bad[0]));
    EXPECT_EQ(decode_utf8(bad, 0).length, 1u);
  }
  for (uint32_t code : {0u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xD7FFu, 0xE000u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    std::string s;
    append_utf8(s, code);
    const Utf8Char c = decode_utf8(s, 0);
    EXPECT_TRUE(c.valid && c.code == code && c.length == s.size()) << code;
  }
}

}  // namespace
}  // namespace thinwire::test::bpe_golden_test
