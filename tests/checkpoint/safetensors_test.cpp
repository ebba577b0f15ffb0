// Our safetensors against the reference library's files and verdicts, and against random round trips and mutations.
#include "engine/run/checkpoint/safetensors.h"

#include <nlohmann/json.hpp>

#include "tests/checkpoint/checkpoint_test_support.h"

namespace thinwire::safetensors_test {
namespace {

using namespace checkpoint_test;

const std::string kGolden = "tests/golden/safetensors/";

bool accepts(const std::string& path, std::string* why = nullptr) {
  try {
    const SafetensorsFile file(path);
    for (const SafetensorsEntry& entry : file.entries()) (void)file.read_bytes(entry.name);
    return true;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadData);
    if (why != nullptr) *why = e.what();
    return false;
  }
}

TEST(Safetensors, ReadsWhatTheReferenceWrote) {
  const SafetensorsFile file(kGolden + "tiny.safetensors");
  EXPECT_EQ(file.entries().size(), 12u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  for (const char* name : {"b.f32", "half", "brain"}) {
    std::vector<float> values(6);
    file.read_f32(name, values);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(values[i], 0.5f * i - 1.0f) << name;
  }
  std::vector<float> thirds(6);
  file.read_f32("double", thirds);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(thirds[i], static_cast<float>((0.5 * i - 1.0) / 3.0));
  EXPECT_EQ(file.read_i64("ints"), (std::vector<int64_t>{-1, 2, 2147483647}));
  EXPECT_EQ(file.read_i64("longs"), (std::vector<int64_t>{-(int64_t{1} << 62), 7}));
  EXPECT_EQ(file.read_i64("bytes"), (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(file.at("flags").dtype, StDtype::kBool);
  EXPECT_EQ(file.at("scalar").shape, std::vector<int64_t>{});
  EXPECT_EQ(file.at("empty").shape, (std::vector<int64_t>{0, 4}));
  EXPECT_NE(file.find("na\u00efve \u03b1"), nullptr);
  EXPECT_EQ(file.find("absent"), nullptr);
  std::vector<float> wrong(5);
  EXPECT_EQ(error_of([&] { file.read_f32("half", wrong); }).code(), ExitCode::kBadData);
  wrong.resize(3);
  EXPECT_EQ(error_of([&] { file.read_f32("ints", wrong); }).code(), ExitCode::kBadData);
  EXPECT_EQ(error_of([&] { (void)file.at("absent"); }).code(), ExitCode::kBadData);
}

TEST(Safetensors, WritesTheSameBytesAsTheReference) {
  const Scratch scratch;
  const SafetensorsFile file(kGolden + "tiny.safetensors");
  std::vector<SafetensorsItem> items;
  std::vector<std::vector<std::byte>> kept;
  for (const SafetensorsEntry& entry : file.entries()) kept.push_back(file.read_bytes(entry.name));
  for (size_t i = 0; i < kept.size(); ++i) {
    const SafetensorsEntry& entry = file.entries()[kept.size() - 1 - i];  // any order in, theirs out
    items.push_back({entry.name, entry.dtype, entry.shape, kept[kept.size() - 1 - i], {}});
  }
  const WrittenFile written = replace_safetensors(scratch / "copy", std::move(items), file.metadata());
  EXPECT_EQ(slurp(scratch / "copy"), slurp(kGolden + "tiny.safetensors"));
  EXPECT_EQ(written.bytes, std::filesystem::file_size(scratch / "copy"));
}

// Never accepts what the reference refuses; refuses nothing it accepts except the marked cases, which it always
// refuses.
TEST(Safetensors, HostileFilesGetTheReferenceVerdict) {
  const Scratch scratch;
  const auto cases = nlohmann::json::parse(slurp(kGolden + "cases.json"))["cases"];
  ASSERT_GE(cases.size(), 80u);
  int reference_accepts = 0;
  for (const auto& c : cases) {
    const std::string hex = c["hex"];
    std::string raw;
    for (size_t i = 0; i < hex.size(); i += 2) raw += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    spill(scratch / "case", raw);
    const bool expected = c["reference_accepts"].get<bool>() && !c["stricter"].get<bool>();
    reference_accepts += c["reference_accepts"].get<bool>() ? 1 : 0;
    std::string why;
    EXPECT_EQ(accepts(scratch / "case", &why), expected) << c["name"] << ": " << why;
    EXPECT_EQ(why.find(scratch / "case") == std::string::npos, expected) << "a refusal names the file: " << why;
  }
  EXPECT_GE(reference_accepts, 20);
}

TEST(Safetensors, RefusesAMillionAndOneTensors) {
  const Scratch scratch;
  std::string header = "{";
  for (int i = 0; i <= 1'000'000; ++i) {
    header += (i ? ",\"" : "\"") + std::to_string(i) + "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
  }
  header += "}";
  const uint64_t n = header.size();
  spill(scratch / "many", std::string(reinterpret_cast<const char*>(&n), 8) + header);
  std::string why;
  EXPECT_FALSE(accepts(scratch / "many", &why));
  EXPECT_NE(why.find("1,000,000"), std::string::npos) << why;
}

TEST(Safetensors, RandomRoundTrips) {
  const Scratch scratch;
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<SafetensorsItem> items;
    std::vector<std::vector<std::byte>> data(random() % 12);
    for (size_t i = 0; i < data.size(); ++i) {
      SafetensorsItem item{"t" + std::to_string(random() % 1000) + "." + std::to_string(i),
                           static_cast<StDtype>(random() % 22),
                           {},
                           {},
                           {}};
      uint64_t count = 1;
      for (size_t d = random() % 4; d > 0; --d) item.shape.push_back(static_cast<int64_t>(random() % 5));
      if (bits_of(item.dtype) < 8) item.shape.push_back(8);
      for (const int64_t extent : item.shape) count *= static_cast<uint64_t>(extent);
      data[i].resize(count * bits_of(item.dtype) / 8);
      for (std::byte& b : data[i]) b = static_cast<std::byte>(random());
      if (random() % 2 == 0)
        item.data = data[i];
      else
        item.make = [&data, i] { return data[i]; };
      items.push_back(item);
    }
    const auto copy = items;
    std::filesystem::remove(scratch / "f");
    write_safetensors(scratch / "f", items, {{"k", "\"quoted\" \u03b1"}});
    const SafetensorsFile file(scratch / "f");
    ASSERT_EQ(file.entries().size(), copy.size());
    EXPECT_EQ(file.metadata().at("k"), "\"quoted\" \u03b1");
    for (size_t i = 0; i < copy.size(); ++i) {
      EXPECT_EQ(file.read_bytes(copy[i].name), data[i]);
      EXPECT_EQ(file.at(copy[i].name).shape, copy[i].shape);
      EXPECT_EQ(file.at(copy[i].name).dtype, copy[i].dtype);
    }
  }
}

// No input may crash the reader or make it read outside the file; most mutations of a header are refused, none matters.
TEST(Safetensors, MutatedFilesNeverCrash) {
  const Scratch scratch;
  const std::string good = slurp(kGolden + "tiny.safetensors");
  std::mt19937_64 random(11);
  int refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string bad = good;
    for (size_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % std::min<size_t>(bad.size(), 800);
      switch (random() % 4) {
        case 0:
          bad[at] = static_cast<char>(random());
          break;
        case 1:
          bad.erase(at, random() % 16);
          break;
        case 2:
          bad.insert(at, bad.substr(random() % bad.size(), random() % 32));
          break;
        default:
          bad[at] = static_cast<char>("0123456789[]{}\",:-\\u"[random() % 20]);
      }
      if (bad.empty()) bad = "x";
    }
    spill(scratch / "bad", bad);
    refused += accepts(scratch / "bad") ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

TEST(Safetensors, APointerOfGitLfsIsCalledSo) {
  const Scratch scratch;
  spill(scratch / "pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4567\n");
  std::string why;
  EXPECT_FALSE(accepts(scratch / "pointer", &why));
  EXPECT_NE(why.find("git lfs pull"), std::string::npos) << why;
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const Scratch scratch;
  const std::string good = slurp(kGolden + "tiny.safetensors");
  for (size_t size = 0; size < good.size(); ++size) {
    spill(scratch / "cut", good.substr(0, size));
    EXPECT_FALSE(accepts(scratch / "cut")) << size;
  }
}

TEST(Safetensors, FileThatShrinksAfterOpeningIsAnError) {
  const Scratch scratch;
  std::filesystem::copy_file(kGolden + "tiny.safetensors", scratch / "f");
  const SafetensorsFile file(scratch / "f");
  std::filesystem::resize_file(scratch / "f", std::filesystem::file_size(scratch / "f") - 1);
  EXPECT_EQ(error_of([&] {
              for (const SafetensorsEntry& entry : file.entries()) (void)file.read_bytes(entry.name);
            }).code(),
            ExitCode::kBadData);
}

TEST(Safetensors, EncodeRoundsToNearestEven) {
  const std::vector<float> values{1.0f, 1.00390625f /* half way between two bf16 */, 65519.0f, -0.0f};
  const auto bf16 = encode_floats(values, StDtype::kBF16);
  uint16_t bits[4];
  std::memcpy(bits, bf16.data(), 8);
  EXPECT_EQ(bits[0], 0x3f80);
  EXPECT_EQ(bits[1], 0x3f80);
  EXPECT_EQ(bits[3], 0x8000);
  const auto f16 = encode_floats(values, StDtype::kF16);
  std::memcpy(bits, f16.data(), 8);
  EXPECT_EQ(bits[2], 0x7bff);  // 65504, the largest
}

TEST(Safetensors, FailedReplacementKeepsTheOldFile) {
  const Scratch scratch;
  const std::vector<std::byte> one(4);
  replace_safetensors(scratch / "f", {{"a", StDtype::kF32, {1}, one, {}}});
  const std::string before = slurp(scratch / "f");
  EXPECT_THROW(replace_safetensors(
                   scratch / "f",
                   {{"a", StDtype::kF32, {1}, {}, []() -> std::vector<std::byte> { throw_io("cannot make it"); }}}),
               Error);
  EXPECT_EQ(slurp(scratch / "f"), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1);
}

}  // namespace
}  // namespace thinwire::safetensors_test
