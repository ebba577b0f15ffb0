// Every parser of files survives the committed corpora and damaged copies of them, in any build.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "tests/fuzz/fuzz_parsers.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::fuzz::parser_replay_test {
namespace {

// Damaged copies of each input: 40, or as many as THINWIRE_FUZZ_COPIES says, for a longer look.
int copies() {
  const char* more = std::getenv("THINWIRE_FUZZ_COPIES");
  return more != nullptr ? std::max(1, std::atoi(more)) : 40;
}

class Files : public ::testing::TestWithParam<Parser> {};

std::string damaged(std::string text, std::mt19937& rng) {
  const std::string alphabet = "{}[]:,\"\\/ \n0123456789.-eE#*_abcdef\xc3\xff\x01";
  for (unsigned edits = 1 + rng() % 4; edits > 0 && !text.empty(); --edits) {
    const size_t at = rng() % text.size();
    switch (rng() % 5) {
      case 0:
        text[at] = static_cast<char>(text[at] ^ 1 << rng() % 8);
        break;
      case 1:
        text.insert(at, 1, alphabet[rng() % alphabet.size()]);
        break;
      case 2:
        text.erase(at, 1 + rng() % 8);
        break;
      case 3:
        text.insert(at, text.substr(rng() % text.size(), rng() % 40));
        break;
      default:
        if (rng() % 4 == 0) text.resize(at);
    }
  }
  return text;
}

std::vector<std::string> inputs_of(const Parser& parser) {
  std::vector<std::string> inputs;
  for (const auto& entry : std::filesystem::directory_iterator("tests/fuzz/corpora/" + parser.name))
    inputs.push_back(test::slurp(entry.path().string()));
  std::sort(inputs.begin(), inputs.end());
  return inputs;
}

TEST_P(Files, AreReadOrRefused) {
  const std::vector<std::string> inputs = inputs_of(GetParam());
  ASSERT_GE(inputs.size(), 3u);
  int good = 0, refused = 0;
  std::mt19937 rng(1);
  const auto attempt = [&](const std::string& input) {
    try {
      const std::vector<uint8_t> bytes(input.begin(), input.end());
      ++(GetParam().play(bytes) ? good : refused);
    } catch (const std::exception& e) {
      ADD_FAILURE() << GetParam().name << ": " << e.what() << "\ninput " << ::testing::PrintToString(input);
    }
  };
  for (const std::string& input : inputs) {
    attempt(input);
    for (int i = 0; i < copies(); ++i) attempt(damaged(input, rng));
    if (HasFailure()) return;
  }
  EXPECT_GT(good, 0) << "nothing in the corpus is accepted: it no longer reaches what is behind the parser";
  EXPECT_GT(refused, 0) << "nothing in the corpus is refused";
}

// Puts a list that nests 100,000 deep before a value of the corpus: no parser may overflow the stack on it.
TEST_P(Files, WithoutABottomAreReadOrRefused) {
  constexpr int kDeep = 100000;
  const std::string bottomless = std::string(kDeep, '[') + std::string(kDeep, ']') + ",\"x\":";
  for (const std::string& input : inputs_of(GetParam())) {
    size_t at = 0;
    for (int colon = 0; colon < 6; ++colon) {
      at = input.find("\":", at);
      if (at == std::string::npos) break;
      at += 2;
      const std::string text = input.substr(0, at) + bottomless + input.substr(at);
      EXPECT_NO_THROW(GetParam().play(std::vector<uint8_t>(text.begin(), text.end()))) << input.substr(0, at);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parsers, Files, ::testing::ValuesIn(parsers()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace thinwire::fuzz::parser_replay_test
