// The words that choose a tokenizer, and the byte tokenizer itself.
#include "data/tokenizer/tokenizer.h"
#include "tests/tokenizer/tokenizer_test_support.h"

namespace thinwire::test::tokenizer_spec_test {
namespace {

TEST(ByteTokenizer, IdsAreBytes) {
  const auto tokenizer = make_tokenizer("byte");
  std::string all(256, '\0');
  std::vector<int32_t> want(256);
  for (int i = 0; i < 256; ++i) all[static_cast<size_t>(i)] = static_cast<char>(want[static_cast<size_t>(i)] = i);
  EXPECT_EQ(tokenizer->encode(all), want);
  EXPECT_EQ(tokenizer->decode(want), all);
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->eod(), std::nullopt);
  EXPECT_EQ(tokenizer->name(), "byte");
  expect_error(ExitCode::kBadData, "256", [&] { tokenizer->decode(std::vector<int32_t>{256}); });
}

TEST(ByteTokenizer, WithEndOfDocument) {
  const auto tokenizer = make_tokenizer("byte", true);
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eod(), 256);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{'a', 256, 'b'}), "a<|endoftext|>b");
}

TEST(TokenizerSpec, BadWords) {
  for (const char* spec : {"", "bytes", "bpe", "bpe:", "byte:", "byte:x", "sentencepiece",
                           "sentencepiece:", "tiktoken:x", "BPE:x", ":", "bpe:vocab.json,"}) {
    SCOPED_TRACE(spec);
    expect_error(ExitCode::kUsage, "tokenizer '", [&] { make_tokenizer(spec); });
  }
}

}  // namespace
}  // namespace thinwire::test::tokenizer_spec_test
