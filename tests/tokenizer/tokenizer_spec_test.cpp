// The words that choose a tokenizer, and the byte tokenizer itself.
#include "data/tokenizer/text_stream.h"
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
  expect_error(ExitCode::kBadData, "256", [&] { tokenizer->decode(std::vector<int32_t>{256}); });
}

TEST(ByteTokenizer, WithEndOfDocument) {
  const auto tokenizer = make_tokenizer("byte", true);
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eod(), 256);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{'a', 256, 'b'}), "a<|endoftext|>b");
}

// Ids that say their text alone are told one by one as they are, whatever came before.
TEST(TextStreams, OfBytesWaitForNothing) {
  for (const char* spec : {"byte", "bpe:tests/golden/bpe/gpt2/tokenizer.json"}) {
    const auto tokenizer = make_tokenizer(spec);
    TextStream stream(*tokenizer, tokenizer->encode("It is "));
    for (int32_t id : tokenizer->encode("\xE6\x97\xA5 day\n\n  and \xF0\x9F\x99\x82\xFF \xE6 night, tomorrow"))
      EXPECT_EQ(stream.add(id), tokenizer->decode(std::vector<int32_t>{id})) << spec << " " << id;
    EXPECT_EQ(stream.finish(), "") << spec;
  }
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
