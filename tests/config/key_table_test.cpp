// The table is consistent with itself, with the committed documents, and with the schema that it generates.
#include "engine/run/config/key_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "engine/base/core/text.h"
#include "engine/run/config/check_value.h"
#include "engine/run/config/json_text.h"
#include "engine/run/config/resolved_json.h"
#include "tests/config/config_test_support.h"

namespace thinwire::key_table_test {
namespace {

std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

TEST(KeyTable, DefaultsPassTheirOwnChecks) {
  for (const KeyTopic& topic : key_table().topics()) {
    EXPECT_FALSE(topic.keys.empty()) << topic.title;
    for (const KeySpec& key : topic.keys) {
      EXPECT_FALSE(key.doc.empty()) << key.name;
      EXPECT_EQ(key.name, normalised_key(key.name));
      for (const std::string& neutral : key.neutral) EXPECT_TRUE(nlohmann::json::accept(neutral)) << key.name;
      const nlohmann::json value = nlohmann::json::parse(key.default_json);
      if (value.is_string() && !key.allowed.empty()) {
        EXPECT_NE(std::find(key.allowed.begin(), key.allowed.end(), value.get<std::string>()), key.allowed.end())
            << key.name;
      }
      if (value.is_number()) {
        EXPECT_GE(value.get<double>(), key.bounds.min) << key.name;
        EXPECT_LE(value.get<double>(), key.bounds.max) << key.name;
      }
    }
  }
}

TEST(KeyTable, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("ab", "ba"), 1);
  EXPECT_EQ(edit_distance("same", "same"), 0);
  // A bound changes no distance up to it, and keeps larger ones above it.
  std::mt19937 rng(3);
  const auto word = [&] {
    std::string text(rng() % 9, 'a');
    for (char& c : text) c = static_cast<char>('a' + rng() % 5);
    return text;
  };
  for (int i = 0; i < 2000; ++i) {
    const std::string a = word(), b = word();
    const int distance = edit_distance(a, b);
    EXPECT_EQ(edit_distance(b, a), distance);
    for (int most = 0; most <= 9; ++most)
      EXPECT_EQ(std::min(edit_distance(a, b, most), most + 1), std::min(distance, most + 1)) << a << " " << b;
  }
}

TEST(KeyTable, NearestFindsEveryKeyWithOneLetterMissing) {
  for (const KeyTopic& topic : key_table().topics()) {
    for (const KeySpec& key : topic.keys) {
      if (key.status != KeyStatus::kUsed || key.name.size() - key.name.rfind('.') - 1 < 6) continue;
      std::string typo = key.name;
      typo.erase(typo.size() - 2, 1);
      if (key_table().find(typo) != nullptr) continue;
      const std::string near = key_table().nearest(typo);
      EXPECT_LE(edit_distance(near, typo), 1) << typo << " -> " << near;
    }
  }
  EXPECT_EQ(key_table().nearest("something_else_entirely"), "");
  EXPECT_EQ(key_table().nearest(std::string(100000, 'x')), "");
}

TEST(KeyTable, CommittedDocumentsAreTheGeneratedOnes) {
  const char* how = "run the build tool config_docs on docs/";
  EXPECT_TRUE(file_text("docs/config.md") == markdown()) << how;
  EXPECT_TRUE(file_text("docs/config.schema.json") == json_schema()) << how;
}

TEST(KeyTable, HelpNamesEveryKey) {
  const std::string help = help_keys();
  for (const KeyTopic& topic : key_table().topics())
    for (const KeySpec& key : topic.keys)
      if (key.name.rfind("compression.", 0) != 0) {
        EXPECT_NE(help.find(key.name), std::string::npos) << key.name;
      }
}

TEST(KeyTable, HelpTakesPartOfANameOrOfASentence) {
  const auto lines_of = [](const std::string& pattern) {
    std::set<std::string> names;
    std::istringstream lines(help_keys(pattern));
    for (std::string line; std::getline(lines, line);)
      if (line.rfind("  ", 0) == 0 && line[2] != ' ') names.insert(line.substr(2, line.find(' ', 2) - 2));
    return names;
  };
  const std::set<std::string> rates = lines_of("Params.LR");
  EXPECT_EQ(rates, (std::set<std::string>{"optimizer.params.lr"}));
  EXPECT_EQ(lines_of("num-layers").count("num_layers"), 1u);                    // - equals _
  EXPECT_EQ(lines_of("kv_channels"), (std::set<std::string>{"head_dim"}));      // an alias
  EXPECT_EQ(lines_of("t?ain_iters*"), (std::set<std::string>{"train_iters"}));  // with wildcards
  EXPECT_EQ(lines_of("dp.gradient.codec").size(), 1u);
  EXPECT_GE(lines_of("residual stream").count("hidden_size"), 1u);  // no name has a blank
  EXPECT_NE(help_keys("attention_mlp_fusion_of_nobody"), help_keys());
  EXPECT_EQ(help_keys("attention_mlp_fusion_of_nobody"), "");
}

TEST(KeyTable, CompletionHasEveryKeyThatWeUseOnceAndItsWords) {
  std::map<std::string, std::string> words;
  std::istringstream lines(completion_keys());
  for (std::string line; std::getline(lines, line);) {
    ASSERT_EQ(line.front(), '=') << line;
    const size_t tab = line.find('\t');
    EXPECT_TRUE(words.emplace(line.substr(1, tab - 1), line.substr(tab + 1)).second) << line;
  }
  for (const KeyTopic& topic : key_table().topics())
    for (const KeySpec& key : topic.keys)
      EXPECT_EQ(words.count(key.name), key.status == KeyStatus::kNoted || key.status == KeyStatus::kRefused ? 0u : 1u)
          << key.name;
  EXPECT_EQ(words["precision"].find('|'), std::string::npos);
  EXPECT_NE((" " + words["compression"] + " ").find(" thinwire "), std::string::npos) << "the presets";
  EXPECT_EQ(words["compression"], words["compression.preset"]);
}

// A small judge of the schema features that we use: $ref to the rule, type, properties, additionalProperties, bounds,
// items, anyOf / enum.
bool fits(const nlohmann::json& schema, const nlohmann::json& value) {
  if (schema.contains("$ref")) {
    EXPECT_EQ(schema["$ref"], "#/definitions/rule");
    static const nlohmann::json rule = nlohmann::json::parse(json_schema())["definitions"]["rule"];
    return fits(rule, value);
  }
  if (schema.contains("type")) {
    const nlohmann::json types = schema["type"].is_array() ? schema["type"] : nlohmann::json::array({schema["type"]});
    bool any = false;
    for (const auto& t : types) {
      any = any || (t == "null" && value.is_null()) || (t == "boolean" && value.is_boolean()) ||
            (t == "string" && value.is_string()) || (t == "array" && value.is_array()) ||
            (t == "object" && value.is_object()) || (t == "number" && value.is_number()) ||
            (t == "integer" && (value.is_number_integer() ||
                                (value.is_number() && value.get<double>() == std::floor(value.get<double>()))));
    }
    if (!any) return false;
  }
  if (value.is_number()) {
    const double v = value.get<double>();
    if (schema.contains("minimum") && v < schema["minimum"].get<double>()) return false;
    if (schema.contains("maximum") && v > schema["maximum"].get<double>()) return false;
    if (schema.contains("exclusiveMinimum") && v <= schema["exclusiveMinimum"].get<double>()) return false;
    if (schema.contains("exclusiveMaximum") && v >= schema["exclusiveMaximum"].get<double>()) return false;
  }
  if (schema.contains("anyOf")) {
    bool any = false;
    for (const auto& option : schema["anyOf"])
      any = any || (option.contains("enum")
                        ? std::find(option["enum"].begin(), option["enum"].end(), value) != option["enum"].end()
                        : fits(option, value));
    if (!any) return false;
  }
  if (value.is_array() && schema.contains("items"))
    for (const auto& item : value)
      if (!fits(schema["items"], item)) return false;
  if (value.is_object() && schema.contains("properties")) {
    for (const auto& [key, v] : value.items()) {
      if (!schema["properties"].contains(key)) return schema.value("additionalProperties", true);
      if (!fits(schema["properties"][key], v)) return false;
    }
  }
  return true;
}

TEST(KeyTable, LongValuesAreCutBetweenCharacters) {
  EXPECT_EQ(shown(std::string(58, 'a')), '"' + std::string(58, 'a') + '"');
  // 1 + 55 bytes, then characters of two, three and four bytes across byte 57.
  for (const char* character : {"\u00e9", "\u20ac", "\U0001f600"})
    EXPECT_EQ(shown(std::string(55, 'a') + character + std::string(9, 'b')), '"' + std::string(55, 'a') + "...");
}

TEST(KeyTable, SchemaAcceptsWhatLoads) {
  const nlohmann::json schema = nlohmann::json::parse(json_schema());
  EXPECT_EQ(schema["$schema"], "http://json-schema.org/draft-07/schema#");
  for (const char* name : {"quickstart", "gpt2_tiny", "neox_tiny", "llama_tiny", "gpt2_124m", "llama_1b"}) {
    SCOPED_TRACE(name);
    const std::string path = std::string("configs/") + name + ".json";
    EXPECT_TRUE(fits(schema, to_json(parse_json_text(file_text(path)).root)));
    EXPECT_TRUE(fits(schema, resolved_json(load_config({path}, {}))));
  }
  EXPECT_FALSE(fits(schema, {{"num_layer", 4}}));
  EXPECT_FALSE(fits(schema, {{"num_layers", 0}}));
  EXPECT_FALSE(fits(schema, {{"optimizer", {{"params", {{"betas", {1.5}}}}}}}));
  EXPECT_FALSE(fits(schema, {{"compression", {{"dp.gradient", {{"codek", "x"}}}}}}));
  EXPECT_TRUE(fits(schema, {{"compression", {{"dp.gradient", {{"codec", "identity"}}}}}}));
}

}  // namespace
}  // namespace thinwire::key_table_test
