// The pre-pass keeps positions, and the parser agrees with nlohmann::json on every text that both may judge.
#include "engine/run/config/json_text.h"

#include <gtest/gtest.h>

#include <random>

namespace thinwire::json_text_test {
namespace {

std::string blanked(const std::string& text) {
  std::vector<JsonProblem> problems;
  const std::string out = blank_extensions(text, problems);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(out.size(), text.size());
  return out;
}

TEST(JsonText, BlanksKeepPositions) {
  EXPECT_EQ(blanked("{\"a\": 1, // x\n}"), "{\"a\": 1" + std::string(6, ' ') + "\n}");
  EXPECT_EQ(blanked("{\"a\": 1 /* , */ , # y\n }"), "{\"a\": 1" + std::string(14, ' ') + "\n }");
  EXPECT_EQ(blanked("[1,2,]"), "[1,2 ]");
  EXPECT_EQ(blanked("{\"a\": [1,], }"), "{\"a\": [1 ]  }");
  EXPECT_EQ(blanked("{\"a//b\": \"#,]/*\"}"), "{\"a//b\": \"#,]/*\"}");
  EXPECT_EQ(blanked("{\"a\": \"\\\",]\"}"), "{\"a\": \"\\\",]\"}");
  EXPECT_EQ(blanked("[True, False, None, Truer]"), "[true, false, null, Truer]");
  EXPECT_EQ(blanked("[\"True\"]"), "[\"True\"]");
  EXPECT_EQ(blanked("/* a\nb */1"), "    \n    1");
  // Only one comma, and only behind a value.
  EXPECT_EQ(blanked("[,]"), "[,]");
  EXPECT_EQ(blanked("[1,,]"), "[1,,]");
  EXPECT_EQ(blanked("{,}"), "{,}");
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

// nlohmann judges the blanked text. We refuse more: integers that it rounds or keeps unsigned, and an empty key given
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
    std::vector<JsonProblem> comment_problems;
    const std::string plain = blank_extensions(text, comment_problems);
    if (!comment_problems.empty()) {
      EXPECT_FALSE(ours.syntax_ok());
      continue;
    }
    const nlohmann::json theirs = nlohmann::json::parse(plain, nullptr, false);
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
