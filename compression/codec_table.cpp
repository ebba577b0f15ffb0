// Lists the rows of all codecs, and derives from them what holds for several.
#include "compression/codec_table.h"

#include <algorithm>

#include "compression/codecs/block_int.h"
#include "compression/codecs/cast.h"
#include "compression/codecs/chunked_top_k.h"
#include "compression/codecs/e3m0.h"
#include "compression/codecs/ecsq.h"
#include "compression/codecs/entropy.h"
#include "compression/codecs/identity.h"
#include "compression/codecs/lloyd_max.h"
#include "compression/codecs/low_rank.h"
#include "compression/codecs/mpc.h"
#include "compression/codecs/mx.h"
#include "compression/codecs/one_bit.h"
#include "compression/codecs/random_k.h"
#include "compression/codecs/sketch.h"
#include "compression/codecs/top_k.h"
#include "compression/codecs/zfp.h"
#include "engine/base/core/error.h"

namespace thinwire {

const std::vector<CodecRow>& codec_table() {
  static const std::vector<CodecRow> rows = {identity_row(), cast_row(),      block_int_row(),     mx_row(),
                                             e3m0_row(),     lloyd_max_row(), ecsq_row(),          one_bit_row(),
                                             zfp_row(),      mpc_row(),       entropy_row(),       low_rank_row(),
                                             top_k_row(),    random_k_row(),  chunked_top_k_row(), sketch_row()};
  return rows;
}

namespace {

std::string join(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : between) + w;
  return text;
}

std::string text_of(const std::string& value) {
  return value;
}
std::string text_of(bool value) {
  return value ? "true" : "false";
}
std::string text_of(int64_t value) {
  return std::to_string(value);
}
std::string text_of(double value) {
  return rate_text(value);
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
CodecParameter merged(const std::vector<std::pair<const CodecRow*, const CodecParameter*>>& all) {
  CodecParameter one = *all.front().second;
  const bool same_values =
      std::all_of(all.begin(), all.end(), [&](const auto& p) { return p.second->key.allowed == one.key.allowed; });
  std::vector<Said> docs, defaults;
  for (const auto& [row, parameter] : all) {
    const KeySpec& key = parameter->key;
    docs.push_back({row->name(), key.doc + (same_values ? "" : " (" + join(key.allowed, " | ") + ")")});
    defaults.push_back({row->name(), std::visit([&](auto field) { return text_of(row->defaults.*field); }, one.field)});
    one.key.bounds.min = std::min(one.key.bounds.min, key.bounds.min);
    one.key.bounds.max = std::max(one.key.bounds.max, key.bounds.max);
    for (const std::string& value : key.allowed)
      if (std::find(one.key.allowed.begin(), one.key.allowed.end(), value) == one.key.allowed.end())
        one.key.allowed.push_back(value);
  }
  one.key.doc = by_codec(docs) + ".";
  const bool one_default =
      std::all_of(defaults.begin(), defaults.end(), [&](const Said& d) { return d.text == defaults.front().text; });
  one.key.default_text = one_default ? defaults.front().text : by_codec(defaults);
  return one;
}

const CodecRow* find_row(const std::string& name) {
  for (const CodecRow& row : codec_table())
    if (row.name() == name) return &row;
  return nullptr;
}

}  // namespace

CodecParameter codec_parameter(CodecParameter::Field field, KeySpec key) {
  constexpr KeyType kTypes[] = {kStringKey, kIntKey, kRealKey, kBoolKey};  // in the order of Field
  key.types = kTypes[field.index()];
  key.scope = KeyScope::kLayout;
  return {std::move(key), field};
}

CodecParameter block_parameter(const std::string& doc) {
  return codec_parameter(&CodecSpec::block, {.name = "block", .bounds = {0, 1 << 24}, .unit = "elements", .doc = doc});
}

CodecParameter format_parameter(std::vector<std::string> allowed, const std::string& doc) {
  return codec_parameter(&CodecSpec::format, {.name = "format", .allowed = std::move(allowed), .doc = doc});
}

CodecParameter density_parameter() {
  return codec_parameter(&CodecSpec::density, {.name = "density",
                                               .bounds = {.min = 0, .max = 1, .open_min = true},
                                               .doc = "share of the elements that is kept"});
}

bool CodecRow::has(const std::string& parameter) const {
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const CodecParameter& p) { return p.key.name == parameter; });
}

const CodecRow& codec_row(const std::string& name) {
  if (const CodecRow* row = find_row(name)) return *row;
  throw_bad_config("codec: \"" + name + "\" is none of " + join(codec_names(), " | "));
}

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (const CodecRow& row : codec_table()) names.push_back(row.name());
  return names;
}

const std::vector<CodecParameter>& codec_parameters() {
  static const std::vector<CodecParameter> all = [] {
    std::vector<CodecParameter> list;
    for (const CodecRow& row : codec_table()) {
      for (const CodecParameter& p : row.parameters) {
        const bool known = std::any_of(list.begin(), list.end(),
                                       [&](const CodecParameter& other) { return other.key.name == p.key.name; });
        if (known) continue;
        std::vector<std::pair<const CodecRow*, const CodecParameter*>> sharing;
        for (const CodecRow& other : codec_table())
          for (const CodecParameter& q : other.parameters)
            if (q.key.name == p.key.name) sharing.push_back({&other, &q});
        list.push_back(merged(sharing));
      }
    }
    return list;
  }();
  return all;
}

MadeCodec make_codec(const CodecSpec& spec) {
  return codec_row(spec.codec).make(spec);
}

CodecSpec default_codec(const std::string& name) {
  return codec_row(name).defaults;
}

CodecSpec cheaper_codec(const CodecSpec& spec) {
  const CodecRow& row = codec_row(spec.codec);
  return row.cheaper != nullptr ? row.cheaper(spec) : spec;
}

std::string rate_text(double rate) {
  std::string text = std::to_string(rate);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

bool codes_within(const CodecSpec& spec, int64_t elements) {
  const CodecRow& row = codec_row(spec.codec);
  if (row.crosses_tensors != nullptr && row.crosses_tensors(spec)) return false;
  return spec.block == 0 || elements % spec.block == 0;
}

}  // namespace thinwire
