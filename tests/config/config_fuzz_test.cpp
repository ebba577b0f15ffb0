// Damaged configurations never crash: each mutation loads, or throws Error(kBadConfig).
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "engine/run/config/key_table.h"
#include "engine/run/config/resolved_json.h"
#include "tests/config/config_test_support.h"
#include "tests/support/thorough.h"

namespace thinwire::config_fuzz_test {
namespace {

std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// Loads or is refused with a proper error; what loads must also load back from its resolved form, which is no place to
// be refused.
bool survives(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const std::string what = overrides.empty() ? text : overrides.front();
  ResolvedConfig c;
  try {
    c = load_config_text({{"m.json", text}}, overrides, {.dry_run = true});
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadConfig) << e.what() << "\n" << what;
    return false;
  }
  const std::string resolved = resolved_json(c).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  try {
    EXPECT_EQ(load_config_text({{"r.json", resolved}}, {}, {.dry_run = true}).values, c.values) << what;
  } catch (const Error& e) {
    ADD_FAILURE() << "loads, and does not load back: " << e.what() << "\n" << what;
  }
  return true;
}

TEST(ConfigFuzz, ByteMutations) {
  std::mt19937 random(77);
  std::vector<std::string> seeds;
  for (const char* name : {"gpt2_tiny", "llama_tiny", "gpt20b"})
    seeds.push_back(file_text(std::string("configs/") + name + ".json"));
  const std::string alphabet = "{}[]:,\"\\/ \n0123456789.-eE#*_abcdefu\xc3\xff\x01";
  int loaded = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string text = seeds[static_cast<size_t>(round) % seeds.size()];
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int e = 0; e < edits; ++e) {
      const size_t at = random() % text.size();
      switch (random() % 5) {
        case 0:
          text[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          text[at] = static_cast<char>(text[at] ^ (1 << (random() % 8)));
          break;
        case 2:
          text.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        case 3:
          text.erase(at, 1 + random() % 8);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
          break;
      }
    }
    loaded += survives(text) ? 1 : 0;
  }
  EXPECT_GT(loaded, 500);  // edits in comments and digits leave a configuration good
  EXPECT_LT(loaded, 4500);
}

// Keys with values of every kind: types and bounds hold for the whole table, and what loads, loads back.
TEST(ConfigFuzz, EveryKeyWithOddValues) {
  const std::vector<std::string> values = {"null",
                                           "true",
                                           "false",
                                           "0",
                                           "1",
                                           "-1",
                                           "2",
                                           "3",
                                           "7",
                                           "1000000000000000000",
                                           "-9223372036854775808",
                                           "0.5",
                                           "1e300",
                                           "-1e-300",
                                           "\"\"",
                                           "\"x\"",
                                           "\"1e-4\"",
                                           "[]",
                                           "[1]",
                                           "[0.9, 0.95]",
                                           "[[]]",
                                           "[null]",
                                           "{}",
                                           "{\"a\": 1}",
                                           "\"none\"",
                                           "\"byte\"",
                                           "\"wsd\""};
  const std::string base = file_text("configs/gpt2_tiny.json");
  uint64_t number = 0;
  int loaded = 0;
  for (const KeyTopic& topic : key_table().topics()) {
    for (const KeySpec& key : topic.keys) {
      ++number;
      for (size_t i = 0; i < values.size(); ++i) {
        if (!test::in_turn(number, i, 3)) continue;
        loaded += survives(base, {key.name + "=" + values[i]}) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(loaded, 100);
}

}  // namespace
}  // namespace thinwire::config_fuzz_test
