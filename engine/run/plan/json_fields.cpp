// Strict reading of small JSON files: kinds, ranges, unknown keys.
#include "engine/run/plan/json_fields.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "engine/base/core/error.h"
#include "engine/base/core/text.h"

namespace thinwire {

void FieldErrors::add(TextPosition at, const std::string& key, const std::string& what) {
  text_ += (text_.empty() ? "" : "\n") + file_ + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) +
           ": " + (key.empty() ? "" : key + ": ") + what;
}

void FieldErrors::finish() const {
  if (!text_.empty()) throw_bad_config(text_);
}

Fields::Fields(const JsonTree& tree, std::string path, FieldErrors& errors)
    : tree_(tree), path_(std::move(path)), errors_(errors) {
  if (tree.kind != JsonTree::Kind::kObject)
    errors.add(tree.at, path_.empty() ? "" : path_.substr(0, path_.size() - 1),
               std::string("an object { ... } is needed here, not ") + kind_name(tree.kind));
}

const JsonTree* Fields::find(const std::string& key) const {
  for (const JsonMember& member : tree_.members)
    if (member.key == key) return &member.value;
  return nullptr;
}

TextPosition Fields::at(const std::string& key) const {
  const JsonTree* const value = find(key);
  return value != nullptr ? value->at : tree_.at;
}

double Fields::number(const std::string& key, double fallback, double least, double most) {
  known_.insert(key);
  const JsonTree* const value = find(key);
  if (value == nullptr) return fallback;
  const bool whole = value->kind == JsonTree::Kind::kInt;
  if (!whole && value->kind != JsonTree::Kind::kReal) {
    error(key, std::string("a number is needed, not ") + kind_name(value->kind));
    return fallback;
  }
  const double number = whole ? static_cast<double>(value->integer) : value->real;
  if (number >= least && number <= most) return number;
  error(key, printed("%g is outside of %g to %g", number, least, most));
  return fallback;
}

int64_t Fields::integer(const std::string& key, int64_t fallback, int64_t least, int64_t most) {
  const JsonTree* const value = find(key);
  if (value != nullptr && value->kind == JsonTree::Kind::kReal) {
    known_.insert(key);
    error(key, "a whole number is needed");
    return fallback;
  }
  return std::llround(
      number(key, static_cast<double>(fallback), static_cast<double>(least), static_cast<double>(most)));
}

const JsonTree* Fields::of_kind(const std::string& key, JsonTree::Kind kind) {
  known_.insert(key);
  const JsonTree* const value = find(key);
  if (value == nullptr || value->kind == kind) return value;
  error(key, std::string(kind_name(kind)) + " is needed, not " + kind_name(value->kind));
  return nullptr;
}

bool Fields::boolean(const std::string& key, bool fallback) {
  const JsonTree* const value = of_kind(key, JsonTree::Kind::kBool);
  return value != nullptr ? value->boolean : fallback;
}

std::string Fields::text(const std::string& key, const std::string& fallback) {
  const JsonTree* const value = of_kind(key, JsonTree::Kind::kString);
  return value != nullptr ? value->text : fallback;
}

const JsonTree* Fields::list(const std::string& key) {
  return of_kind(key, JsonTree::Kind::kList);
}

const JsonTree* Fields::object(const std::string& key) {
  return of_kind(key, JsonTree::Kind::kObject);
}

void Fields::require(const std::string& key) {
  known_.insert(key);
  if (find(key) == nullptr && tree_.kind == JsonTree::Kind::kObject) errors_.add(tree_.at, path_ + key, "is missing");
}

void Fields::unknown() {
  for (const JsonMember& member : tree_.members) {
    if (known_.count(member.key) > 0) continue;
    const auto nearest = std::min_element(known_.begin(), known_.end(), [&](const auto& a, const auto& b) {
      return edit_distance(a, member.key) < edit_distance(b, member.key);
    });
    const bool close = nearest != known_.end() && edit_distance(*nearest, member.key) <= 3;
    errors_.add(member.at, path_ + member.key,
                close ? "no such key; did you mean \"" + *nearest + "\"?" : "no such key");
  }
}

JsonText read_json_file(const std::string& file) {
  std::ifstream in(file);
  std::ostringstream text;
  if (in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();  // of an empty file nothing: no error
  std::error_code none;
  if (std::filesystem::is_directory(file, none)) throw_bad_config(file + ": is a directory, a file is needed");
  if (!in.is_open() || in.bad())
    throw_bad_config(file + (std::filesystem::exists(file, none) ? ": cannot be read" : ": there is no such file"));
  JsonText parsed = parse_json_text(text.str());
  FieldErrors errors(file);
  for (const JsonProblem& problem : parsed.problems) errors.add(problem.at, problem.key, problem.message);
  errors.finish();
  return parsed;
}

}  // namespace thinwire
