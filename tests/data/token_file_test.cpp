// Writing and reading token files: every type there and back, ids checked, and files that change under a reader.
#include <gtest/gtest.h>

#include <random>

#include "data/gpt_dataset.h"
#include "tests/data/data_test_files.h"

namespace thinwire::token_file_test {
namespace {

using test::expect_error;
using test::TempDir;

struct TypeCase {
  TokenType type;
  int64_t vocab, bytes;
};

class RoundTrip : public ::testing::TestWithParam<TypeCase> {};

TEST_P(RoundTrip, KeepsEveryToken) {
  const auto [type, vocab, bytes] = GetParam();
  const TempDir dir;
  std::mt19937 random(static_cast<unsigned>(type));
  std::vector<std::vector<int32_t>> sequences;
  std::vector<int64_t> boundaries{0};
  {
    TokenFileWriter writer(dir.file("sub/dir/pair"), vocab, type);
    for (int document = 0; document < 40; ++document) {
      for (unsigned s = 0; s < 1 + random() % 3; ++s) {
        std::vector<int32_t> ids(random() % 5 == 0 ? 0 : random() % 300);
        for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
        if (!ids.empty()) ids[0] = static_cast<int32_t>(vocab - 1);
        writer.add_sequence(ids);
        sequences.push_back(ids);
      }
      writer.end_document();
      boundaries.push_back(static_cast<int64_t>(sequences.size()));
    }
    EXPECT_EQ(writer.documents(), 40);
    EXPECT_FALSE(std::filesystem::exists(dir.file("sub/dir/pair.idx"))) << "visible before it is complete";
    writer.finalize();
  }
  const TokenFile file(dir.file("sub/dir/pair"), vocab);
  EXPECT_EQ(file.type(), type);
  ASSERT_EQ(file.sequences(), static_cast<int64_t>(sequences.size()));
  ASSERT_EQ(file.documents(), 40);
  int64_t tokens = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const auto i = static_cast<int64_t>(s);
    ASSERT_EQ(file.length(i), static_cast<int64_t>(sequences[s].size()));
    ASSERT_EQ(file.offset(i), tokens * bytes);
    tokens += file.length(i);
    std::vector<int32_t> got(sequences[s].size());
    file.read(i, 0, got);
    ASSERT_EQ(got, sequences[s]);
    if (got.size() < 3) continue;
    std::vector<int32_t> middle(got.size() - 2);
    file.read(i, 1, middle);
    ASSERT_TRUE(std::equal(middle.begin(), middle.end(), got.begin() + 1));
  }
  EXPECT_EQ(file.tokens(), tokens);
  for (int64_t d = 0; d <= 40; ++d) ASSERT_EQ(file.boundary(d), boundaries[static_cast<size_t>(d)]);
  EXPECT_EQ(std::filesystem::file_size(dir.file("sub/dir/pair.bin")), static_cast<uintmax_t>(tokens * bytes));
}

INSTANTIATE_TEST_SUITE_P(Types, RoundTrip,
                         ::testing::Values(TypeCase{TokenType::kU8, 256, 1}, TypeCase{TokenType::kI8, 128, 1},
                                           TypeCase{TokenType::kI16, 32768, 2}, TypeCase{TokenType::kU16, 65536, 2},
                                           TypeCase{TokenType::kI32, 2147483647, 4},
                                           TypeCase{TokenType::kI64, 2147483647, 8}),
                         [](const auto& info) { return std::string(name_of(info.param.type)); });

TEST(TokenFileWriter, PicksTheTypeAsMegatron) {
  EXPECT_EQ(best_token_type(256), TokenType::kU16);
  EXPECT_EQ(best_token_type(65499), TokenType::kU16);
  EXPECT_EQ(best_token_type(65500), TokenType::kI32);
}

// The bytes, spelled out once by hand.
TEST(TokenFileWriter, WritesTheseBytes) {
  const TempDir dir;
  test::write_pair(dir.file("p"), {2, 1}, 1000, 258, 1);
  EXPECT_EQ(test::slurp(dir.file("p.bin")), std::string("\x02\x01\x03\x01\x03\x01", 6));
  std::string want("MMIDIDX\0\0", 9);
  want += std::string("\1\0\0\0\0\0\0\0\x08\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 25);
  want += std::string("\2\0\0\0\1\0\0\0", 8);
  want += std::string("\0\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0", 16);
  want += std::string("\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0", 24);
  EXPECT_EQ(test::slurp(dir.file("p.idx")), want);
}

TEST(TokenFileWriter, LeavesNothingBehindWithoutFinalize) {
  const TempDir dir;
  test::write_pair(dir.file("p"), {4}, 1000);
  const std::string before = test::slurp(dir.file("p.bin"));
  {
    TokenFileWriter writer(dir.file("p"), 1000);
    writer.add_sequence(std::vector<int32_t>(100000, 7));
  }
  EXPECT_EQ(test::slurp(dir.file("p.bin")), before);
  int entries = 0;
  for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(dir.file(""))) ++entries;
  EXPECT_EQ(entries, 2);
}

TEST(TokenFileWriter, ChecksWhatItIsGiven) {
  const TempDir dir;
  TokenFileWriter writer(dir.file("p"), 100);
  EXPECT_THROW(writer.add_sequence(std::vector<int32_t>{100}), Error);
  EXPECT_THROW(writer.add_sequence(std::vector<int32_t>{-1}), Error);
  EXPECT_THROW(TokenFileWriter(dir.file("q"), 300, TokenType::kU8), Error);
  test::spill(dir.file("plain"), "x");
  EXPECT_THROW(TokenFileWriter(dir.file("plain/p"), 100), Error);
}

TEST(TokenFile, EmptyPairAndModesTailAreAccepted) {
  const TempDir dir;
  TokenFileWriter(dir.file("empty"), 10).finalize();
  const TokenFile empty(dir.file("empty"), 10);
  EXPECT_EQ(empty.sequences(), 0);
  EXPECT_EQ(empty.documents(), 0);
  test::write_pair(dir.file("modes"), {3, 4}, 1000);
  test::spill(dir.file("modes.idx"), test::slurp(dir.file("modes.idx")) + std::string(2, '\0'));
  EXPECT_EQ(TokenFile(dir.file("modes"), 1000).tokens(), 7);
}

TEST(TokenFile, NamesIdsOutsideTheVocabulary) {
  const TempDir dir;
  test::write_pair(dir.file("p"), {3, 5}, 1000);
  const TokenFile file(dir.file("p"), 103);  // the last two tokens of sequence 1 are 103 and 104
  std::vector<int32_t> out(3);
  file.read(0, 0, out);
  file.read(1, 0, out);
  EXPECT_EQ(out, (std::vector<int32_t>{100, 101, 102}));
  expect_error(ExitCode::kBadData, {"p.bin", "sequence 1", "token 3", "id 103", "vocabulary of 103"},
               [&] { file.read(1, 1, out); });
}

TEST(TokenFile, NegativeAndHugeIdsAreRefused) {
  const TempDir dir;
  const auto make = [&](TokenType type, int64_t vocab, int64_t value) {
    TokenFileWriter writer(dir.file("p"), vocab, type);
    writer.add_sequence(std::vector<int32_t>{1, 2});
    writer.end_document();
    writer.finalize();
    std::string bin = test::slurp(dir.file("p.bin"));
    std::memcpy(bin.data() + bin.size() / 2, &value, bin.size() / 2);
    test::spill(dir.file("p.bin"), bin);
  };
  std::vector<int32_t> out(2);
  for (const auto& [type, value] : {std::pair{TokenType::kI8, int64_t{-1}},
                                    {TokenType::kI16, int64_t{-300}},
                                    {TokenType::kI32, int64_t{-7}},
                                    {TokenType::kI64, int64_t{-1} - 0xffffffff},
                                    {TokenType::kI64, int64_t{1} << 32}}) {
    make(type, 100, value);
    for (const int64_t vocab : {0, 100})
      expect_error(ExitCode::kBadData, {"p.bin", "sequence 0", "token 1", "id " + std::to_string(value)},
                   [&] { TokenFile(dir.file("p"), vocab).read(0, 0, out); });
  }
}

TEST(TokenFile, ShrinkingFilesAreAnErrorNotASignal) {
  const TempDir dir;
  const std::vector<int> lengths(3000, 20);
  for (const char* extension : {".bin", ".idx"}) {
    test::write_pair(dir.file("p"), lengths, 1 << 20);
    const auto file = std::make_shared<const TokenFile>(dir.file("p"), 1 << 20);
    const GptDataset set(file, {0, file->sequences()}, 16, 100, 0, "train");
    std::vector<int32_t> out(17);
    set.read(0, out);
    std::filesystem::resize_file(dir.file("p") + extension, 100);
    expect_error(ExitCode::kBadData, {dir.file("p") + extension, "restore"}, [&] {
      for (int64_t i = 0; i < set.size(); ++i) set.read(i, out);
    });
    if (std::string(extension) == ".idx") {
      expect_error(ExitCode::kBadData, {"p.idx"}, [&] { (void)file->fingerprint(); });
      expect_error(ExitCode::kBadData, {"p.idx"}, [&] {
        GptDataset(file, {0, file->sequences()}, 16, 100, 0, "train");
      });
    }
  }
}

TEST(TokenFile, SaysWhatToGiveWhereThereIsNoFile) {
  const TempDir dir;
  test::write_pair(dir.file("my_text_document"), {3}, 100);
  expect_error(ExitCode::kBadData, {"my.idx", "did you mean", "my_text_document"},
               [&] { TokenFile(dir.file("my"), 100); });
  expect_error(ExitCode::kBadData, {"without its extension"},
               [&] { TokenFile(dir.file("my_text_document.bin"), 100); });
  expect_error(ExitCode::kBadData, {"nothing.idx", "prefix"}, [&] { TokenFile(dir.file("nothing"), 100); });
  std::filesystem::remove(dir.file("my_text_document.bin"));
  expect_error(ExitCode::kBadData, {"my_text_document.bin"}, [&] { TokenFile(dir.file("my_text_document"), 100); });
  std::filesystem::create_directory(dir.file("my_text_document.bin"));
  expect_error(ExitCode::kBadData, {"my_text_document.bin", "regular"},
               [&] { TokenFile(dir.file("my_text_document"), 100); });
}

TEST(TokenFile, FingerprintFollowsContentNotPlace) {
  const TempDir dir;
  test::write_pair(dir.file("a"), {3, 9}, 1000);
  test::write_pair(dir.file("b"), {3, 9}, 1000, 50);
  test::write_pair(dir.file("c"), {9, 3}, 1000);
  const std::string a = TokenFile(dir.file("a"), 0).fingerprint();
  EXPECT_EQ(a, TokenFile(dir.file("b"), 0).fingerprint()) << "values are not hashed, sizes and index are";
  EXPECT_NE(a, TokenFile(dir.file("c"), 0).fingerprint());
}

}  // namespace
}  // namespace thinwire::token_file_test
