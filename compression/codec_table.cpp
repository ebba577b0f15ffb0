// Lists the rows of all codecs, and derives from them what holds for several.
#include "compression/codec_table.h"

#include <algorithm>

#include "engine/base/core/error.h"
#include "engine/base/core/text.h"

namespace thinwire {

// Each in its codec's file.
CodecRow identity_row(), cast_row(), block_int_row(), mx_row(), e3m0_row(), lloyd_max_row(), ecsq_row(), one_bit_row(),
    zfp_row(), mpc_row(), entropy_row(), low_rank_row(), top_k_row(), random_k_row(), chunked_top_k_row(), sketch_row();

const std::vector<CodecRow>& codec_table() {
  static const std::vector<CodecRow> rows = {identity_row(), cast_row(),      block_int_row(),     mx_row(),
                                             e3m0_row(),     lloyd_max_row(), ecsq_row(),          one_bit_row(),
                                             zfp_row(),      mpc_row(),       entropy_row(),       low_rank_row(),
                                             top_k_row(),    random_k_row(),  chunked_top_k_row(), sketch_row()};
  return rows;
}

namespace {

// "a, b or c"
std::string either(std::vector<std::string> words) {
  const std::string last = words.back();
  words.pop_back();
  return words.empty() ? last : join(words, ", ") + " or " + last;
}

std::string text_of(const CodecValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  const auto* number = std::get_if<int64_t>(&value);
  return number != nullptr ? std::to_string(*number) : rate_text(std::get<double>(value));
}

// What one row says of a key.
struct Said {
  std::string codec, text;
};

// "a, b: text; c: text"
std::string by_codec(const std::vector<Said>& all) {
  std::vector<Said> groups;
  for (const Said& s : all) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Said& g) { return g.text == s.text; });
    if (same != groups.end())
      same->codec += ", " + s.codec;
    else
      groups.push_back(s);
  }
  std::vector<std::string> texts;
  for (const Said& g : groups) texts.push_back(g.codec + ": " + g.text);
  return join(texts, "; ");
}

// The key that these rows share.
KeySpec merged(const std::vector<std::pair<const CodecRow*, const CodecParameter*>>& all) {
  KeySpec one = all.front().second->key;
  const bool same_values =
      std::all_of(all.begin(), all.end(), [&](const auto& p) { return p.second->key.allowed == one.allowed; });
  std::vector<Said> docs, defaults;
  for (const auto& [row, parameter] : all) {
    const KeySpec& key = parameter->key;
    docs.push_back({row->name, key.doc + (same_values ? "" : " (" + join(key.allowed, " | ") + ")")});
    defaults.push_back({row->name, text_of(parameter->otherwise)});
    one.bounds.min = std::min(one.bounds.min, key.bounds.min);
    one.bounds.max = std::max(one.bounds.max, key.bounds.max);
    for (const std::string& value : key.allowed)
      if (std::find(one.allowed.begin(), one.allowed.end(), value) == one.allowed.end()) one.allowed.push_back(value);
  }
  one.doc = by_codec(docs) + ".";
  const bool one_default =
      std::all_of(defaults.begin(), defaults.end(), [&](const Said& d) { return d.text == defaults.front().text; });
  one.default_text = one_default ? defaults.front().text : by_codec(defaults);
  return one;
}

[[noreturn]] void refuse(const std::string& codec, const std::string& parameter, const CodecValue& value,
                         const std::string& allowed) {
  throw_bad_config("codec " + codec + ": " + parameter + " is " + text_of(value) + "; it may be " + allowed);
}

void check(const CodecRow& row, const CodecParameter& parameter, const CodecSpec& spec) {
  const KeySpec& key = parameter.key;
  const CodecValue& value = spec.parameters.at(key.name);
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (std::find(key.allowed.begin(), key.allowed.end(), *text) == key.allowed.end())
      refuse(row.name, key.name, value, either(key.allowed));
  } else if (!std::holds_alternative<bool>(value)) {
    const auto* whole = std::get_if<int64_t>(&value);
    const double number = whole != nullptr ? static_cast<double>(*whole) : std::get<double>(value);
    const auto& [min, max, open_min, open_max] = key.bounds;
    if ((open_min ? number > min : number >= min) && number <= max) return;
    std::vector<std::string> few;
    for (double v = min; whole != nullptr && max - min < 3 && v <= max; ++v) few.push_back(rate_text(v));
    // A default that is out of bounds stands for none: the value may be nobody's.
    const std::string needed = value == parameter.otherwise ? ", and must be given" : "";
    refuse(
        row.name, key.name, value,
        (few.empty() ? (open_min ? "above " : "") + rate_text(min) + " to " + rate_text(max) : either(few)) + needed);
  }
}

}  // namespace

CodecParameter codec_parameter(CodecValue otherwise, KeySpec key) {
  constexpr KeyType kTypes[] = {kStringKey, kIntKey, kRealKey, kBoolKey};  // in the order of CodecValue
  key.types = kTypes[otherwise.index()];
  key.scope = KeyScope::kLayout;
  return {std::move(key), std::move(otherwise)};
}

CodecParameter block_parameter(const std::string& doc) {
  return codec_parameter(0, {.name = "block", .bounds = {0, 1 << 24}, .unit = "elements", .doc = doc});
}

CodecParameter format_parameter(std::vector<std::string> allowed, const std::string& otherwise,
                                const std::string& doc) {
  return codec_parameter(otherwise, {.name = "format", .allowed = std::move(allowed), .doc = doc});
}

CodecParameter density_parameter() {
  return codec_parameter(0.01, {.name = "density",
                                .bounds = {.min = 0, .max = 1, .open_min = true},
                                .doc = "share of the elements that is kept",
                                .ramp = true});
}

const CodecParameter* CodecRow::find(const std::string& parameter) const {
  for (const CodecParameter& p : parameters)
    if (p.key.name == parameter) return &p;
  return nullptr;
}

const CodecRow& codec_row(const std::string& name) {
  for (const CodecRow& row : codec_table())
    if (row.name == name) return row;
  throw_bad_config("codec: \"" + name + "\" is none of " + join(codec_names(), " | "));
}

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (const CodecRow& row : codec_table()) names.push_back(row.name);
  return names;
}

const std::vector<KeySpec>& codec_keys() {
  static const std::vector<KeySpec> all = [] {
    std::vector<KeySpec> list;
    for (const CodecRow& row : codec_table()) {
      for (const CodecParameter& p : row.parameters) {
        if (std::any_of(list.begin(), list.end(), [&](const KeySpec& known) { return known.name == p.key.name; }))
          continue;
        std::vector<std::pair<const CodecRow*, const CodecParameter*>> sharing;
        for (const CodecRow& other : codec_table())
          if (const CodecParameter* q = other.find(p.key.name)) sharing.push_back({&other, q});
        list.push_back(merged(sharing));
      }
    }
    return list;
  }();
  return all;
}

CodecSpec codec_spec(const std::string& name, const CodecValues& parameters) {
  const CodecRow& row = codec_row(name);
  CodecSpec spec{.codec = name};
  for (const CodecParameter& p : row.parameters) spec[p.key.name] = p.otherwise;
  for (const auto& [key, value] : parameters) {
    const CodecParameter* p = row.find(key);
    if (p == nullptr) throw_bad_config("codec " + name + " has no parameter " + key);
    const auto* whole = std::get_if<int64_t>(&value);
    spec[key] = whole != nullptr && p->key.types == kRealKey ? static_cast<double>(*whole) : value;
    if (spec[key].index() != p->otherwise.index()) refuse(name, key, value, "of another type");
  }
  return spec;
}

MadeCodec make_codec(const CodecSpec& spec) {
  const CodecRow& row = codec_row(spec.codec);
  const CodecSpec whole = codec_spec(spec.codec, spec.parameters);
  for (const CodecParameter& p : row.parameters) check(row, p, whole);
  return row.make(whole);
}

CodecSpec codec_at(const CodecSpec& spec, int64_t step) {
  CodecSpec now = spec;
  now.ramps.clear();
  for (const auto& [name, ramp] : spec.ramps)
    for (const auto& [place, value] : ramp)
      if (place <= step) now[name] = value;
  return now;
}

std::set<int64_t> ramp_places(const CodecSpec& spec) {
  std::set<int64_t> places;
  for (const auto& [name, ramp] : spec.ramps)
    for (const auto& [place, value] : ramp)
      if (place > 0) places.insert(place);
  return places;
}

CodecSpec cheaper_codec(const CodecSpec& spec) {
  const CodecRow& row = codec_row(spec.codec);
  return row.cheaper != nullptr ? row.cheaper(spec) : spec;
}

int64_t block_of(const CodecSpec& spec, int64_t otherwise, int64_t least, int64_t most, int64_t multiple) {
  const int64_t said = spec.integer("block"), block = said == 0 ? otherwise : said;
  if (said != 0 && (block < least || block > most || block % multiple != 0))
    refuse(spec.codec, "block", said,
           (multiple > 1 ? "a multiple of " + std::to_string(multiple) + " from " : "") + std::to_string(least) +
               " to " + std::to_string(most) + ", or 0 for " +
               (otherwise > 0 ? std::to_string(otherwise) : "the whole message"));
  return block;
}

std::string rate_text(double rate) {
  std::string text = std::to_string(rate);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

bool codes_within(const CodecSpec& spec, int64_t elements) {
  const CodecRow& row = codec_row(spec.codec);
  const CodecSpec whole = codec_spec(spec.codec, spec.parameters);
  if (row.crosses_tensors != nullptr && row.crosses_tensors(whole)) return false;
  const int64_t block = row.find("block") != nullptr ? whole.integer("block") : 0;
  return block == 0 || elements % block == 0;
}

}  // namespace thinwire
