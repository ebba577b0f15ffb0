// Every value has its place, and the parser agrees with nlohmann::json on every text that both may judge.
#include "engine/run/config/json_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <random>

namespace thinwire::json_text_test {
namespace {

// The text in strict JSON, for nlohmann to judge: comments and one comma behind a last value become blanks, Python's
// words become JSON's. nullopt: a comment is not closed.
std::optional<std::string> strict_text(const std::string& text) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::string out;
  // The last two characters of `out` that are neither blank nor in a comment.
  size_t last = std::string::npos, before_last = last;
  const auto add = [&](const std::string& token) {
    before_last = last, last = out.size();
    out += token;
  };
  for (size_t i = 0, end = 0; i < text.size(); i = end) {
    const char c = text[i];
    end = i + 1;
    if (c == '"') {
      while (end < text.size() && text[end] != '"' && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, text.size());
      add(text.substr(i, end - i));
    } else if (c == '#' || text.compare(i, 2, "//") == 0) {
      end = std::min(text.find('\n', i), text.size());
      out += ' ';
    } else if (text.compare(i, 2, "/*") == 0) {
      end = text.find("*/", i + 2);
      if (end == std::string::npos) return std::nullopt;
      end += 2;
      out += ' ';
    } else if (is_word(c)) {
      while (end < text.size() && is_word(text[end])) ++end;
      const std::string word = text.substr(i, end - i);
      add(word == "True" ? "true" : word == "False" ? "false" : word == "None" ? "null" : word);
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      out += c;
    } else {
      const bool closes = (c == '}' || c == ']') && before_last != std::string::npos && out[last] == ',';
      if (closes && std::string(",{[:").find(out[before_last]) == std::string::npos) out[last] = ' ';
      add({c});
    }
  }
  return out;
}

TEST(JsonText, CommentsCommasAndWords) {
  for (const auto& [text, strict] :
       std::initializer_list<std::pair<const char*, const char*>>{{"{\"a\": 1, // x\n}", "{\"a\": 1}"},
                                                                  {"{\"a\": 1 /* , */ , # y\n }", "{\"a\": 1}"},
                                                                  {"[1,2,]", "[1, 2]"},
                                                                  {"{\"a\": [1,], }", "{\"a\": [1]}"},
                                                                  {"{\"a//b\": \"#,]/*\"}", "{\"a//b\": \"#,]/*\"}"},
                                                                  {"{\"a\": \"\\\",]\"}", "{\"a\": \"\\\",]\"}"},
                                                                  {"[True, False, None]", "[true, false, null]"},
                                                                  {"[\"True\"]", "[\"True\"]"},
                                                                  {"/* a\nb */1// c", "1"}}) {
    const JsonText t = parse_json_text(text);
    EXPECT_TRUE(t.problems.empty()) << text;
    EXPECT_EQ(to_json(t.root), nlohmann::json::parse(strict)) << text;
  }
  // Only one comma, and only behind a value.
  for (const char* text : {"[,]", "[1,,]", "{,}", "{\"a\": 1,,}", "{\"a\":,}", "[Truer]", "[1] /* c"})
    EXPECT_FALSE(parse_json_text(text).syntax_ok()) << text;
  const JsonText t = parse_json_text("/* a\n*/ 1 /* b");
  ASSERT_EQ(t.problems.size(), 1u);
  EXPECT_EQ(t.problems[0].message, "the comment /* is not closed");
  EXPECT_EQ(std::pair(t.problems[0].at.line, t.problems[0].at.column), std::pair(2, 6));
}

TEST(JsonText, Values) {
  const JsonText t = parse_json_text(
      "{\"i\": -7, \"r\": 0.97e-4, \"s\": \"\\u00e9\\ud83d\\ude00\\n\", \"l\": [true, null, 1e2], \"o\": {\"x\": "
      "9223372036854775807}}");
  ASSERT_TRUE(t.problems.empty());
  const nlohmann::json v = to_json(t.root);
  EXPECT_EQ(v["i"], -7);
  EXPECT_TRUE(v["i"].is_number_integer());
  EXPECT_EQ(v["r"].get<double>(), 0.97e-4);
  EXPECT_EQ(v["s"], "\xc3\xa9\xf0\x9f\x98\x80\n");
  EXPECT_TRUE(v["l"][2].is_number_float());
  EXPECT_EQ(v["o"]["x"].get<int64_t>(), INT64_MAX);
}

TEST(JsonText, PositionsCountCharacters) {
  const JsonText t = parse_json_text("{\"\xc3\xa9\xc3\xa9\": 1,\r\n /* \xe2\x82\xac */ \"b\": [10,\n20]}");
  ASSERT_TRUE(t.problems.empty());
  EXPECT_EQ(t.root.members[0].value.at.column, 8);
  EXPECT_EQ(t.root.members[1].at.line, 2);
  EXPECT_EQ(t.root.members[1].at.column, 10);
  EXPECT_EQ(t.root.members[1].value.items[1].at.line, 3);
  EXPECT_EQ(t.root.members[1].value.items[1].at.column, 1);
}

TEST(JsonText, DuplicatesNameTheirPath) {
  const JsonText t = parse_json_text("{\"a\": {\"b\": 1,\n\"b\": 2}}");
  ASSERT_EQ(t.problems.size(), 1u);
  EXPECT_EQ(t.problems[0].key, "a.b");
  EXPECT_EQ(t.problems[0].at.line, 2);
  EXPECT_EQ(t.problems[0].message, "given twice in the same object, first in line 1");
  EXPECT_TRUE(t.syntax_ok());
}

TEST(JsonText, DepthLimit) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_TRUE(parse_json_text(nested(kMaxJsonDepth)).syntax_ok());
  EXPECT_FALSE(parse_json_text(nested(kMaxJsonDepth + 1)).syntax_ok());
  EXPECT_FALSE(parse_json_text(std::string(1 << 20, '[')).syntax_ok());
}

// nlohmann judges the strict text. We refuse more: integers that it rounds or keeps unsigned, and an empty key given
// twice.
bool refused_by_us_alone(const std::string& message) {
  return message.find("does not fit in 64 bits") != std::string::npos ||
         message.find("given twice") != std::string::npos;
}

TEST(JsonText, AgreesWithNlohmannOnRandomTexts) {
  std::mt19937 random(20240611);
  const std::string alphabet = "{}[]:,\"\\/ \n\t0123456789.-+eEtrufalsn#*u\xc3\xa9\xe2\x82\xac\xff";
  const std::vector<std::string> seeds = {"{\"a\": [1, 2.5e-3, \"x\\n\"], \"b\": {\"c\": null, \"d\": true}}",
                                          "[0, -1, 1.0, 1e5, -0.5E+2, \"\\u00e9\\ud83d\\ude00\", {}, []]",
                                          "{\"k\": \"v\", // c\n \"l\": [1,2,], /* x */ }",
                                          "[\"\xf0\x9f\x98\x80\", \"\xe2\x82\xac\", 12345678901234567890]"};
  int accepted = 0, refused = 0;
  for (int round = 0; round < 60000; ++round) {
    std::string text = seeds[random() % seeds.size()];
    const int edits = 1 + static_cast<int>(random() % 3);
    for (int e = 0; e < edits && !text.empty(); ++e) {
      const size_t at = random() % text.size();
      const char c = alphabet[random() % alphabet.size()];
      switch (random() % 4) {
        case 0:
          text[at] = c;
          break;
        case 1:
          text.insert(at, 1, c);
          break;
        case 2:
          text.erase(at, 1);
          break;
        default:
          text = text.substr(0, at) + text.substr(random() % text.size());
          break;
      }
    }
    const JsonText ours = parse_json_text(text);
    const std::optional<std::string> strict = strict_text(text);
    if (!strict) {
      EXPECT_FALSE(ours.syntax_ok());
      continue;
    }
    const nlohmann::json theirs = nlohmann::json::parse(*strict, nullptr, false);
    const bool they_accept = !theirs.is_discarded();
    if (ours.syntax_ok()) {
      ASSERT_TRUE(they_accept) << text;
      if (ours.problems.empty()) {
        ASSERT_EQ(to_json(ours.root), theirs) << text;
      }
      ++accepted;
    } else {
      ASSERT_TRUE(!they_accept || refused_by_us_alone(ours.problems[0].message)) << text << "\n"
                                                                                 << ours.problems[0].message;
      ++refused;
    }
  }
  // The generator must reach both sides, or the comparison proves little.
  EXPECT_GT(accepted, 3000);
  EXPECT_GT(refused, 3000);
}

}  // namespace
}  // namespace thinwire::json_text_test
