// Hostile .idx / .bin files: every field wrong in every way we could think of, cut at every byte, and flipped at
// random.
#include <gtest/gtest.h>

#include <random>

#include "tests/data/data_test_files.h"

namespace thinwire::token_file_hostile_test {
namespace {

using test::expect_error;
using test::TempDir;

// A pair as its fields, so that a case changes one of them and nothing else. Good as it stands.
struct Image {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t type = 8;
  uint64_t n = 3, m = 4;
  std::vector<int32_t> lengths{4, 2, 5};
  std::vector<int64_t> offsets{0, 8, 12};
  std::vector<int64_t> boundaries{0, 1, 2, 3};
  std::string tail;
  std::string bin = std::string(22, '\1');

  std::string idx() const {
    std::string out = magic;
    const auto put = [&out](const auto& v) { out.append(reinterpret_cast<const char*>(&v), sizeof v); };
    put(version);
    put(type);
    put(n);
    put(m);
    for (const auto& v : lengths) put(v);
    for (const auto& v : offsets) put(v);
    for (const auto& v : boundaries) put(v);
    return out + tail;
  }
};

struct HostileCase {
  const char* name;
  std::function<void(Image&)> damage;
};

constexpr int64_t kMax = INT64_MAX, kMin = INT64_MIN;

const HostileCase kCases[] = {
    {"empty_idx",
     [](Image& f) {
       f = Image{.magic = "", .version = 0};
       f.lengths.clear();
     }},
    {"wrong_magic", [](Image& f) { f.magic[0] = 'm'; }},
    {"magic_without_zeros", [](Image& f) { f.magic[8] = '1'; }},
    {"old_tntidx", [](Image& f) { f.magic = std::string("TNTIDX\0\0\0", 9); }},
    {"text_file", [](Image& f) { f.magic = "{\"text\":1"; }},
    {"version_0", [](Image& f) { f.version = 0; }},
    {"version_2", [](Image& f) { f.version = 2; }},
    {"version_big_endian", [](Image& f) { f.version = uint64_t{1} << 56; }},
    {"type_0", [](Image& f) { f.type = 0; }},
    {"type_float64", [](Image& f) { f.type = 6; }},
    {"type_float32", [](Image& f) { f.type = 7; }},
    {"type_9", [](Image& f) { f.type = 9; }},
    {"type_255", [](Image& f) { f.type = 255; }},
    {"type_wider_than_bin", [](Image& f) { f.type = 5; }},
    {"n_zero_with_arrays", [](Image& f) { f.n = 0; }},
    {"n_one_less", [](Image& f) { f.n = 2; }},
    {"n_one_more", [](Image& f) { f.n = 4; }},
    {"n_huge", [](Image& f) { f.n = UINT64_MAX; }},
    {"n_wraps_to_small_times_12", [](Image& f) { f.n = (uint64_t{1} << 62) + 3; }},
    {"n_wraps_exactly", [](Image& f) { f.n = UINT64_MAX / 12 + 1; }},
    {"n_2_to_63", [](Image& f) { f.n = uint64_t{1} << 63; }},
    {"n_petabytes", [](Image& f) { f.n = uint64_t{1} << 50; }},
    {"m_zero",
     [](Image& f) {
       f.m = 0;
       f.boundaries.clear();
     }},
    {"m_zero_with_array", [](Image& f) { f.m = 0; }},
    {"m_huge", [](Image& f) { f.m = UINT64_MAX; }},
    {"m_wraps_to_same_times_8", [](Image& f) { f.m = (uint64_t{1} << 61) + 4; }},
    {"m_one_less", [](Image& f) { f.m = 3; }},
    {"m_one_more", [](Image& f) { f.m = 5; }},
    {"both_huge", [](Image& f) { f.n = f.m = UINT64_MAX / 2; }},
    {"n_and_m_swap_sizes",
     [](Image& f) {
       f.n = 1;
       f.m = 7;
     }},
    {"length_negative", [](Image& f) { f.lengths[1] = -1; }},
    {"length_int_min", [](Image& f) { f.lengths[1] = INT32_MIN; }},
    {"length_beyond_bin", [](Image& f) { f.lengths[2] = 6; }},
    {"length_int_max", [](Image& f) { f.lengths[0] = INT32_MAX; }},
    {"offset_negative", [](Image& f) { f.offsets[1] = -2; }},
    {"offset_int64_min", [](Image& f) { f.offsets[1] = kMin; }},
    {"offset_int64_max", [](Image& f) { f.offsets[1] = kMax; }},
    {"offset_plus_length_wraps", [](Image& f) { f.offsets[2] = kMax - 5; }},
    {"offset_beyond_bin", [](Image& f) { f.offsets[2] = 24; }},
    {"offset_beyond_bin_of_empty_sequence",
     [](Image& f) {
       f.lengths[2] = 0;
       f.offsets[2] = 24;
     }},
    {"offset_so_that_end_is_outside", [](Image& f) { f.offsets[2] = 14; }},
    {"offset_odd", [](Image& f) { f.offsets[1] = 7; }},
    {"boundary_first_not_0", [](Image& f) { f.boundaries[0] = 1; }},
    {"boundary_first_negative", [](Image& f) { f.boundaries[0] = -1; }},
    {"boundary_last_short", [](Image& f) { f.boundaries[3] = 2; }},
    {"boundary_last_beyond", [](Image& f) { f.boundaries[3] = 4; }},
    {"boundary_decreases",
     [](Image& f) {
       f.boundaries = {0, 2, 1, 3};
     }},
    {"boundary_negative_inside",
     [](Image& f) {
       f.boundaries = {0, -1, 2, 3};
     }},
    {"boundary_huge_inside",
     [](Image& f) {
       f.boundaries = {0, kMax, 2, 3};
     }},
    {"boundary_int64_min_inside",
     [](Image& f) {
       f.boundaries = {0, kMin, 2, 3};
     }},
    {"only_boundary_but_sequences",
     [](Image& f) {
       f.m = 1;
       f.boundaries = {0};
     }},
    {"trailing_byte", [](Image& f) { f.tail = "x"; }},
    {"modes_one_short", [](Image& f) { f.tail = "xx"; }},
    {"modes_one_long", [](Image& f) { f.tail = "xxxx"; }},
    {"idx_twice", [](Image& f) { f.tail = f.idx(); }},
    {"bin_empty", [](Image& f) { f.bin.clear(); }},
    {"bin_one_byte_short", [](Image& f) { f.bin.pop_back(); }},
};

class HostileFile : public ::testing::TestWithParam<HostileCase> {};

TEST_P(HostileFile, IsRefusedWithItsPath) {
  const TempDir dir;
  Image image;
  GetParam().damage(image);
  const bool empty = std::string(GetParam().name) == "empty_idx";
  test::spill(dir.file("p.idx"), empty ? "" : image.idx());
  test::spill(dir.file("p.bin"), image.bin);
  expect_error(ExitCode::kBadData, {dir.file("p.")}, [&] { TokenFile(dir.file("p"), 1 << 20); });
}

INSTANTIATE_TEST_SUITE_P(Cases, HostileFile, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(HostileFiles, TheImageItselfIsGood) {
  const TempDir dir;
  const Image image;
  test::spill(dir.file("p.idx"), image.idx());
  test::spill(dir.file("p.bin"), image.bin);
  EXPECT_EQ(TokenFile(dir.file("p"), 1 << 20).tokens(), 11);
}

TEST(HostileFiles, MessagesSayWhatTheFileIs) {
  const TempDir dir;
  const auto with = [&](const char* name, const std::vector<std::string>& parts) {
    for (const HostileCase& c : kCases) {
      if (std::string(c.name) != name) continue;
      Image image;
      c.damage(image);
      test::spill(dir.file("p.idx"), image.idx());
      test::spill(dir.file("p.bin"), image.bin);
      expect_error(ExitCode::kBadData, parts, [&] { TokenFile(dir.file("p"), 0); });
    }
  };
  with("old_tntidx", {"p.idx", "TNTIDX", "tokenize"});
  with("type_float32", {"p.idx", "floating-point", "7"});
  with("bin_one_byte_short", {"p.bin", "too short", "sequence 2"});
  with("offset_odd", {"p.idx", "sequence 1", "7"});
  with("boundary_decreases", {"p.idx", "boundary 2"});
}

TEST(HostileFiles, CutAnywhere) {
  const TempDir dir;
  const Image image;
  const std::string idx = image.idx();
  test::spill(dir.file("p.bin"), image.bin);
  for (size_t n = 0; n < idx.size(); ++n) {
    test::spill(dir.file("p.idx"), idx.substr(0, n));
    SCOPED_TRACE(n);
    expect_error(ExitCode::kBadData, {dir.file("p.idx")}, [&] { TokenFile(dir.file("p"), 0); });
  }
  test::spill(dir.file("p.idx"), idx);
  for (size_t n = 0; n < image.bin.size(); ++n) {
    test::spill(dir.file("p.bin"), image.bin.substr(0, n));
    SCOPED_TRACE(n);
    expect_error(ExitCode::kBadData, {dir.file("p.bin")}, [&] { TokenFile(dir.file("p"), 0); });
  }
}

// Whatever the bytes are, opening and reading everything ends well or in an Error that names the pair.
TEST(HostileFiles, FlippedBytesNeverCrash) {
  const TempDir dir;
  const Image image;
  std::mt19937 random(1);
  test::spill(dir.file("p.bin"), image.bin);
  int refused = 0;
  for (int trial = 0; trial < 1200; ++trial) {
    std::string idx = image.idx();
    for (unsigned k = 0; k < 1 + random() % 3; ++k)
      idx[random() % idx.size()] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
    test::spill(dir.file("p.idx"), idx);
    try {
      const TokenFile file(dir.file("p"), 0);
      for (int64_t s = 0; s < file.sequences(); ++s) {
        std::vector<int32_t> out(static_cast<size_t>(file.length(s)));
        file.read(s, 0, out);
      }
    } catch (const Error& error) {
      ++refused;
      ASSERT_EQ(static_cast<int>(error.code()), static_cast<int>(ExitCode::kBadData)) << error.what();
      ASSERT_NE(std::string(error.what()).find(dir.file("p.")), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(refused, 800);
}

}  // namespace
}  // namespace thinwire::token_file_hostile_test
