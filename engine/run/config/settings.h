// What the user wrote, flat: one setting per key with its place, checked against the table, and merged over several
// sources.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/core/key_spec.h"
#include "engine/run/config/json_text.h"

namespace thinwire {

// Where something was written. `order` is the number of the source (files, then overrides); it sorts messages.
struct Place {
  int order = 0;
  TextPosition at;
  std::string label;  // "a.json:3:5" or "command line: lr=2"
};

struct ConfigProblem {
  Place place;
  std::string key;
  std::string message;
  std::string text() const { return place.label + ": " + (key.empty() ? "" : key + ": ") + message; }
};

// Throws all violations of a configuration as one Error(kBadConfig): a headline and one line per violation, each
// `file:line:col: key: message` or `command line: key=value: key: message`, sorted by source and position.
[[noreturn]] void throw_problems(std::vector<ConfigProblem> problems);

// A key that was accepted but does nothing, or something that the user should know about a derived value.
struct ConfigNote {
  std::string key;
  std::string text;
};

struct WrittenRule;

struct Setting {
  // Of a type that the key takes; integers as integers, reals as doubles, strings in our spelling.
  nlohmann::json value;
  Place place;
  std::string spelled;             // the name as written
  std::vector<WrittenRule> rules;  // of compression.rules, and of a preset's placement
};

// By the key's own name (never an alias).
using Settings = std::map<std::string, Setting>;

// One element of a list of rules.
struct WrittenRule {
  Place place;
  std::string spelled;             // "compression.rules[2]"
  std::vector<std::string> sites;  // in the order of compression_sites()
  Settings when;                   // conditions, by name (presets.h)
  Settings fields;                 // by name relative to a site: "codec", "sum.bits", "select.stages" ...
};

// Reads one configuration after another, then merges them.
class SettingsReader {
 public:
  // `name` is shown in messages; `text` is YAML if the name says so, else JSON with the extensions of json_text.h.
  void add_text(const std::string& name, const std::string& text);
  // A preset (configs/compression, presets.h): its keys become those of a configuration, "rules" compression.rules.
  void add_preset(const std::string& name, const std::string& text);
  // A file that is not there: one more problem.
  void add_unreadable(const std::string& name, const std::string& reason);
  // `key.sub=value`: JSON where it parses, else a string. shown: what messages call it; empty: the text itself.
  void add_override(const std::string& text, const std::string& shown = "");

  // Behind the last source: later ones win.
  void merge();

  const Settings& settings() const { return merged_; }
  const std::vector<ConfigNote>& notes() const { return notes_; }
  std::vector<ConfigProblem>& problems() { return problems_; }
  const std::set<std::string>& broken() const { return broken_; }  // keys whose value was refused; "*": a whole source
  const Place& first_place() const { return first_place_; }        // for keys that are missing altogether

 private:
  struct Source;
  std::optional<JsonTree> parse_object(const std::string& text, const Source& source);
  void take_version(JsonTree& root, const Source& source);
  void read_object(const JsonTree& object, const std::string& prefix, Source& source);
  void read_entry(const std::string& path, const std::string& spelled, const Place& key_place, const JsonTree& value,
                  Source& source);
  void read_value(const KeySpec& key, const std::string& spelled, const Place& key_place, const JsonTree& value,
                  Source& source);
  std::vector<WrittenRule> read_rules(const JsonTree& list, const std::string& prefix, const std::string& spelled,
                                      const Source& source);
  std::vector<std::string> read_sites(const JsonTree& value, const std::string& spelled, const Source& source);
  void read_when(const JsonTree& value, const std::string& spelled, const Source& source, Settings& when);
  void withdraw(const std::string& section, const std::string& spelled, const Place& place, Source& source);
  void unknown_key(const std::string& path, const std::string& spelled, const Place& place);
  void rewrite_shorthands(Settings& source);
  void merge(Settings& source);
  void problem(const Place& place, const std::string& key, const std::string& message);

  std::vector<Settings> read_;
  Settings merged_;
  std::vector<ConfigNote> notes_;
  std::vector<ConfigProblem> problems_;
  std::set<std::string> broken_;
  Place first_place_{0, {1, 1}, "configuration"};
  int sources_ = 0;
};

}  // namespace thinwire
