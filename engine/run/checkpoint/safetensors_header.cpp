// A state machine over nlohmann's SAX events; unknown fields of a tensor are skipped, as the reference does.
#include "engine/run/checkpoint/safetensors_header.h"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "engine/base/core/error.h"

namespace thinwire {
namespace {

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

class HeaderParser : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderParser(std::string path) : path_(std::move(path)) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool null() override {
    // The reference reads a null __metadata__ as none.
    if (skip_depth_ == 0 && place_ == Place::kRoot && key_ == "__metadata__") return true;
    return value("null");
  }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t) override { return value("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override { return value("the number " + text.substr(0, 40)); }
  bool binary(binary_t&) override { return value("binary data"); }

  bool number_unsigned(number_unsigned_t number) override {
    if (skipping()) return true;
    if (place_ == Place::kShape) {
      if (entry_.shape.size() == kMaxSafetensorsRank) refuse(where() + " has more than 16 dimensions");
      if (number > static_cast<uint64_t>(INT64_MAX))
        refuse(where() + ": dimension " + std::to_string(number) + " overflows");
      entry_.shape.push_back(static_cast<int64_t>(number));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offset_count_ == 2) refuse(where() + " has more than two data_offsets");
      offsets_[offset_count_++] = number;
      return true;
    }
    return value("a number");
  }

  bool string(string_t& text) override {
    if (skipping()) return true;
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = std::move(text);
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") {
      for (size_t i = 0; i < kNames.size(); ++i) {
        if (text != kNames[i]) continue;
        entry_.dtype = static_cast<StDtype>(i);
        return true;
      }
      refuse(where() + " has the unknown dtype \"" + text.substr(0, 40) + "\"");
    }
    return value("a string");
  }

  bool start_object(std::size_t) override {
    if (++depth_ > kMaxDepth) refuse("nested deeper than " + std::to_string(kMaxDepth));
    if (skip_depth_ > 0) return enter_skipped();
    switch (place_) {
      case Place::kStart:
        place_ = Place::kRoot;
        return true;
      case Place::kRoot:
        if (key_ == "__metadata__") {
          place_ = Place::kMetadata;
        } else {
          place_ = Place::kTensor;
          entry_ = {};
          entry_.name = key_;
          offset_count_ = 0;
        }
        fields_.clear();
        return true;
      case Place::kTensor:
        if (is_known_field()) break;
        return enter_skipped();
      default:
        break;
    }
    return value("an object");
  }

  bool start_array(std::size_t) override {
    if (++depth_ > kMaxDepth) refuse("nested deeper than " + std::to_string(kMaxDepth));
    if (skip_depth_ > 0) return enter_skipped();
    if (place_ == Place::kTensor) {
      if (key_ == "shape") return place_ = Place::kShape, true;
      if (key_ == "data_offsets") return place_ = Place::kOffsets, true;
      if (!is_known_field()) return enter_skipped();
    }
    return value("an array");
  }

  bool key(string_t& text) override {
    if (skip_depth_ > 0) return true;
    if (place_ == Place::kRoot) {
      if (text == "__metadata__") {
        if (has_metadata_) refuse("duplicate key \"__metadata__\"");
        has_metadata_ = true;
      } else {
        if (!is_valid_tensor_name(text)) refuse("a tensor's name is empty, holds control characters or \"/../\"");
        if (header_.entries.size() == kMaxSafetensorsTensors) refuse("more than 1,000,000 tensors");
        if (!names_.insert(text).second) refuse("duplicate tensor \"" + text + "\"");
      }
    } else if (!fields_.insert(text).second) {
      refuse("duplicate key \"" + text.substr(0, 80) + "\" in " + where());
    }
    key_ = std::move(text);
    return true;
  }

  bool end_object() override {
    --depth_;
    if (skip_depth_ > 0) return leave_skipped();
    if (place_ == Place::kTensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field)) refuse(where() + " has no " + field);
      }
      if (offset_count_ != 2) refuse(where() + " needs two data_offsets");
      if (offsets_[1] < offsets_[0]) refuse(where() + ": data_offsets end before they begin");
      entry_.begin = offsets_[0];
      entry_.bytes = offsets_[1] - offsets_[0];
      header_.entries.push_back(std::move(entry_));
      place_ = Place::kRoot;
    } else if (place_ == Place::kMetadata) {
      place_ = Place::kRoot;
    } else {
      place_ = Place::kEnd;
    }
    return true;
  }

  bool end_array() override {
    --depth_;
    if (skip_depth_ > 0) return leave_skipped();
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    refuse("header is not valid JSON at byte " + std::to_string(8 + position) + ": " +
           std::string(e.what()).substr(0, 200));
  }

 private:
  enum class Place { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kEnd };

  [[noreturn]] void refuse(const std::string& why) { throw_bad_data(path_ + ": not a valid safetensors file: " + why); }
  std::string where() const { return place_ == Place::kMetadata ? "__metadata__" : "tensor \"" + entry_.name + "\""; }
  bool is_known_field() const { return key_ == "dtype" || key_ == "shape" || key_ == "data_offsets"; }
  // Inside the value of an unknown field of a tensor, or about to read a scalar one.
  bool skipping() const { return skip_depth_ > 0 || (place_ == Place::kTensor && !is_known_field()); }
  bool enter_skipped() { return ++skip_depth_, true; }
  bool leave_skipped() { return --skip_depth_, true; }

  bool value(const std::string& what) {
    if (skipping()) return true;
    switch (place_) {
      case Place::kStart:
        refuse("the header is " + what + ", not an object");
      case Place::kRoot:
        refuse(quote_name(key_) + " is " + what + ", not an object");
      case Place::kMetadata:
        refuse("__metadata__ " + quote_name(key_) + " is " + what + ", not a string");
      case Place::kShape:
        refuse(where() + ": a dimension is " + what + ", not an unsigned integer");
      case Place::kOffsets:
        refuse(where() + ": a data offset is " + what + ", not an unsigned integer");
      default:
        refuse(where() + ": " + key_ + " is " + what);
    }
  }

  std::string path_;
  SafetensorsHeader header_;
  Place place_ = Place::kStart;
  int depth_ = 0;
  int skip_depth_ = 0;
  std::string key_;
  bool has_metadata_ = false;
  SafetensorsEntry entry_;
  std::array<uint64_t, 2> offsets_{};
  int offset_count_ = 0;
  std::unordered_set<std::string> names_;   // of tensors
  std::unordered_set<std::string> fields_;  // of the object being read
};

}  // namespace

std::string_view name_of(StDtype dtype) {
  return kNames[static_cast<size_t>(dtype)];
}
unsigned bits_of(StDtype dtype) {
  return kBits[static_cast<size_t>(dtype)];
}

StDtype to_st_dtype(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return StDtype::kF32;
    case DType::bf16:
      return StDtype::kBF16;
    case DType::f16:
      return StDtype::kF16;
    case DType::i32:
      return StDtype::kI32;
    case DType::i64:
      return StDtype::kI64;
    case DType::u8:
      return StDtype::kU8;
    case DType::u16:
      return StDtype::kU16;
    case DType::f64:
      return StDtype::kF64;
  }
  return StDtype::kU8;
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
  nlohmann::json::sax_parse(text, &parser);
  return parser.take();
}

}  // namespace thinwire
