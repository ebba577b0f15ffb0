// The pipeline: order, independence of the worker count, keys, ends of documents, nothing written after an error.
#include "data/tokenizer/tokenize_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "data/token_file.h"
#include "data/tokenizer/text_reader.h"
#include "data/tokenizer/tokenize_progress.h"
#include "tests/tokenizer/tokenizer_test_support.h"

namespace thinwire::test::tokenize_files_test {
namespace {

class TokenizeFiles : public ScratchTest {
 protected:
  TokenizeSummary run(const TokenizeOptions& options, const std::string& spec = "byte") {
    return tokenize_files(*make_tokenizer(spec, options.append_eod), options);
  }
  TokenizeOptions options(std::vector<std::string> inputs) const {
    TokenizeOptions o;
    o.inputs = std::move(inputs);
    o.prefix = path("out/x");
    o.workers = 3;
    return o;
  }
  // The documents of a token file as bytes; the end-of-document id of the byte tokenizer shows as '$'.
  static std::vector<std::string> documents(const std::string& prefix) {
    const TokenFile file(prefix, 0);
    std::vector<std::string> texts;
    std::vector<int32_t> ids;
    for (int64_t s = 0; s < file.sequences(); ++s) {
      ids.resize(static_cast<size_t>(file.length(s)));
      file.read(s, 0, ids);
      std::string text;
      for (int32_t id : ids) text += id == 256 ? '$' : static_cast<char>(id);
      texts.push_back(text);
    }
    EXPECT_EQ(file.documents(), file.sequences());
    return texts;
  }
  // Documents of many lengths, the longest in several pieces.
  std::string long_text() const {
    std::mt19937_64 rng(6);
    std::string text;
    for (int i = 0; i < 3000; ++i) {
      for (size_t n = 1 + rng() % 40; n > 0; --n)
        text += n % 9 == 0 ? "line\n" : n % 2 == 0 ? "tomorrow " : "day's \xC3\xA9 12 ";
      text += "x\n\n";
    }
    for (size_t n = 0; n < kPieceBytes / 4; ++n) text += n % 50 == 0 ? "huge\n" : "word  ";
    return text + "\n\nlast";
  }
};

TEST_F(TokenizeFiles, TextAndJsonInOrder) {
  const std::string a = write("a.txt", "one\ntwo\n\nthree\n");
  const std::string b =
      write("b.jsonl", "{\"text\":\"four\",\"title\":\"T4\"}\n\n{\"title\":\"T5\",\"text\":\"f\\u00efve\"}\n");
  auto o = options({b, a, b});
  o.append_eod = true;
  const auto summary = run(o);
  EXPECT_EQ(documents(path("out/x_text_document")),
            (std::vector<std::string>{"four$", "f\xC3\xAFve$", "one\ntwo$", "three$", "four$", "f\xC3\xAFve$"}));
  ASSERT_EQ(summary.outputs.size(), 1u);
  EXPECT_EQ(summary.outputs[0].documents, 6);
  EXPECT_EQ(summary.outputs[0].tokens, 8 + 6 + 2 * (5 + 6));
  EXPECT_EQ(summary.bytes, std::filesystem::file_size(a) + 2 * std::filesystem::file_size(b));
}

// What the file puts around a text stands once around a document, however many pieces it comes in.
TEST_F(TokenizeFiles, IdsAroundEveryDocument) {
  const std::string huge = std::string(kPieceBytes, 'a') + " b" + std::string(kPieceBytes, 'c');
  const std::string a = write("a.txt", "one\n\n" + huge + "\n\nlast");
  const std::string b = write("b.jsonl", "{\"text\":\"four\"}\n");
  auto o = options({a, b});
  for (const char* name : {"llama3", "gpt4"}) {  // one id in front, one behind
    const std::string spec = std::string("bpe:tests/golden/bpe/") + name + "/tokenizer.json";
    const auto tokenizer = make_tokenizer(spec);
    const auto before = tokenizer->before_text(), after = tokenizer->after_text();
    ASSERT_EQ(before.size() + after.size(), 1u);
    for (const bool eod : {false, true}) {
      o.append_eod = eod;
      run(o, spec);
      const TokenFile file(path("out/x_text_document"), 0);
      ASSERT_EQ(file.documents(), 4);
      ASSERT_EQ(file.sequences(), 4);
      for (int64_t s = 0; s < 4; ++s) {
        std::vector<int32_t> ids(static_cast<size_t>(file.length(s)));
        file.read(s, 0, ids);
        const std::string text = s == 0 ? "one" : s == 1 ? huge : s == 2 ? "last" : "four";
        std::vector<int32_t> want(before.begin(), before.end());
        const auto inner = tokenizer->encode(text);
        want.insert(want.end(), inner.begin(), inner.end());
        want.insert(want.end(), after.begin(), after.end());
        if (eod) want.push_back(*tokenizer->eod());
        if (s == 1) {  // cut inside of words of megabytes, where the ids may differ
          EXPECT_EQ(tokenizer->decode(ids), tokenizer->decode(want)) << name;
          EXPECT_EQ(std::count(ids.begin(), ids.end(), want.front()),
                    std::count(want.begin(), want.end(), want.front()));
        } else {
          EXPECT_EQ(ids, want) << name << " " << s;
        }
      }
    }
  }
}

// Of a tokenizer that puts a blank in front of a text, each of the pieces but the first goes on where it was cut.
TEST_F(TokenizeFiles, PiecesHaveTheIdsOfTheWhole) {
  const std::string spec = "bpe:tests/golden/bpe/strips/tokenizer.json";
  const auto tokenizer = make_tokenizer(spec);
  std::string text = "one";
  while (text.size() < kPieceBytes + 1000) text += "\nword";
  run(options({write("a.txt", text)}), spec);
  const TokenFile file(path("out/x_text_document"), 0);
  ASSERT_EQ(file.sequences(), 1);
  std::vector<int32_t> ids(static_cast<size_t>(file.length(0)));
  file.read(0, 0, ids);
  EXPECT_TRUE(ids == tokenizer->encode(text));
}

// Bytes but for blanks, between the ids 254 and 255.
class Letters final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text)
      if (c != ' ') ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  std::string decode(std::span<const int32_t>) const override { return ""; }
  std::span<const int32_t> before_text() const override { return std::span(around_).first(1); }
  std::span<const int32_t> after_text() const override { return std::span(around_).last(1); }
  int64_t vocab_size() const override { return 257; }
  std::optional<int32_t> eod() const override { return 256; }

 private:
  const std::vector<int32_t> around_{254, 255};
};

// Where the tokenizer keeps nothing of a text, nothing is put around it, however many pieces it comes in.
TEST_F(TokenizeFiles, TextsWithoutATokenAreLeftOut) {
  const std::string blanks(kPieceBytes + 10, ' ');
  std::string lines;
  for (const std::string& text : {std::string(" "), blanks, blanks + "a", "b" + blanks, std::string("c"), blanks})
    lines += "{\"text\":\"" + text + "\"}\n";
  auto o = options({write("a.jsonl", lines)});
  for (const bool eod : {false, true}) {
    o.append_eod = eod;
    const auto summary = tokenize_files(Letters(), o);
    EXPECT_EQ(summary.empty_documents, 3);
    EXPECT_EQ(summary.outputs.at(0).documents, 3);
    const std::string front = "\xFE", end = eod ? "\xFF$" : "\xFF";
    EXPECT_EQ(documents(path("out/x_text_document")),
              (std::vector<std::string>{front + "a" + end, front + "b" + end, front + "c" + end}));
  }
}

TEST_F(TokenizeFiles, SeveralKeys) {
  const std::string b = write("b.jsonl", "{\"text\":\"four\",\"title\":\"T4\"}\n{\"title\":\"\",\"text\":\"five\"}\n");
  auto o = options({b, write("a.txt", "six")});
  o.json_keys = {"title", "text"};
  const auto summary = run(o);
  EXPECT_EQ(documents(path("out/x_title_document")), (std::vector<std::string>{"T4"}));
  EXPECT_EQ(documents(path("out/x_text_document")), (std::vector<std::string>{"four", "five", "six"}));
  EXPECT_EQ(summary.empty_documents, 1);
  o.json_keys = {"title"};  // paragraphs still go to `text`
  run(o);
  EXPECT_EQ(documents(path("out/x_text_document")), (std::vector<std::string>{"six"}));
}

TEST_F(TokenizeFiles, WorkersDoNotChangeTheOutput) {
  const std::string text = long_text();
  const std::string a = write("a.txt", text);
  std::string lines;
  for (int i = 0; i < 2000; ++i)
    lines += nlohmann::json{{"text", std::string(static_cast<size_t>(i % 300 + 1), 'z') + " end"}}.dump() + "\n";
  const std::string b = write("b.jsonl", lines);
  std::string bin, idx;
  for (int workers : {1, 2, 5}) {
    auto o = options({a, b});
    o.workers = workers;
    o.append_eod = true;
    run(o, "bpe:tests/golden/bpe/gpt2/tokenizer.json");
    const std::string new_bin = read(path("out/x_text_document.bin")), new_idx = read(path("out/x_text_document.idx"));
    if (workers > 1) {
      EXPECT_TRUE(new_bin == bin && new_idx == idx) << workers << " workers";
    }
    bin = new_bin;
    idx = new_idx;
  }
  // Two-byte ids, 0 at the end of each document: without those, the tokens give the text back.
  const auto tokenizer = make_tokenizer("bpe:tests/golden/bpe/gpt2/tokenizer.json");
  const TokenFile file(path("out/x_text_document"), tokenizer->vocab_size());
  std::vector<int32_t> ids(static_cast<size_t>(file.length(3000)));
  file.read(3000, 0, ids);
  EXPECT_EQ(ids.back(), 0);
  const size_t start = text.find("huge\n");
  const std::string huge = text.substr(start, text.size() - 6 - start);
  EXPECT_EQ(tokenizer->decode(std::span(ids).first(ids.size() - 1)), huge);
  // One document in several pieces is encoded as if it were whole.
  ids.pop_back();
  EXPECT_TRUE(ids == tokenizer->encode(huge));
}

TEST_F(TokenizeFiles, BadLinesStopOrAreCounted) {
  const std::string b = write("b.jsonl", "{\"text\":\"a\"}\nnonsense\n{\"text\":\"b\"}\n{\"txt\":\"c\"}\n");
  auto o = options({b});
  expect_error(ExitCode::kBadData, "b.jsonl:2: not valid JSON", [&] { run(o); });
  EXPECT_FALSE(std::filesystem::exists(path("out/x_text_document.idx")));
  EXPECT_TRUE(std::filesystem::is_empty(path("out"))) << "a temporary file was left";
  o.skip_bad_lines = true;
  const auto summary = run(o);
  EXPECT_EQ(summary.skipped_lines, 2);
  EXPECT_NE(summary.first_skipped.find("b.jsonl:2"), std::string::npos);
  EXPECT_EQ(documents(path("out/x_text_document")), (std::vector<std::string>{"a", "b"}));
}

// The first error in the input is the one reported, whichever worker is faster.
TEST_F(TokenizeFiles, FirstErrorWins) {
  std::string lines = "{\"text\":\"" + std::string(1 << 20, 'a') + "\"}\nbad\n";
  for (int i = 0; i < 20; ++i) lines += "{\"text\":\"" + std::string(300000, 'b') + "\"}\nbad\n";
  const std::string b = write("b.jsonl", lines);
  for (int i = 0; i < 5; ++i) {
    expect_error(ExitCode::kBadData,
                 "b.jsonl:2:", [&] { run(options({b}), "bpe:tests/golden/bpe/gpt2/tokenizer.json"); });
  }
}

TEST_F(TokenizeFiles, AnErrorLeavesTheOldPair) {
  run(options({write("a.txt", "old")}));
  const std::string before = read(path("out/x_text_document.bin"));
  expect_error(ExitCode::kBadData, "b.jsonl:1", [&] { run(options({path("a.txt"), write("b.jsonl", "x\n")})); });
  EXPECT_EQ(read(path("out/x_text_document.bin")), before);
  EXPECT_EQ(documents(path("out/x_text_document")), (std::vector<std::string>{"old"}));
}

TEST_F(TokenizeFiles, NothingToDo) {
  expect_error(ExitCode::kBadData, "no text", [&] { run(options({write("a.txt", "")})); });
  expect_error(ExitCode::kBadData, "no text", [&] { run(options({write("a.txt", " \n\n")})); });
  expect_error(ExitCode::kBadData, "no text", [&] { run(options({write("a.jsonl", "{\"text\":\"\"}\n")})); });
  expect_error(ExitCode::kBadData, "no.txt", [&] { run(options({write("a.txt", "a"), path("no.txt")})); });
  EXPECT_FALSE(std::filesystem::exists(path("out/x_text_document.bin")));
}

TEST_F(TokenizeFiles, WrongUse) {
  const std::string a = write("a.txt", "a"), b = write("b.jsonl", "{\"text\":\"a\"}");
  expect_error(ExitCode::kUsage, "must end in", [&] { run(options({write("a.pdf", "a")})); });
  expect_error(ExitCode::kUsage, "unpack it first", [&] { run(options({path("a.jsonl.gz")})); });
  expect_error(ExitCode::kUsage, "--input", [&] { run(options({})); });
  const auto with = [&](const std::string& input, std::vector<std::string> keys, const std::string& prefix) {
    auto o = options({input});
    o.json_keys = std::move(keys);
    if (!prefix.empty()) o.prefix = prefix;
    return o;
  };
  expect_error(ExitCode::kUsage, "no meaning", [&] { run(with(a, {"title"}, "")); });
  expect_error(ExitCode::kUsage, "given twice", [&] { run(with(b, {"text", "text"}, "")); });
  expect_error(ExitCode::kUsage, "file name", [&] { run(with(b, {"a/b"}, "")); });
  expect_error(ExitCode::kUsage, "path prefix", [&] { run(with(a, {"text"}, "out/")); });
}

TEST_F(TokenizeFiles, ProgressCanStop) {
  const std::string a = write("a.txt", long_text());
  expect_error(ExitCode::kPreempted, "enough", [&] {
    tokenize_files(*make_tokenizer("byte"), options({a}),
                   [](const TokenizeProgress&) { throw Error(ExitCode::kPreempted, "enough"); });
  });
  TokenizeProgress last;
  tokenize_files(*make_tokenizer("byte"), options({a}), [&](const TokenizeProgress& p) {
    EXPECT_GE(p.bytes, last.bytes);
    last = p;
  });
  EXPECT_EQ(last.bytes, last.total_bytes);
  EXPECT_EQ(last.documents, 3002);
}

TEST(TokenizeProgressText, ShowsWhatIsKnown) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(with_commas(-123456), "-123,456");
  const TokenizeProgress half{50'000'000, 100'000'000, 1234, 20'000'000};
  EXPECT_EQ(progress_text(half, 2.0, true),
            "[============>           ]  50%  50.0/100.0 MB  25.0 MB/s  1,234 documents  20.00 M tokens  ETA 0:02");
  EXPECT_EQ(progress_text({0, 0, 0, 0}, 0.0, false), "100%  0.0/0.0 MB  0.0 MB/s  0 documents  0.00 M tokens");
}

}  // namespace
}  // namespace thinwire::test::tokenize_files_test
