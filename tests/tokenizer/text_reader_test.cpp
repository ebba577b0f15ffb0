// Paragraphs and JSON lines: what is a document, which bytes it keeps, and where long ones are cut.
#include "data/tokenizer/text_reader.h"

#include <cctype>
#include <random>

#include "data/tokenizer/tokenizer.h"
#include "tests/tokenizer/tokenizer_test_support.h"

namespace thinwire::test::text_reader_test {
namespace {

class TextReader : public ScratchTest {
 protected:
  std::vector<std::string> paragraphs(const std::string& content) {
    ParagraphReader reader(write("t.txt", content));
    std::vector<std::string> documents;
    TextPiece piece;
    bool open = false;
    while (reader.next(piece)) {
      if (!open) documents.emplace_back();
      documents.back() += piece.text;
      open = !piece.ends_document;
      EXPECT_LE(piece.text.size(), kPieceBytes);
      EXPECT_FALSE(piece.text.empty());
    }
    EXPECT_FALSE(open);
    EXPECT_EQ(reader.bytes_read(), content.size());
    return documents;
  }
  std::vector<std::string> parse(const std::string& line, std::vector<std::string> keys = {"text"}) {
    return parse_json_line(line, keys, "f.jsonl", 7);
  }
};

using Documents = std::vector<std::string>;

TEST_F(TextReader, Paragraphs) {
  EXPECT_EQ(paragraphs(""), Documents{});
  EXPECT_EQ(paragraphs("\n\n  \n\t\n"), Documents{});
  EXPECT_EQ(paragraphs("   "), Documents{});
  EXPECT_EQ(paragraphs("a"), Documents{"a"});
  EXPECT_EQ(paragraphs("a\n"), Documents{"a"});
  EXPECT_EQ(paragraphs("a\nb\n"), Documents{"a\nb"});
  EXPECT_EQ(paragraphs("a\n\nb"), (Documents{"a", "b"}));
  EXPECT_EQ(paragraphs("\n\na\n\n\n \nb\n\n"), (Documents{"a", "b"}));
  EXPECT_EQ(paragraphs("  a  \n b\t\n\nc"), (Documents{"  a  \n b\t", "c"}));
  EXPECT_EQ(paragraphs("a\n   "), Documents{"a"});
  EXPECT_EQ(paragraphs("a\n   b"), Documents{"a\n   b"});
}

TEST_F(TextReader, WindowsLineEnds) {
  EXPECT_EQ(paragraphs("a\r\nb\r\n\r\nc\r\n"), (Documents{"a\r\nb", "c"}));
  EXPECT_EQ(paragraphs("a\rb\n\nc"), (Documents{"a\rb", "c"}));
  EXPECT_EQ(paragraphs("a\n\r\nb"), (Documents{"a", "b"}));
  EXPECT_EQ(paragraphs("x\ny\r"), Documents{"x\ny\r"});
}

TEST_F(TextReader, AnyBytes) {
  EXPECT_EQ(paragraphs(std::string("a\0b\n\n\xFF\xC3", 7)), (Documents{std::string("a\0b", 3), "\xFF\xC3"}));
  EXPECT_EQ(paragraphs("\xEF\xBB\xBFtext"), Documents{"text"});
  EXPECT_EQ(paragraphs("\xEF\xBB"), Documents{"\xEF\xBB"});
  expect_error(ExitCode::kBadData, "UTF-16", [&] {
    paragraphs(
        std::string("\xFF\xFE"
                    "a\0",
                    4));
  });
}

// Random files against a split of the whole content.
TEST_F(TextReader, AgreesWithASplitInMemory) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 500; ++i) {
    std::string content;
    for (size_t n = rng() % 60; n > 0; --n) content += "\n\n\nab "[rng() % 6];
    Documents want;
    std::string open, line;
    const auto close = [&] {
      if (!open.empty()) want.push_back(open.substr(0, open.size() - 1));
      open.clear();
    };
    for (char c : content + "\n") {
      line += c;
      if (c != '\n') continue;
      if (line.find_first_not_of(" \n") == std::string::npos) {
        close();
      } else {
        open += line;
      }
      line.clear();
    }
    close();
    ASSERT_EQ(paragraphs(content), want) << ::testing::PrintToString(content);
  }
}

TEST_F(TextReader, LongParagraphs) {
  std::string words;
  while (words.size() < 3 * kPieceBytes) words += words.size() % 7 == 0 ? "several words\n" : "one ";
  words += "end";
  EXPECT_EQ(paragraphs("x\n\n" + words + "\n\ny\n"), (Documents{"x", words, "y"}));
  const std::string solid(kPieceBytes * 2 + 5, 'x');
  EXPECT_EQ(paragraphs(solid + "\n\n" + solid), (Documents{solid, solid}));
  // The line is exactly as long as a piece, or its end falls on the border.
  for (size_t extra : {0, 1, 2}) {
    const std::string exact(kPieceBytes - 1 + extra, 'y');
    EXPECT_EQ(paragraphs(exact + "\n\nz"), (Documents{exact, "z"}));
  }
}

TEST_F(TextReader, CutsKeepWordsAndCharacters) {
  EXPECT_EQ(safe_cut("short", 10), 5u);
  EXPECT_EQ(safe_cut("one two three", 9), 7u);
  EXPECT_EQ(safe_cut("one two  three", 9), 7u);      // before the run of spaces, not inside
  EXPECT_EQ(safe_cut("a bb cc dd\nee ff", 12), 7u);  // rather before a blank than before a line end
  EXPECT_EQ(safe_cut("abcdefgh", 4), 4u);
  EXPECT_EQ(safe_cut("abc\xE2\x82\xAC"
                     "def",
                     4),
            3u);
  EXPECT_EQ(safe_cut("abc\xE2\x82\xAC"
                     "def",
                     5),
            3u);
  EXPECT_EQ(safe_cut(std::string(20, '\x80'), 9), 9u);  // no characters at all: still moves on
  EXPECT_EQ(safe_cut("\xE2\x82\xAC", 1), 1u);
}

// Encoding piece by piece gives the ids of the whole.
TEST_F(TextReader, CutsDoNotChangeIds) {
  std::mt19937_64 rng(4);
  const auto gpt2 = make_tokenizer("bpe:tests/golden/bpe/gpt2/tokenizer.json");
  const auto llama3 = make_tokenizer("bpe:tests/golden/bpe/llama3/tokenizer.json");
  const char* const kParts[] = {
      " ",  "  ", "\n", "\n\n", "the", "day's", "12", "...", "\xC3\xA9", "\xE3\x80\x80", "\xF0\x9F\x99\x82",
      "\t", "'ll"};
  int checked = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t n = 20 + rng() % 40; n > 0; --n) text += kParts[rng() % std::size(kParts)];
    const size_t limit = 20 + rng() % 20;
    const size_t cut = safe_cut(text, limit);
    ASSERT_TRUE(cut > 0 && (cut <= limit || cut == text.size()));
    const std::string_view view = text;
    // The other kind of cut, between two characters, promises nothing.
    const bool safe = cut < text.size() &&
                      (view[cut] == ' ' || view[cut] == '\t' ? std::isgraph(view[cut - 1])
                                                             : std::isspace(view[cut]) && std::isalnum(view[cut - 1]));
    checked += safe ? 1 : 0;
    if (!safe) continue;
    for (const Tokenizer* tokenizer : {gpt2.get(), llama3.get()}) {
      auto ids = tokenizer->encode(view.substr(0, cut));
      const auto rest = tokenizer->encode(view.substr(cut));
      ids.insert(ids.end(), rest.begin(), rest.end());
      ASSERT_EQ(ids, tokenizer->encode(text)) << text << " cut at " << cut;
    }
  }
  EXPECT_GT(checked, 1000);
}

TEST_F(TextReader, JsonStrings) {
  EXPECT_EQ(parse(R"({"text":"a\n\"\\\/\tb"})"), Documents{"a\n\"\\/\tb"});
  EXPECT_EQ(parse(R"({"text":"\u00e9\u65e5\ud83d\ude42\u0000x"})"),
            Documents{std::string("\xC3\xA9\xE6\x97\xA5\xF0\x9F\x99\x82\0x", 11)});
  EXPECT_EQ(parse(R"( {"meta":{"a":[1,{}]},"text":"","other":null} )"), Documents{""});
  EXPECT_EQ(parse(R"({"b":"2","a":"1"})", {"a", "b"}), (Documents{"1", "2"}));
  EXPECT_EQ(parse(R"({"x":NaN,"text":"NaN \"-Infinity\\","y":[-Infinity, Infinity]})"),
            Documents{"NaN \"-Infinity\\"});  // as Python writes its floats
}

TEST_F(TextReader, BadJson) {
  for (const char* line : {"{", "x", "{\"text\":\"a", "{\"text\":\"a\"} {}", "{'text':'a'}", "{\"text\":\"\\ud83d\"}",
                           "{\"text\":\"\\ude42\"}", "{\"text\":\"\\ud83dx\"}", "{\"text\":\"\\x\"}",
                           "{\"text\":\"\xFF\"}", "{\"text\":\"a\nb\"}", "{\"text\":1e999}",
                           "{\"text\":\"a\",\"n\":NaNs}", "{NaN:1}", "{\"n\":+Infinity,\"text\":\"a\"}"}) {
    SCOPED_TRACE(line);
    expect_error(ExitCode::kBadData, "f.jsonl:7: not valid JSON", [&] { parse(line); });
  }
  expect_error(ExitCode::kBadData, "f.jsonl:7: each line", [&] { parse("[\"text\"]"); });
  expect_error(ExitCode::kBadData, "f.jsonl:7: each line", [&] { parse("\"text\""); });
  expect_error(ExitCode::kBadData, "no key \"text\"", [&] { parse("{\"Text\":\"a\"}"); });
  expect_error(ExitCode::kBadData, "is not a string", [&] { parse("{\"text\":3}"); });
  for (const char* line : {"{\"text\":null}", "{\"text\":NaN}"})
    expect_error(ExitCode::kBadData, "is not a string", [&] { parse(line); });
  expect_error(ExitCode::kBadData, "nested deeper", [&] { parse(std::string(500000, '[')); });
}

TEST_F(TextReader, Lines) {
  LineReader reader(write("l.jsonl", "\xEF\xBB\xBF{}\r\n\n  \n[1]\nlast"));
  TextPiece line;
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line.text, "{}");
  EXPECT_EQ(line.line, 1u);
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line.text, "[1]");
  EXPECT_EQ(line.line, 4u);
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line.text, "last");
  EXPECT_FALSE(reader.next(line));
}

TEST_F(TextReader, LongestLine) {
  LineReader reader(write("l.jsonl", "{}\n" + std::string(kLongestJsonLine + 1, ' ') + "\n"));
  TextPiece line;
  ASSERT_TRUE(reader.next(line));
  expect_error(ExitCode::kBadData, "l.jsonl:2: the line is longer than 64 MiB", [&] { reader.next(line); });
}

TEST_F(TextReader, MissingFiles) {
  expect_error(ExitCode::kBadData, "no.txt: cannot open", [&] { ParagraphReader reader(path("no.txt")); });
  expect_error(ExitCode::kBadData, "is a directory", [&] { LineReader reader(directory_.string()); });
}

// A disk that does not answer is no damaged text: reading address 0 of this process gives EIO.
TEST_F(TextReader, ReadErrorsAreNoBadData) {
  expect_error(ExitCode::kIo, "/proc/self/mem: cannot read", [] { LineReader reader("/proc/self/mem"); });
}

}  // namespace
}  // namespace thinwire::test::text_reader_test
