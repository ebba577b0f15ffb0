// One written value against one key: type, bounds, allowed words, with what may have been meant.
#include "engine/run/config/check_value.h"

#include <cmath>
#include <optional>

#include "engine/base/core/text.h"
#include "engine/run/config/key_table.h"
#include "engine/run/config/presets.h"

namespace thinwire {
namespace {

std::string lower(std::string s) {
  for (char& c : s) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c == '-' ? '_' : c;
  return s;
}

// Compares values of strings as users vary them: case and dashes do not matter, value aliases are other words.
std::optional<std::string> our_spelling(const KeySpec& key, const std::string& text) {
  if (key.allowed.empty()) return text;
  const std::string wanted = lower(text);
  for (const std::string& a : key.allowed)
    if (lower(a) == wanted) return a;
  for (const auto& [theirs, ours] : key.value_aliases)
    if (theirs == wanted) return ours;
  return std::nullopt;
}

// ", nearest: zeropp", where one of many words is near enough to be meant.
std::string nearest_word(const KeySpec& key, const std::string& text) {
  if (key.allowed.size() < 6 || text.size() > 40) return "";
  const std::string wanted = lower(text);
  int best = static_cast<int>(wanted.size()) / 3 + 1;
  std::string nearest;
  for (const std::string& a : key.allowed)
    if (const int d = edit_distance(wanted, a); d < best) best = d, nearest = a;
  return nearest.empty() ? "" : ", nearest: " + nearest;
}

std::string out_of_bounds(const KeySpec& key, double v) {
  const KeyBounds& b = key.bounds;
  const bool low = b.open_min ? !(v > b.min) : !(v >= b.min);
  const bool high = b.open_max ? !(v < b.max) : !(v <= b.max);
  return low || high ? number_text(v) + " is out of bounds (" + bounds_text(key) + ")" : "";
}

bool is_number_text(const std::string& text) {
  if (text.empty()) return false;
  std::vector<JsonProblem> none;
  const JsonText parsed = parse_json_text(text);
  return parsed.problems.empty() &&
         (parsed.root.kind == JsonTree::Kind::kInt || parsed.root.kind == JsonTree::Kind::kReal);
}

// YAML takes a number with an exponent for text where its point or the exponent's sign is missing.
std::string number_hint(const JsonTree& v) {
  const size_t e = v.text.find_first_of("eE");
  if (!v.plain || e == std::string::npos) return ": drop the quotes";
  const std::string mantissa = v.text.substr(0, e), exponent = v.text.substr(e + 1);
  return ": YAML takes " + v.text + " for text, write " + mantissa +
         (mantissa.find('.') == std::string::npos ? ".0e" : "e") +
         (exponent.find_first_of("+-") == std::string::npos ? "+" : "") + exponent;
}

// [[place, value], ...]: places are steps, or, with a decimal point, shares of the run.
Checked checked_ramp(const KeySpec& key, const JsonTree& v) {
  using Kind = JsonTree::Kind;
  KeySpec scalar = key;
  scalar.ramp = false;
  Checked r{.value = nlohmann::json::array(), .at = v.at};
  for (const JsonTree& item : v.items) {
    r.at = item.at;
    const bool pair = item.kind == Kind::kList && item.items.size() == 2;
    const JsonTree* place = pair ? &item.items.front() : nullptr;
    const bool update = pair && place->kind == Kind::kInt && place->integer >= 0;
    const bool share = pair && place->kind == Kind::kReal && place->real >= 0.0 && place->real <= 1.0;
    if (!update && !share) {
      r.error =
          "a ramp is a list of [place, value]; a place is a number of steps, or with a decimal point a share of "
          "train_iters from 0.0 to 1.0";
      return r;
    }
    const Checked value = check_value(scalar, item.items.back());
    r.at = value.at;
    r.error = value.error;
    if (r.error.empty() && value.value.is_null()) r.error = "a place of a ramp needs a value";
    if (!r.error.empty()) return r;
    nlohmann::json at = update ? nlohmann::json(place->integer) : nlohmann::json(place->real);
    r.value.push_back(nlohmann::json::array({std::move(at), value.value}));
  }
  r.at = v.at;
  if (v.items.empty() || r.value.front().front() != 0) r.error = "a ramp begins at place 0";
  return r;
}

}  // namespace

Checked check_value(const KeySpec& key, const JsonTree& v) {
  using Kind = JsonTree::Kind;
  Checked r;
  r.at = v.at;
  const auto wrong_type = [&](const std::string& hint) {
    r.error = "must be ";
    r.error.append(types_text(key.types)).append(", not ").append(kind_name(v.kind));
    if (v.kind == Kind::kString) r.error.append(" ").append(shown(to_json(v)));
    r.error.append(hint);
    return r;
  };
  if (key.types == kAnyKey) {
    r.value = to_json(v);
    return r;
  }
  const bool numbers_only_in_lists = key.types == (kListKey | kRealKey);
  switch (v.kind) {
    case Kind::kBool: {
      if ((key.types & kBoolKey) != 0) {
        r.value = v.boolean;
        return r;
      }
      // YAML takes the word off for false: where a key has it among its words, it is meant (spike: off).
      const bool word = v.plain && (key.types & kStringKey) != 0 && !key.allowed.empty();
      const auto ours = word ? our_spelling(key, v.text) : std::nullopt;
      if (!ours) return wrong_type("");
      r.value = *ours;
      return r;
    }
    case Kind::kInt:
    case Kind::kReal: {
      if (key.share && v.kind == Kind::kReal && v.real > 0.0 && v.real < 1.0) {
        r.value = v.real;
        return r;
      }
      const double d = v.kind == Kind::kInt ? static_cast<double>(v.integer) : v.real;
      if (numbers_only_in_lists || (key.types & (kIntKey | kRealKey)) == 0)
        return wrong_type((key.types & kBoolKey) != 0 ? " (true or false)" : "");
      if ((key.types & kRealKey) != 0) {
        r.value = d;
      } else if (v.kind == Kind::kInt) {
        r.value = v.integer;
      } else if (std::floor(d) == d && std::abs(d) <= 9007199254740992.0) {
        r.value = static_cast<int64_t>(d);
      } else {
        return wrong_type("");
      }
      r.error = out_of_bounds(key, d);
      return r;
    }
    case Kind::kString: {
      if ((key.types & kStringKey) == 0) {
        if (v.text == "auto")
          return wrong_type(": leave the key out instead");  // as in files for Hugging Face's Trainer
        if ((key.types & (kIntKey | kRealKey)) != 0 && is_number_text(v.text)) return wrong_type(number_hint(v));
        if ((key.types & kBoolKey) != 0 && (lower(v.text) == "true" || lower(v.text) == "false"))
          return wrong_type(": drop the quotes");
        return wrong_type("");
      }
      const auto ours = our_spelling(key, v.text);
      if (!ours && key.or_file && is_preset_path(v.text)) {
        r.value = v.text;
        return r;
      }
      if (!ours) {
        const bool one_bit = key.name == "optimizer.type" &&
                             (lower(v.text).find("onebit") == 0 || lower(v.text).find("zerooneadam") == 0);
        const bool bits = key.name.ends_with(".codec") && lower(v.text).rfind("int", 0) == 0;
        const bool layer_type = key.name == "pipe_partition_method" && lower(v.text).rfind("type:", 0) == 0;
        r.error = shown(v.text) +
                  (layer_type ? " is not supported: all layers are of one class, so there is none to count"
                   : bits     ? " is not an allowed value: say block_int with `bits`"
                   : one_bit  ? " is a preset here: say adam and \"compression\": \"one_bit_adam\""
                              : " is not an allowed value" + nearest_word(key, v.text)) +
                  " (allowed: " + join(key.allowed, " | ") + ((key.types & kBoolKey) != 0 ? " | true | false" : "") +
                  ")";
        return r;
      }
      r.value = *ours;
      return r;
    }
    case Kind::kList: {
      if (key.ramp) return checked_ramp(key, v);
      if ((key.types & kListKey) == 0) return wrong_type("");
      for (const JsonTree& item : v.items) {
        if ((key.types & kRealKey) == 0) continue;
        r.at = item.at;
        if (item.kind != Kind::kInt && item.kind != Kind::kReal) {
          r.error = std::string("the list holds ") + kind_name(item.kind) + " where a number belongs";
          return r;
        }
        r.error = out_of_bounds(key, item.kind == Kind::kInt ? static_cast<double>(item.integer) : item.real);
        if (!r.error.empty()) return r;
      }
      r.at = v.at;
      r.value = to_json(v);
      return r;
    }
    case Kind::kObject:
      if ((key.types & kObjectKey) == 0) return wrong_type("");
      r.value = to_json(v);
      return r;
    case Kind::kNull:
      break;
  }
  return r;
}

std::string number_text(double v) {
  if (v == std::floor(v) && std::abs(v) < 1e15) return std::to_string(static_cast<int64_t>(v));
  return nlohmann::json(v).dump();
}

std::string shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() <= 60) return text;
  size_t end = 57;
  while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // never inside a UTF-8 character
  return text.substr(0, end) + "...";
}

}  // namespace thinwire
