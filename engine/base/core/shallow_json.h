// JSON from outside that nests no deeper than its readers expect: copying, comparing and printing a value of nlohmann's
// library recurse, so that one that nests without end takes the stack.
#pragma once

#include <nlohmann/json.hpp>

namespace thinwire {

inline constexpr int kDeepestJson = 64;

// Discarded (is_discarded) where the text is no JSON, or nests deeper. comments: they are passed over.
template <typename Json = nlohmann::json, typename Text>
Json parse_shallow(const Text& text, bool comments = false) {
  bool deep = false;
  const auto look = [&deep](int depth, typename Json::parse_event_t, Json&) {
    deep = deep || depth > kDeepestJson;
    return !deep;
  };
  Json root = Json::parse(text, look, false, comments);
  return deep ? Json(Json::value_t::discarded) : root;
}

}  // namespace thinwire
