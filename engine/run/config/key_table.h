// THE table of configuration keys, and how a spelled name finds its entry.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/core/key_spec.h"

namespace thinwire {

// One heading of the documentation and the keys under it.
struct KeyTopic {
  std::string title;
  std::string intro;
  std::vector<KeySpec> keys;
};

// A key; `rest` is what most keys do not have.
inline KeySpec key(std::string name, unsigned types, std::string default_json, std::string doc, KeySpec rest = {}) {
  rest.name = std::move(name), rest.types = types;
  rest.default_json = std::move(default_json), rest.doc = std::move(doc);
  return rest;
}

// key() for one scope; in a topic, `key` is that of most of its keys.
struct KeysOf {
  KeyScope scope;

  KeySpec operator()(std::string name, unsigned types, std::string default_json, std::string doc,
                     KeySpec rest = {}) const {
    rest.scope = scope;
    return key(std::move(name), types, std::move(default_json), std::move(doc), std::move(rest));
  }
  // A shorthand: another word for what other keys say.
  KeySpec word(std::string name, unsigned types, std::string doc, KeySpec rest = {}) const {
    rest.status = KeyStatus::kShorthand;
    return (*this)(std::move(name), types, "null", std::move(doc), std::move(rest));
  }
};

// The topics (keys_model.cpp, keys_training.cpp, keys_run.cpp, keys_compression.cpp, keys_foreign.cpp).
KeyTopic model_keys();
KeyTopic numerics_keys();
KeyTopic optimizer_keys();
KeyTopic batch_keys();
KeyTopic data_keys();
KeyTopic layout_keys();
KeyTopic compression_keys();
KeyTopic run_keys();
KeyTopic noted_keys();
KeyTopic refused_keys();

// Sites of the compression rules, literal dotted names (DESIGN: where bytes leave a rank).
const std::vector<std::string>& compression_sites();

// The objects that hold a key, outermost first, and its own name last: "compression.dp.gradient.sum.codec" is
// {compression, dp.gradient, sum, codec}, since names of sites keep their dot.
std::vector<std::string> key_path(const std::string& name);

// compression.rules and the fields of the sites' rules: they become rules, not values of their own.
bool is_rule_key(const std::string& name);

class KeyTable {
 public:
  KeyTable();

  const std::vector<KeyTopic>& topics() const { return topics_; }

  // Entry of a full dotted name or alias in which '-' is already '_'; nullptr if there is none.
  const KeySpec* find(const std::string& name) const;
  // What an entry's default_json says; integers of real keys as reals.
  const nlohmann::json& default_of(const KeySpec& key) const { return defaults_.at(&key); }
  // Objects that hold other keys: "zero_optimization", "compression.dp.gradient" ...
  bool is_section(const std::string& name) const { return sections_.count(name) != 0; }
  // The key that a plain value given for a section means ("optimizer": "adam"), empty if none.
  std::string section_value_key(const std::string& section) const;

  // The name or alias with the smallest edit distance to `name`; empty when nothing is near. Also knows what other
  // programs call our keys (n_layer, learning_rate, tp ...).
  std::string nearest(const std::string& name) const;

 private:
  std::vector<KeyTopic> topics_;
  std::map<std::string, const KeySpec*> by_name_;
  std::unordered_map<const KeySpec*, nlohmann::json> defaults_;
  std::set<std::string> sections_;
};

// Built once, immutable.
const KeyTable& key_table();

// '-' becomes '_'.
std::string normalised_key(std::string name);

std::vector<std::string> type_words(unsigned types);  // {"integer", "list"}
std::string types_text(unsigned types);               // "integer or list"
std::string bounds_text(const KeySpec& k);            // "at least 1, below 8", empty without bounds

// The same table as text: for --help-keys (a pattern is part of a name, or of the sentence where no name has it; * and
// ? stand for others; empty where nothing matches), for the manual, for completion (lines "=key<tab>words"), as a
// draft-07 JSON schema, and as docs/config.md.
std::string help_keys(const std::string& pattern = "");
std::string man_keys();
std::string completion_keys();
std::string json_schema();
std::string markdown();

}  // namespace thinwire
