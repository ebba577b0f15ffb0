// The manifest as text: bit-exact values, and every single flipped bit, cut or addition refused.
#include "engine/run/checkpoint/manifest.h"

#include "engine/run/checkpoint/output_file.h"
#include "tests/checkpoint/checkpoint_test_support.h"

namespace thinwire {
namespace {

using namespace checkpoint_test;

Manifest sample() {
  Manifest m;
  m.step = 123;
  m.sequence = 7;
  m.job = "job \"7\"";
  m.saved_at = 1.7e9;
  m.info = {{"model", {{"layers", 2}}}, {"text", "\u03b1"}};
  m.files = {{"shard_00000.safetensors", 99, "00ff"}};
  m.tensors = {{"model/a", 2, 3, 1, 4, StDtype::kBF16, 0, "model/a@1", "abcd"}};
  m.integers = {{"i", INT64_MIN}, {"j", INT64_MAX}};
  m.reals = {
      {"nan", std::bit_cast<double>(0x7ff4000000000001ull)}, {"inf", -INFINITY}, {"tiny", 5e-324}, {"zero", -0.0}};
  m.texts = {{"bytes", std::string("\xff\x00", 2)}, {"plain", "a\nb"}, {"empty", ""}};
  return m;
}

TEST(Manifest, ComesBackBitEqual) {
  const Manifest m = sample();
  const Manifest back = manifest_from_text("m", manifest_to_text(m));
  EXPECT_EQ(back.step, m.step);
  EXPECT_EQ(back.sequence, m.sequence);
  EXPECT_EQ(back.job, m.job);
  EXPECT_EQ(back.info, m.info);
  EXPECT_EQ(back.integers, m.integers);
  EXPECT_EQ(back.texts, m.texts);
  ASSERT_EQ(back.reals.size(), m.reals.size());
  for (const auto& [name, value] : m.reals)
    EXPECT_EQ(std::bit_cast<uint64_t>(back.reals.at(name)), std::bit_cast<uint64_t>(value)) << name;
  ASSERT_EQ(back.tensors.size(), 1u);
  EXPECT_EQ(back.tensors[0].stored_name, "model/a@1");
  EXPECT_EQ(back.tensors[0].dtype, StDtype::kBF16);
  EXPECT_EQ(back.files[0].bytes, 99u);
  EXPECT_EQ(manifest_to_text(back), manifest_to_text(m));
}

TEST(Manifest, EveryBitFlipAndEveryCutIsRefused) {
  const std::string good = manifest_to_text(sample());
  for (size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      EXPECT_THROW(manifest_from_text("m", bad), Error) << "byte " << i << " bit " << bit;
    }
    EXPECT_THROW(manifest_from_text("m", good.substr(0, i)), Error) << "cut at " << i;
  }
  EXPECT_THROW(manifest_from_text("m", good + "\n"), Error);
  EXPECT_THROW(manifest_from_text("m", ""), Error);
}

// A manifest with a correct seal but impossible content: written by a hostile hand, refused by the content checks.
TEST(Manifest, SealedNonsenseIsRefused) {
  const auto sealed = [](const std::string& body) {
    return body + ",\n\"checksum\": \"" + hash_text(body) + "\"\n}\n";
  };
  const std::string good = manifest_to_text(sample());
  const std::string body = good.substr(0, good.size() - 51);
  EXPECT_EQ(sealed(body), good);
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = body;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return sealed(text.replace(at, from.size(), to));
  };
  const std::pair<const char*, const char*> edits[] = {
      {"\"version\": 1", "\"version\": 2"},
      {"thinwire-checkpoint", "other"},
      {"\"step\": 123", "\"step\": \"123\""},
      {"\"file\":0", "\"file\":1"},
      {"\"file\":0", "\"file\":-1"},
      {"\"first\":1", "\"first\":-1"},
      {"\"count\":4", "\"count\":6"},
      {"\"count\":4", "\"count\":9223372036854775807"},
      {"\"rows\":2", "\"rows\":4611686018427387904"},
      {"\"rows\":2", "\"rows\":-2"},
      {"\"dtype\":\"BF16\"", "\"dtype\":\"BF17\""},
      {"shard_00000.safetensors", "../shard"},
      {"shard_00000.safetensors", "/etc/passwd"},
      {"shard_00000.safetensors", ".."},
      {"\"sequence\"", "\"sequenze\""},
      {"\"i\":-9223372036854775808", "\"i\":[[]]"},
      {"7ff4000000000001", "7ff400000000000g"},
      {"\"ff00\"", "\"ff0\""},
  };
  for (const auto& [from, to] : edits) {
    const Error e = error_of([&, from = from, to = to] { (void)manifest_from_text("the-path", replaced(from, to)); });
    EXPECT_EQ(e.code(), ExitCode::kBadData) << from << " -> " << to;
    EXPECT_EQ(std::string(e.what()).rfind("the-path", 0), 0u) << e.what();
  }
  EXPECT_THROW(
      manifest_from_text("m", sealed("{\n\"format\": " + std::string(100'000, '[') + std::string(100'000, ']'))),
      Error);
}

}  // namespace
}  // namespace thinwire
