// Members of a JSON object read by name, with the place of everything that is wrong: cluster and machine files.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "engine/run/config/json_text.h"

namespace thinwire {

// Collects problems as "file:line:col: key: what is wrong"; finish() throws them all as one Error(kBadConfig).
class FieldErrors {
 public:
  explicit FieldErrors(std::string file) : file_(std::move(file)) {}
  void add(TextPosition at, const std::string& key, const std::string& what);
  void finish() const;

 private:
  std::string file_, text_;
};

// One object. Every getter notes its key as known; unknown() reports the others with the nearest known one.
class Fields {
 public:
  Fields(const JsonTree& tree, std::string path, FieldErrors& errors);
  bool has(const std::string& key) const { return find(key) != nullptr; }
  // least and most: bounds that are allowed; `fallback` where the key is missing or wrong.
  double number(const std::string& key, double fallback, double least, double most);
  int64_t integer(const std::string& key, int64_t fallback, int64_t least, int64_t most);
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key, const std::string& fallback);
  // nullptr: missing, or of another kind (reported).
  const JsonTree* list(const std::string& key);
  const JsonTree* object(const std::string& key);
  void require(const std::string& key);
  void unknown();
  TextPosition at(const std::string& key) const;
  void error(const std::string& key, const std::string& what) { errors_.add(at(key), path_ + key, what); }

 private:
  const JsonTree* find(const std::string& key) const;
  const JsonTree* of_kind(const std::string& key, JsonTree::Kind kind);

  const JsonTree& tree_;
  std::string path_;
  FieldErrors& errors_;
  std::set<std::string> known_;
};

// Reads and parses a file into `text`'s tree; a missing file, a syntax error and duplicate keys are Error(kBadConfig).
JsonText read_json_file(const std::string& file);

}  // namespace thinwire
