// Takes each tensor as soon as its object ends, and drops it from what the JSON library holds; unknown fields of a
// tensor are skipped, as the reference does.
#include "engine/run/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/base/core/error.h"

namespace thinwire {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 22> kNames = {
    "BOOL", "F4",  "F6_E2M3", "F6_E3M2", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
    "I16",  "U16", "F16",     "BF16",    "I32", "U32", "F32",     "C64",     "F64",     "I64",         "U64"};
constexpr std::array<unsigned, 22> kBits = {8,  4,  6,  6,  8,  8,  8,  8,  8,  8,  8,
                                            16, 16, 16, 16, 32, 32, 32, 64, 64, 64, 64};
// serde's recursion limit in the reference is 128; nothing sensible comes near.
constexpr int kMaxDepth = 100;

std::string quote_name(const std::string& text) {
  std::string out("\"");
  return out.append(text, 0, 80).append("\"");
}

const char* what_is(const Json& value) {
  if (value.is_boolean()) return "a boolean";
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  if (value.is_string()) return "a string";
  return value.is_null() ? "null" : value.is_number_unsigned() ? "a number" : "a number below zero or with a fraction";
}

class HeaderParser {
 public:
  explicit HeaderParser(const std::string& path) : path_(path) {}

  // Of the library's parser; false: the value is dropped. `depth`: objects and arrays around it.
  bool event(int depth, Json::parse_event_t event, const Json& value) {
    if (depth > kMaxDepth) refuse("nested deeper than " + std::to_string(kMaxDepth));
    using Event = Json::parse_event_t;
    switch (event) {
      case Event::key:
        return depth > 2 || (depth == 1 ? begin(value.get_ref<const std::string&>()) : field(value));
      case Event::object_end:
        if (depth != 1) return true;
        is_metadata() ? take_metadata(value) : take_tensor(value);
        return false;
      case Event::array_end:
      case Event::value:
        // (A null __metadata__ is read as none, as in the reference.)
        if (depth == 1 && !(is_metadata() && value.is_null()))
          refuse(quote_name(name_) + " is " + what_is(value) + ", not an object");
        count_element(depth);
        return true;
      default:
        count_element(depth);
        return true;
    }
  }
  SafetensorsHeader take() { return std::move(header_); }
  [[noreturn]] void refuse(const std::string& why) const {
    throw_bad_data(path_ + ": not a valid safetensors file: " + why);
  }

 private:
  bool is_metadata() const { return name_ == "__metadata__"; }
  std::string where() const { return is_metadata() ? name_ : "tensor \"" + name_ + "\""; }

  bool begin(const std::string& name) {
    name_ = name;
    if (!is_metadata() && !is_valid_tensor_name(name))
      refuse("a tensor's name is empty, holds control characters or \"/../\"");
    if (!is_metadata() && header_.entries.size() == kMaxSafetensorsTensors) refuse("more than 1,000,000 tensors");
    if (!names_.insert(name).second) refuse("duplicate " + where());
    fields_.clear();
    return true;
  }
  // Lists are short; whoever sends a long one shall not fill the memory first.
  void count_element(int depth) {
    if (depth == 3 && is_known_ && ++elements_ > 2 * kMaxSafetensorsRank)
      refuse(where() + " has more than 16 dimensions");
  }
  bool field(const Json& name) {
    elements_ = 0;
    if (!fields_.insert(name).second) refuse("duplicate key " + quote_name(name) + " in " + where());
    return is_known_ = is_metadata() || name == "dtype" || name == "shape" || name == "data_offsets";
  }

  void take_metadata(const Json& object) {
    for (const auto& [key, value] : object.items()) {
      if (!value.is_string()) refuse("__metadata__ " + quote_name(key) + " is " + what_is(value) + ", not a string");
      header_.metadata[key] = value;
    }
  }

  void take_tensor(const Json& object) {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!object.contains(field)) refuse(where() + " has no " + field);
    }
    SafetensorsEntry entry;
    entry.name = name_;
    const Json& dtype = object["dtype"];
    const auto* known = std::find(kNames.begin(), kNames.end(), dtype.is_string() ? dtype.get<std::string>() : "");
    if (known == kNames.end()) refuse(where() + " has the unknown dtype " + dtype.dump().substr(0, 40));
    entry.dtype = static_cast<StDtype>(known - kNames.begin());
    const std::vector<uint64_t> extents = unsigned_list(object["shape"], "a dimension");
    if (extents.size() > kMaxSafetensorsRank) refuse(where() + " has more than 16 dimensions");
    for (uint64_t extent : extents) {
      if (extent > static_cast<uint64_t>(INT64_MAX))
        refuse(where() + ": dimension " + std::to_string(extent) + " overflows");
      entry.shape.push_back(static_cast<int64_t>(extent));
    }
    const std::vector<uint64_t> offsets = unsigned_list(object["data_offsets"], "a data offset");
    if (offsets.size() != 2) refuse(where() + " needs two data_offsets");
    if (offsets[1] < offsets[0]) refuse(where() + ": data_offsets end before they begin");
    entry.begin = offsets[0], entry.bytes = offsets[1] - offsets[0];
    header_.entries.push_back(std::move(entry));
  }

  std::vector<uint64_t> unsigned_list(const Json& list, const char* of) const {
    if (!list.is_array()) refuse(where() + ": a list is expected, not " + what_is(list));
    std::vector<uint64_t> numbers;
    for (const Json& item : list) {
      if (!item.is_number_unsigned())
        refuse(where() + ": " + of + " is " + what_is(item) + ", not an unsigned integer");
      numbers.push_back(item);
    }
    return numbers;
  }

  const std::string& path_;
  SafetensorsHeader header_;
  std::string name_;                       // of the tensor being read, or __metadata__
  bool is_known_ = true;                   // the field being read is one of ours
  size_t elements_ = 0;                    // of its list
  std::unordered_set<std::string> names_;  // that were there before, fields of this one
  std::unordered_set<std::string> fields_;
};

}  // namespace

std::string_view name_of(StDtype dtype) {
  return kNames[static_cast<size_t>(dtype)];
}
unsigned bits_of(StDtype dtype) {
  return kBits[static_cast<size_t>(dtype)];
}

StDtype to_st_dtype(DType dtype) {
  constexpr StDtype kTypes[] = {StDtype::kF32, StDtype::kBF16, StDtype::kF16, StDtype::kI32,
                                StDtype::kI64, StDtype::kU8,   StDtype::kU16, StDtype::kF64};  // by DType
  return kTypes[static_cast<size_t>(dtype)];
}

bool is_valid_tensor_name(std::string_view name) {
  if (name.empty()) return false;
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  std::string framed("/");
  framed.append(name).append("/");
  return framed.find("/../") == std::string::npos;
}

SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view text) {
  const auto refuse = [&](const char* why) { throw_bad_data(path + ": not a valid safetensors file: " + why); };
  // nlohmann takes a NUL for the end of the text and skips a byte-order mark; the reference refuses both.
  if (text.find('\0') != std::string_view::npos) refuse("the header holds a NUL byte");
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] != '{') refuse("the header does not start with '{'");
  HeaderParser parser(path);
  try {
    [[maybe_unused]] const Json rest = Json::parse(
        text, [&](int depth, Json::parse_event_t event, Json& value) { return parser.event(depth, event, value); });
  } catch (const Json::exception& e) {
    parser.refuse("the header is not valid JSON: " + std::string(e.what()).substr(0, 200));
  }
  return parser.take();
}

}  // namespace thinwire
