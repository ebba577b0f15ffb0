// The manifest as text: bit-exact values, and every single flipped bit, cut or addition refused.
#include "engine/run/checkpoint/manifest.h"

#include "engine/run/checkpoint/output_file.h"
#include "tests/checkpoint/checkpoint_test_support.h"

namespace thinwire::manifest_test {
namespace {

using namespace checkpoint_test;

Manifest sample() {
  Manifest m;
  m.step = 123;
  m.sequence = 7;
  m.job = "job \"7\"";
  m.saved_at = 1.7e9;
  m.info = {{"model", {{"layers", 2}}}, {"text", "\u03b1"}};
  m.ranks = 2;
  m.files = {{"rank0-00000.safetensors", 99, "00ff"}, {"rank1-00000.safetensors", 77, "ff00"}};
  // bf16 2 x 3: its first column, and the rest row by row in two ranges.
  m.tensors = {{"model/a", {2, 3, 0, 2, 0, 1, 0, 2}, StDtype::kBF16, 0, "model/a@0+2,0+1@0", "abcd"},
               {"model/a", {2, 3, 0, 2, 1, 2, 0, 3}, StDtype::kBF16, 0, "model/a@0+2,1+2@0", "ef01"},
               {"model/a", {2, 3, 0, 2, 1, 2, 3, 1}, StDtype::kBF16, 1, "model/a@0+2,1+2@3", "2345"},
               {"model/b", {1, 4, 0, 1, 0, 4, 0, 4}, StDtype::kF32, 1, "model/b", "6789"}};
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
  EXPECT_EQ(back.ranks, 2);
  ASSERT_EQ(back.tensors.size(), m.tensors.size());
  for (size_t i = 0; i < m.tensors.size(); ++i) {
    EXPECT_EQ(back.tensors[i].place, m.tensors[i].place);
    EXPECT_EQ(back.tensors[i].stored_name, m.tensors[i].stored_name);
    EXPECT_EQ(back.tensors[i].stored_name, stored_name_of(m.tensors[i].name, m.tensors[i].place));
    EXPECT_EQ(back.tensors[i].dtype, m.tensors[i].dtype);
  }
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
      {"\"version\": 2", "\"version\": 3"},
      {"\"version\": 2", "\"version\": 0"},
      {"\"ranks\": 2", "\"ranks\": 0"},
      {"\"ranks\": 2", "\"ranks\": \"2\""},
      {"thinwire-checkpoint", "other"},
      {"\"step\": 123", "\"step\": \"123\""},
      {"\"file\":1", "\"file\":2"},
      {"\"file\":0", "\"file\":-1"},
      {"\"first\":3", "\"first\":-1"},
      {"\"first\":3", "\"first\":9223372036854775807"},
      {"\"count\":4", "\"count\":6"},
      {"\"count\":4", "\"count\":-1"},
      {"\"count\":4", "\"count\":9223372036854775807"},
      {"\"rows\":1", "\"rows\":4611686018427387904"},
      {"\"rows\":2", "\"rows\":-2"},
      {"\"cols\":4", "\"cols\":-4"},
      // Rectangles that are not, lie outside, or overflow.
      {"[0,2,0,1]", "[0,2,0]"},
      {"[0,2,0,1]", "7"},
      {"[0,2,0,1]", "null"},
      {"[0,2,0,1]", "[0,2,0,1.0]"},
      {"[0,2,0,1]", "[-1,2,0,1]"},
      {"[0,2,0,1]", "[1,2,0,1]"},
      {"[0,2,0,1]", "[0,2,3,1]"},
      {"[0,2,0,1]", "[0,2,9223372036854775807,1]"},
      {"[0,2,0,1]", "[9223372036854775807,2,0,1]"},
      {"[0,2,0,1]", "[0,9223372036854775807,0,1]"},
      {"[0,2,0,1]", "[0,2,0,9223372036854775807]"},
      {"[0,2,0,1]", "[0,-2,0,-1]"},
      // Slices that leave a hole, or hold something twice.
      {"[0,2,0,1]", "[0,2,1,1]"},
      {"[0,2,0,1]", "[0,1,0,2]"},
      {"\"first\":3", "\"first\":2"},
      {"\"count\":3", "\"count\":2"},
      {"\"count\":4", "\"count\":3"},
      {"\"count\":4", "\"count\":0"},
      {"\"name\":\"model/b\"", "\"name\":\"model/a\""},
      {"\"name\":\"model/a\"", "\"name\":\"model/c\""},
      {"\"dtype\":\"BF16\"", "\"dtype\":\"F16\""},  // of one slice, the others stay
      {"\"dtype\":\"BF16\"", "\"dtype\":\"BF17\""},
      {"rank0-00000.safetensors", "../shard"},
      {"rank0-00000.safetensors", "/etc/passwd"},
      {"rank0-00000.safetensors", ".."},
      {"rank0-00000.safetensors", "rank1-00000.safetensors"},
      {"\"sequence\"", "\"sequenze\""},
      {"\"i\":-9223372036854775808", "\"i\":[[]]"},
      {"7ff4000000000001", "7ff400000000000g"},
      {"\"ff00\"}", "\"ff0\"}"},
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

// Whoever looks for the newest of many checkpoints parses nothing else of a manifest, and trusts none that was altered.
TEST(Manifest, TheSequenceAloneIsThatOfTheWhole) {
  const test::Scratch scratch;
  const std::string path = scratch / kManifestName, good = manifest_to_text(sample());
  spill(path, good);
  EXPECT_EQ(read_sequence(scratch.path()), 7);
  EXPECT_EQ(read_manifest(scratch.path()).sequence, 7);
  const std::string without = "{\n\"step\": 1";
  std::string altered = good;
  altered.replace(good.find("\"sequence\": 7") + 12, 1, "8");
  for (const std::string& bad : {altered, good.substr(0, good.size() - 1), std::string(),
                                 without + ",\n\"checksum\": \"" + hash_text(without) + "\"\n}\n"}) {
    spill(path, bad);
    const Error e = error_of([&] { (void)read_sequence(scratch.path()); });
    EXPECT_EQ(e.code(), ExitCode::kBadData) << bad;
    EXPECT_EQ(std::string(e.what()).rfind(path, 0), 0u) << e.what();
  }
}

}  // namespace
}  // namespace thinwire::manifest_test
