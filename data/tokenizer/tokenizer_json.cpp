// The checks behind tokenizer_json.h; each message names the file, the place and what is expected there.
#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "data/tokenizer/unicode.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 16;                 // tokenizer.json needs 6
constexpr int64_t kLargestVocab = 16 << 20;  // ids are dense, so this also bounds memory

// GPT-2's printable stand-ins for bytes: Latin-1 letters and signs stand for themselves, the 68 others for U+0100 and
// on.
std::unordered_map<uint32_t, uint8_t> byte_alphabet() {
  std::unordered_map<uint32_t, uint8_t> byte_of;
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
    byte_of.emplace(itself ? b : next++, static_cast<uint8_t>(b));
  }
  return byte_of;
}

// Shows a token in a message: short, and without bytes that a terminal would act on.
std::string quote(const std::string& token) {
  std::string shown = Json(token.substr(0, 40)).dump(-1, ' ', true, Json::error_handler_t::replace);
  return token.size() > 40 ? shown + "..." : shown;
}

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  BpeDescription read(const std::string& text) {
    const Json root = parse(text);
    if (!root.is_object()) fail("", "a JSON object is needed, as written by Tokenizer.save()");
    if (!root.contains("model") && root.size() >= 256 && root.begin()->is_number_integer())
      fail("", "is a vocabulary alone: give its merges too, bpe:vocab.json,merges.txt");
    for (const char* key : {"model", "pre_tokenizer"}) {
      if (!root.contains(key)) fail(key, "is missing");
    }
    read_normalizer(root);
    read_pre_tokenizer(root["pre_tokenizer"]);
    if (root.contains("post_processor")) read_post_processor(root["post_processor"], "post_processor");
    read_decoder(root);
    read_model(root["model"]);
    if (root.contains("added_tokens")) read_added(root["added_tokens"]);
    fill_ids();
    return std::move(out_);
  }

  BpeDescription read_pair(const std::string& vocab, const std::string& merges_path, const std::string& merges) {
    const std::string vocab_path = path_;
    vocab_ = "";
    const Json ids = parse(vocab);
    if (!ids.is_object()) fail("", "an object {token: id} is needed, as in GPT-2's vocab.json");
    if (ids.contains("model")) fail("", "is a tokenizer.json: give bpe:FILE alone, without a file of merges");
    read_vocab(ids);
    std::vector<std::string> lines;
    for (size_t at = 0; at < merges.size();) {
      const size_t end = std::min(merges.find('\n', at), merges.size());
      lines.push_back(merges.substr(at, end - at));
      if (lines.back().ends_with('\r')) lines.back().pop_back();
      at = end + 1;
    }
    while (!lines.empty() && lines.back().empty()) lines.pop_back();
    MergeSet seen;
    for (size_t i = 0; i < lines.size(); ++i) {
      if (i == 0 && lines[i].starts_with("#version")) continue;
      path_ = merges_path + ":" + std::to_string(i + 1);
      add_merge(lines[i], "", seen);
    }
    path_ = merges_path;
    if (out_.merges.empty()) fail("", "holds no merges: a line \"a b\" for each is needed, as in GPT-2's merges.txt");
    path_ = vocab_path;
    out_.splits = {{"", kGpt2Pattern}};
    fill_ids();
    return std::move(out_);
  }

 private:
  using MergeSet = std::unordered_set<uint64_t>;

  [[noreturn]] void fail(const std::string& place, const std::string& what) const {
    throw_bad_data(path_ + ": " + (place.empty() ? "" : place + ": ") + what);
  }

  Json parse(const std::string& text) const {
    try {
      return Json::parse(text, [this](int depth, Json::parse_event_t, Json&) {
        if (depth > kDeepest)
          fail("", "nested deeper than " + std::to_string(kDeepest) + " levels: not a tokenizer.json");
        return true;
      });
    } catch (const Json::exception& e) {
      fail("", std::string("not valid JSON (") + e.what() + ")");
    }
  }

  bool flag(const Json& object, const char* key, const std::string& place, bool otherwise) const {
    if (!object.contains(key) || object[key].is_null()) return otherwise;
    if (!object[key].is_boolean()) fail(place + "." + key, "true or false is needed");
    return object[key].get<bool>();
  }

  std::string type_of(const Json& object, const std::string& place) const {
    if (!object.is_object() || !object.contains("type") || !object["type"].is_string()) {
      fail(place, "an object with a \"type\" is needed");
    }
    return object["type"].get<std::string>();
  }

  // The members of a Sequence, or the one thing that is none.
  std::vector<std::pair<std::string, Json>> members(const Json& one, const char* list, const std::string& place) const {
    if (type_of(one, place) != "Sequence") return {{place, one}};
    if (!one.contains(list) || !one[list].is_array()) fail(place + "." + list, "an array is needed");
    std::vector<std::pair<std::string, Json>> all;
    for (const Json& item : one[list]) {
      all.emplace_back(place + "." + list + "[" + std::to_string(all.size()) + "]", item);
    }
    return all;
  }

  void read_normalizer(const Json& root) {
    if (!root.contains("normalizer") || root["normalizer"].is_null()) return;
    for (const auto& [place, item] : members(root["normalizer"], "normalizers", "normalizer")) {
      const std::string type = type_of(item, place);
      if (type != "NFC") fail(place, "type " + quote(type) + " is not supported (null or NFC)");
      out_.nfc = true;
    }
  }

  void read_pre_tokenizer(const Json& pre) {
    if (pre.is_null()) fail("pre_tokenizer", "null is not supported: a byte-level BPE has the type ByteLevel");
    const auto stages = members(pre, "pretokenizers", "pre_tokenizer");
    bool byte_level = false;
    for (const auto& [place, stage] : stages) {
      const std::string type = type_of(stage, place);
      if (byte_level) fail(place, "type " + quote(type) + " behind ByteLevel is not supported: that must be the last");
      if (type == "ByteLevel") {
        byte_level = true;
        out_.add_prefix_space = flag(stage, "add_prefix_space", place, true);
        if (out_.add_prefix_space && !out_.splits.empty())
          fail(place + ".add_prefix_space", "true behind other pre-tokenizers is not supported");
        if (flag(stage, "use_regex", place, true)) out_.splits.push_back({path_ + ": " + place, kGpt2Pattern});
      } else if (type == "Split") {
        read_split(stage, place);
      } else if (type == "Digits") {
        const bool each = flag(stage, "individual_digits", place, false);
        out_.splits.push_back({path_ + ": " + place, each ? "\\p{N}" : "\\p{N}+"});
      } else {
        fail(place, "type " + quote(type) + " is not supported (ByteLevel, behind any number of Split and Digits)");
      }
    }
    if (!byte_level) fail("pre_tokenizer", "lacks ByteLevel: only a byte-level BPE is supported");
  }

  void read_split(const Json& split, const std::string& place) {
    const auto text = [&](const Json& object, const char* key) -> std::optional<std::string> {
      if (!object.is_object() || !object.contains(key) || !object[key].is_string()) return std::nullopt;
      return object[key].get<std::string>();
    };
    SplitStep step{path_ + ": " + place + ".pattern", "", true, true};
    const Json pattern = split.value("pattern", Json());
    if (const auto regex = text(pattern, "Regex")) {
      step.pattern = *regex;
    } else if (const auto plain = text(pattern, "String")) {
      for (const char c : *plain) {
        if (std::ispunct(static_cast<unsigned char>(c)) != 0) step.pattern += '\\';
        step.pattern += c;
      }
    } else {
      fail(place + ".pattern", "{\"Regex\": \"...\"} or {\"String\": \"...\"} is needed");
    }
    const std::string behavior = text(split, "behavior").value_or("");
    const bool invert = flag(split, "invert", place, false);
    if (behavior == "Removed") {
      (invert ? step.keep_rest : step.keep_matches) = false;
    } else if (behavior != "Isolated") {
      fail(place + ".behavior", quote(behavior) + " is not supported (Isolated, Removed)");
    }
    out_.splits.push_back(std::move(step));
  }

  void read_post_processor(const Json& post, const std::string& where) {
    if (post.is_null()) return;
    bool had_template = false;
    for (const auto& [place, item] : members(post, "processors", where)) {
      const std::string type = type_of(item, place);
      if (type == "ByteLevel") continue;  // moves offsets only
      if (type != "TemplateProcessing")
        fail(place, "type " + quote(type) + " is not supported (null, ByteLevel, TemplateProcessing)");
      if (std::exchange(had_template, true)) fail(place, "a second TemplateProcessing is not supported");
      read_template(item, place);
    }
  }

  // {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [1]}}}
  void read_template(const Json& item, const std::string& place) {
    const Json single = item.value("single", Json()), tokens = item.value("special_tokens", Json());
    if (!single.is_array()) fail(place + ".single", "an array is needed");
    bool behind = false;
    for (size_t i = 0; i < single.size(); ++i) {
      const std::string here = place + ".single[" + std::to_string(i) + "]";
      const auto name_in = [&](const char* kind) -> std::optional<std::string> {
        const Json part = single[i].is_object() ? single[i].value(kind, Json()) : Json();
        if (!part.is_object() || !part.contains("id") || !part["id"].is_string()) return std::nullopt;
        return part["id"].get<std::string>();
      };
      if (name_in("Sequence")) {
        if (*name_in("Sequence") != "A" || std::exchange(behind, true)) fail(here, "one Sequence, A, is supported");
      } else if (const auto name = name_in("SpecialToken")) {
        const Json entry = tokens.is_object() ? tokens.value(*name, Json()) : Json();
        const Json ids = entry.is_object() ? entry.value("ids", Json()) : Json();
        if (!ids.is_array()) fail(here, quote(*name) + " has no ids in special_tokens");
        for (const Json& id : ids) (behind ? out_.after : out_.before).push_back(check_id(id, here));
      } else {
        fail(here, "a SpecialToken or a Sequence with an id is needed");
      }
    }
    if (!behind) fail(place + ".single", "lacks the Sequence A");
  }

  void read_decoder(const Json& root) const {
    if (!root.contains("decoder") || root["decoder"].is_null()) return;
    const std::string type = type_of(root["decoder"], "decoder");
    if (type != "ByteLevel") fail("decoder", "type " + quote(type) + " is not supported (null or ByteLevel)");
  }

  void read_model(const Json& model) {
    if (!model.is_object()) fail("model", "an object is needed");
    if (model.contains("type")) {
      const std::string type = type_of(model, "model");
      if (type != "BPE") fail("model.type", quote(type) + " is not supported: only BPE is");
    }
    if (flag(model, "byte_fallback", "model", false))
      fail("model.byte_fallback", "true is not supported in a byte-level BPE");
    out_.ignore_merges = flag(model, "ignore_merges", "model", false);
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (model.contains(key) && !model[key].is_null() && model[key] != "")
        fail(std::string("model.") + key, "is not supported");
    }
    if (model.contains("dropout") && !model["dropout"].is_null() && model["dropout"] != 0.0) {
      fail("model.dropout", "is not supported: ids would be random");
    }
    if (!model.contains("vocab") || !model["vocab"].is_object()) fail("model.vocab", "an object {token: id} is needed");
    if (!model.contains("merges") || !model["merges"].is_array()) fail("model.merges", "an array is needed");
    read_vocab(model["vocab"]);
    read_merges(model["merges"]);
  }

  void read_vocab(const Json& vocab) {
    for (const auto& [token, id] : vocab.items()) {
      const std::string place = vocab_ + "[" + quote(token) + "]";
      ids_.emplace(token, check_id(id, place));
      if (token.empty()) fail(place, "an empty token");
    }
  }

  int32_t check_id(const Json& id, const std::string& place) const {
    if (!id.is_number_integer()) fail(place, "the id must be an integer");
    const bool fits = id.is_number_unsigned() ? id.get<uint64_t>() < uint64_t{kLargestVocab} : false;
    if (!fits) fail(place, "id " + id.dump() + " is outside 0 to " + std::to_string(kLargestVocab - 1));
    return id.get<int32_t>();
  }

  int32_t id_of(const std::string& token, const std::string& place) const {
    const auto found = ids_.find(token);
    if (found == ids_.end()) fail(place, "token " + quote(token) + " is not in " + vocab_name());
    return found->second;
  }

  void read_merges(const Json& merges) {
    MergeSet seen;
    out_.merges.reserve(merges.size());
    for (size_t i = 0; i < merges.size(); ++i) {
      const std::string place = "model.merges[" + std::to_string(i) + "]";
      if (merges[i].is_string()) {
        add_merge(merges[i].get_ref<const std::string&>(), place, seen);
      } else if (merges[i].is_array() && merges[i].size() == 2 && merges[i][0].is_string() &&
                 merges[i][1].is_string()) {
        add_merge(merges[i][0].get<std::string>(), merges[i][1].get<std::string>(), place, seen);
      } else {
        fail(place, "\"a b\" or [\"a\", \"b\"] is needed");
      }
    }
  }

  void add_merge(const std::string& line, const std::string& place, MergeSet& seen) {
    const size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
      fail(place, quote(line) + " is not two tokens");
    add_merge(line.substr(0, space), line.substr(space + 1), place, seen);
  }

  void add_merge(const std::string& left, const std::string& right, const std::string& place, MergeSet& seen) {
    const BpeMerge merge{id_of(left, place), id_of(right, place), id_of(left + right, place)};
    if (!seen.insert(static_cast<uint64_t>(merge.left) << 32 | static_cast<uint32_t>(merge.right)).second)
      fail(place, quote(left + " " + right) + " is listed twice");
    out_.merges.push_back(merge);
  }

  void read_added(const Json& added) {
    if (added.is_null()) return;
    if (!added.is_array()) fail("added_tokens", "an array is needed");
    std::unordered_set<std::string> seen;
    for (size_t i = 0; i < added.size(); ++i) {
      const std::string place = "added_tokens[" + std::to_string(i) + "]";
      const Json& item = added[i];
      if (!item.is_object() || !item.contains("id") || !item.contains("content") || !item["content"].is_string()) {
        fail(place, "an object with id and content is needed");
      }
      AddedToken token;
      token.id = check_id(item["id"], place + ".id");
      token.content = item["content"].get<std::string>();
      if (token.content.empty()) fail(place + ".content", "is empty");
      if (!seen.insert(token.content).second) fail(place + ".content", quote(token.content) + " is listed twice");
      if (flag(item, "single_word", place, false)) fail(place + ".single_word", "true is not supported");
      token.special = flag(item, "special", place, false);
      token.normalized = flag(item, "normalized", place, !token.special);
      token.lstrip = flag(item, "lstrip", place, false);
      token.rstrip = flag(item, "rstrip", place, false);
      const auto found = ids_.find(token.content);
      if (found != ids_.end() && found->second != token.id) {
        fail(place, quote(token.content) + " has id " + std::to_string(token.id) + " here and " +
                        std::to_string(found->second) + " in " + vocab_name());
      }
      out_.added.push_back(std::move(token));
    }
  }

  // Turns token -> id into id -> bytes, and finds holes and duplicates on the way.
  void fill_ids() {
    const auto alphabet = byte_alphabet();
    int64_t top = -1;
    for (const auto& [token, id] : ids_) top = std::max<int64_t>(top, id);
    for (const AddedToken& token : out_.added) top = std::max<int64_t>(top, token.id);
    if (top < 0) fail(vocab_, "is empty");
    // Holes are refused anyway; this keeps a single huge id from allocating.
    if (top + 1 > static_cast<int64_t>(ids_.size() + out_.added.size())) {
      fail(vocab_, "ids have holes: the largest is " + std::to_string(top) + " but there are only " +
                       std::to_string(ids_.size()) + " tokens and " + std::to_string(out_.added.size()) +
                       " added ones");
    }
    std::vector<bool> used(static_cast<size_t>(top) + 1, false);
    out_.bytes.resize(used.size());
    out_.plain.assign(used.size(), false);
    out_.byte_ids.fill(-1);
    for (const auto& [token, id] : ids_) {
      const auto slot = static_cast<size_t>(id);
      if (used[slot])
        fail(vocab_ + "[" + quote(token) + "]", "id " + std::to_string(id) + " belongs to another token too");
      used[slot] = true;
      if (const auto bytes = spell(token, alphabet)) {
        out_.bytes[slot] = *bytes;
        out_.plain[slot] = true;
        if (bytes->size() == 1) out_.byte_ids[static_cast<uint8_t>((*bytes)[0])] = id;
      } else {
        out_.bytes[slot] = token;
      }
    }
    for (const AddedToken& token : out_.added) {
      const auto slot = static_cast<size_t>(token.id);
      if (used[slot] && ids_.find(token.content) == ids_.end()) {
        fail("added_tokens",
             quote(token.content) + ": id " + std::to_string(token.id) + " belongs to another token too");
      }
      used[slot] = true;
      // A token that merges can also reach keeps the bytes it stands for there, so that plain text always comes back.
      if (!out_.plain[slot]) out_.bytes[slot] = token.content;
    }
    for (const std::vector<int32_t>* around : {&out_.before, &out_.after}) {
      for (const int32_t id : *around) {
        if (static_cast<size_t>(id) >= used.size())
          fail("post_processor", "id " + std::to_string(id) + " belongs to no token");
      }
    }
    const auto hole = std::find(used.begin(), used.end(), false);
    if (hole != used.end()) fail(vocab_, "id " + std::to_string(hole - used.begin()) + " belongs to no token");
  }

  // The bytes that a token of the byte alphabet stands for; nothing if it has a character from outside it.
  static std::optional<std::string> spell(const std::string& token,
                                          const std::unordered_map<uint32_t, uint8_t>& alphabet) {
    std::string bytes;
    for (size_t at = 0; at < token.size();) {
      const Utf8Char c = decode_utf8(token, at);
      const auto found = c.valid ? alphabet.find(c.code) : alphabet.end();
      if (found == alphabet.end()) return std::nullopt;
      bytes.push_back(static_cast<char>(found->second));
      at += c.length;
    }
    return bytes;
  }

  std::string vocab_name() const { return vocab_.empty() ? "the vocabulary" : vocab_; }

  std::string path_;
  std::string vocab_ = "model.vocab";  // its place in the file
  std::unordered_map<std::string, int32_t> ids_;
  BpeDescription out_;
};

}  // namespace

BpeDescription parse_tokenizer_json(const std::string& path, const std::string& text) {
  return Reader(path).read(text);
}

BpeDescription parse_vocab_and_merges(const std::string& vocab_path, const std::string& vocab,
                                      const std::string& merges_path, const std::string& merges) {
  return Reader(vocab_path).read_pair(vocab, merges_path, merges);
}

}  // namespace thinwire
