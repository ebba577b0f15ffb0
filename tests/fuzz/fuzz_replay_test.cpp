// Every decoder survives the committed corpora and damaged copies of them: what the fuzzer found stays found, and a
// build without libFuzzer still throws some thousand hostile payloads at each decoder.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/fuzz_input.h"

namespace thinwire::fuzz::fuzz_replay_test {
namespace {

constexpr int kDamaged = 40;  // copies of each input

// The committed inputs; of a target that has none yet, what encoders make of every spec.
std::vector<std::vector<uint8_t>> corpus_of(const Target& target) {
  const std::filesystem::path directory = "tests/fuzz/corpora/" + target.name;
  std::vector<std::vector<uint8_t>> inputs;
  if (!std::filesystem::exists(directory)) {
    for (size_t i = 0; i < std::max<size_t>(4, target.specs.size()); ++i)
      inputs.push_back(make_input(target, {static_cast<uint8_t>(i), 77, i % 2 == 0 ? kFit : uint8_t{0}, 5}, i));
    return inputs;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return inputs;
}

class Corpus : public ::testing::TestWithParam<Target> {};

TEST_P(Corpus, IsDecodedOrRefused) {
  const auto inputs = corpus_of(GetParam());
  ASSERT_GE(inputs.size(), 4u);
  int good = 0, refused = 0;
  const auto attempt = [&](const std::vector<uint8_t>& input) {
    try {
      ++(play(GetParam(), input) ? good : refused);
    } catch (const std::exception& e) {
      std::string hex;
      for (uint8_t b : input) hex += "0123456789abcdef"[b >> 4], hex += "0123456789abcdef"[b & 15];
      ADD_FAILURE() << GetParam().name << ": " << e.what() << "\ninput " << hex;
    }
  };
  std::mt19937 rng(1);
  for (const auto& input : inputs) {
    attempt(input);
    for (int i = 0; i < kDamaged && !input.empty(); ++i) {
      std::vector<uint8_t> bad = input;
      for (unsigned flips = 1 + rng() % 4; flips > 0; --flips)
        bad[rng() % bad.size()] ^= static_cast<uint8_t>(1u << rng() % 8);
      if (i % 4 == 0) bad.resize(rng() % bad.size());
      if (i % 4 == 1 && bad.size() > kFuzzHeader)
        std::generate(bad.begin() + kFuzzHeader, bad.end(), [&] { return static_cast<uint8_t>(rng()); });
      attempt(bad);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(good, 0) << "nothing in the corpus decodes: it no longer reaches the decoders";
  EXPECT_GT(refused, 0) << "nothing in the corpus is refused";
}

INSTANTIATE_TEST_SUITE_P(Targets, Corpus, ::testing::ValuesIn(targets()),
                         [](const auto& info) { return info.param.name; });

// Undamaged seeds of fixed-size codecs decode: the corpora follow the streams as they are today.
TEST(Corpora, SeedsDecode) {
  for (const Target& target : targets())
    for (uint8_t spec = 0; spec < target.specs.size(); ++spec) {
      const Header header{spec, 77, kFit, 5};
      EXPECT_TRUE(play(target, make_input(target, header, spec))) << target.name << ", spec " << int{spec};
    }
}

}  // namespace
}  // namespace thinwire::fuzz::fuzz_replay_test
