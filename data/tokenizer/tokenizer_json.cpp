// The checks behind tokenizer_json.h; each message names the file, the place and what is expected there.
#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>

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
    for (const char* key : {"model", "pre_tokenizer"}) {
      if (!root.contains(key)) fail(key, "is missing");
    }
    read_normalizer(root);
    read_pre_tokenizer(root["pre_tokenizer"]);
    refuse_other_types(root, "post_processor");
    refuse_other_types(root, "decoder");
    read_model(root["model"]);
    if (root.contains("added_tokens")) read_added(root["added_tokens"]);
    fill_ids();
    return std::move(out_);
  }

 private:
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

  void read_normalizer(const Json& root) {
    if (!root.contains("normalizer") || root["normalizer"].is_null()) return;
    const std::string type = type_of(root["normalizer"], "normalizer");
    if (type != "NFC") fail("normalizer", "type " + quote(type) + " is not supported (null or NFC)");
    out_.nfc = true;
  }

  void read_pre_tokenizer(const Json& pre) {
    if (pre.is_null()) fail("pre_tokenizer", "null is not supported: a byte-level BPE has the type ByteLevel");
    const std::string type = type_of(pre, "pre_tokenizer");
    if (type != "ByteLevel") {
      fail("pre_tokenizer", "type " + quote(type) + " is not supported: only ByteLevel (GPT-2, GPT-NeoX) is" +
                                (type == "Sequence" ? "; Split patterns as in Llama 3 are not" : ""));
    }
    out_.add_prefix_space = flag(pre, "add_prefix_space", "pre_tokenizer", true);
    out_.use_regex = flag(pre, "use_regex", "pre_tokenizer", true);
  }

  void refuse_other_types(const Json& root, const char* key) const {
    if (!root.contains(key) || root[key].is_null()) return;
    const std::string type = type_of(root[key], key);
    if (type != "ByteLevel") fail(key, "type " + quote(type) + " is not supported (null or ByteLevel)");
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
    for (const auto& [token, id] : model["vocab"].items()) {
      const std::string place = "model.vocab[" + quote(token) + "]";
      ids_.emplace(token, check_id(id, place));
      if (token.empty()) fail(place, "an empty token");
    }
    read_merges(model["merges"]);
  }

  int32_t check_id(const Json& id, const std::string& place) const {
    if (!id.is_number_integer()) fail(place, "the id must be an integer");
    const bool fits = id.is_number_unsigned() ? id.get<uint64_t>() < uint64_t{kLargestVocab} : false;
    if (!fits) fail(place, "id " + id.dump() + " is outside 0 to " + std::to_string(kLargestVocab - 1));
    return id.get<int32_t>();
  }

  int32_t id_of(const std::string& token, const std::string& place) const {
    const auto found = ids_.find(token);
    if (found == ids_.end()) fail(place, "token " + quote(token) + " is not in model.vocab");
    return found->second;
  }

  void read_merges(const Json& merges) {
    std::unordered_set<uint64_t> seen;
    out_.merges.reserve(merges.size());
    for (size_t i = 0; i < merges.size(); ++i) {
      const std::string place = "model.merges[" + std::to_string(i) + "]";
      std::string left, right;
      if (merges[i].is_string()) {
        const std::string& line = merges[i].get_ref<const std::string&>();
        const size_t space = line.find(' ');
        if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
          fail(place, quote(line) + " is not two tokens");
        left = line.substr(0, space), right = line.substr(space + 1);
      } else if (merges[i].is_array() && merges[i].size() == 2 && merges[i][0].is_string() &&
                 merges[i][1].is_string()) {
        left = merges[i][0].get<std::string>(), right = merges[i][1].get<std::string>();
      } else {
        fail(place, "\"a b\" or [\"a\", \"b\"] is needed");
      }
      const BpeMerge merge{id_of(left, place), id_of(right, place), id_of(left + right, place)};
      if (!seen.insert(static_cast<uint64_t>(merge.left) << 32 | static_cast<uint32_t>(merge.right)).second) {
        fail(place, quote(left + " " + right) + " is listed twice");
      }
      out_.merges.push_back(merge);
    }
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
                        std::to_string(found->second) + " in model.vocab");
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
    if (top < 0) fail("model.vocab", "is empty");
    // Holes are refused anyway; this keeps a single huge id from allocating.
    if (top + 1 > static_cast<int64_t>(ids_.size() + out_.added.size())) {
      fail("model.vocab", "ids have holes: the largest is " + std::to_string(top) + " but there are only " +
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
        fail("model.vocab[" + quote(token) + "]", "id " + std::to_string(id) + " belongs to another token too");
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
    const auto hole = std::find(used.begin(), used.end(), false);
    if (hole != used.end()) fail("model.vocab", "id " + std::to_string(hole - used.begin()) + " belongs to no token");
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

  std::string path_;
  std::unordered_map<std::string, int32_t> ids_;
  BpeDescription out_;
};

}  // namespace

BpeDescription parse_tokenizer_json(const std::string& path, const std::string& text) {
  return Reader(path).read(text);
}

}  // namespace thinwire
