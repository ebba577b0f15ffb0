// Reading with every range checked before use, and writing in the order and padding of the reference.
#include "engine/run/checkpoint/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/log.h"
#include "engine/run/checkpoint/output_file.h"
#include "engine/run/checkpoint/safetensors_header.h"

namespace thinwire {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are written as they lie in memory");

// Bytes of shape x dtype; false when that overflows 64 bits or is not a whole number of bytes.
bool shape_bytes(const std::vector<int64_t>& shape, StDtype dtype, uint64_t& bytes) {
  uint64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, static_cast<uint64_t>(extent), &count)) return false;
  }
  uint64_t bits = 0;
  if (__builtin_mul_overflow(count, static_cast<uint64_t>(bits_of(dtype)), &bits) || bits % 8 != 0) return false;
  bytes = bits / 8;
  return true;
}

void read_fully(const Descriptor& file, const std::string& path, uint64_t offset, std::span<std::byte> out) {
  const size_t n = read_at(file, path, offset, out);
  if (n < out.size())
    throw_bad_data(path + ": ends at byte " + std::to_string(offset + n) + ", it shrank while it was read");
}

template <typename From, typename To>
void convert(std::span<const std::byte> raw, std::span<To> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    From value;
    std::memcpy(&value, raw.data() + i * sizeof(From), sizeof(From));
    if constexpr (std::is_arithmetic_v<From>)
      out[i] = static_cast<To>(value);
    else
      out[i] = to_float(value);
  }
}

}  // namespace

int64_t SafetensorsEntry::count() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

std::string SafetensorsEntry::shape_text() const {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path), file_(open_regular(path)), size_(file_.size()) {
  const auto refuse = [&](const std::string& why) { throw_bad_data(path + ": not a valid safetensors file: " + why); };
  if (size_ < 8) refuse(std::to_string(size_) + " bytes, at least 8 are needed");
  uint64_t n = 0;
  read_fully(file_, path_, 0, std::as_writable_bytes(std::span(&n, 1)));
  if (std::memcmp(&n, "version ", 8) == 0) refuse("it is a pointer of Git LFS; fetch the file itself: git lfs pull");
  if (n > kMaxSafetensorsHeader) refuse("a header of " + std::to_string(n) + " bytes, at most 100000000 are accepted");
  if (n > size_ - 8)
    refuse("a header of " + std::to_string(n) + " bytes in a file of " + std::to_string(size_) + " (truncated?)");
  if (size_ > (1u << 20) && n > size_ / 2)
    log_warning("warning: " + path + ": more than half of the file is its header");
  std::string header(n, '\0');
  read_fully(file_, path_, 8, std::as_writable_bytes(std::span(header)));
  parse(header);
}

void SafetensorsFile::parse(std::string_view header) {
  SafetensorsHeader parsed = parse_safetensors_header(path_, header);
  metadata_ = std::move(parsed.metadata);
  entries_ = std::move(parsed.entries);
  std::sort(entries_.begin(), entries_.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.begin + a.bytes) < std::pair(b.begin, b.begin + b.bytes);
  });
  const uint64_t data_start = 8 + header.size();
  uint64_t end = 0;
  for (SafetensorsEntry& entry : entries_) {
    const auto refuse = [&](const std::string& why) {
      throw_bad_data(path_ + ": not a valid safetensors file: tensor \"" + entry.name + "\" " + why);
    };
    if (entry.begin != end) {
      refuse("begins at " + std::to_string(entry.begin) + ", the one before it ends at " + std::to_string(end));
    }
    uint64_t bytes = 0;
    if (!shape_bytes(entry.shape, entry.dtype, bytes))
      refuse("has a shape " + entry.shape_text() + " that overflows or is not whole bytes");
    if (bytes != entry.bytes) {
      refuse("has " + std::to_string(entry.bytes) + " bytes, its shape " + entry.shape_text() + " of " +
             std::string(name_of(entry.dtype)) + " needs " + std::to_string(bytes));
    }
    end = entry.begin + entry.bytes;  // cannot wrap: END was one 64-bit number in the header
    if (end > size_ - data_start) {
      refuse("ends at byte " + std::to_string(end) + " of " + std::to_string(size_ - data_start) +
             " data bytes (truncated?)");
    }
    entry.begin += data_start;
  }
  if (data_start + end != size_) {
    throw_bad_data(path_ + ": not a valid safetensors file: the header describes " + std::to_string(data_start + end) +
                   " bytes, the file has " + std::to_string(size_));
  }
  for (size_t i = 0; i < entries_.size(); ++i) by_name_.emplace(entries_[i].name, i);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) throw_bad_data(path_ + ": has no tensor \"" + std::string(name) + "\"");
  return *entry;
}

void SafetensorsFile::read_bytes(const SafetensorsEntry& entry, uint64_t offset, std::span<std::byte> out) const {
  TW_CHECK(offset <= entry.bytes && out.size() <= entry.bytes - offset, entry.name);
  read_fully(file_, path_, entry.begin + offset, out);
}

std::vector<std::byte> SafetensorsFile::read_bytes(std::string_view name) const {
  const SafetensorsEntry& entry = at(name);
  std::vector<std::byte> bytes(entry.bytes);
  read_bytes(entry, 0, bytes);
  return bytes;
}

void SafetensorsFile::refuse_type(const SafetensorsEntry& entry, const char* expected) const {
  throw_bad_data(path_ + ": tensor \"" + entry.name + "\" is " + std::string(name_of(entry.dtype)) + "; " + expected +
                 " is expected");
}

void SafetensorsFile::read_f32(std::string_view name, std::span<float> out) const {
  const SafetensorsEntry& entry = at(name);
  if (static_cast<uint64_t>(entry.count()) != out.size()) {
    throw_bad_data(path_ + ": tensor \"" + entry.name + "\" has shape " + entry.shape_text() + ", " +
                   std::to_string(out.size()) + " elements are expected");
  }
  if (entry.dtype == StDtype::kF32) return read_bytes(entry, 0, std::as_writable_bytes(out));
  // In pieces, so that converting needs no second copy of a large tensor.
  const size_t size = bits_of(entry.dtype) / 8;
  constexpr size_t kPiece = 1 << 18;
  std::vector<std::byte> raw(std::min(kPiece, out.size()) * size);
  for (size_t first = 0; first < out.size(); first += kPiece) {
    const std::span<float> part = out.subspan(first, std::min(kPiece, out.size() - first));
    const std::span<std::byte> bytes(raw.data(), part.size() * size);
    read_bytes(entry, first * size, bytes);
    if (entry.dtype == StDtype::kBF16)
      convert<Bf16>(bytes, part);
    else if (entry.dtype == StDtype::kF16)
      convert<Fp16>(bytes, part);
    else if (entry.dtype == StDtype::kF64)
      convert<double>(bytes, part);
    else
      refuse_type(entry, "F32, BF16, F16 or F64");
  }
}

std::vector<int64_t> SafetensorsFile::read_i64(std::string_view name) const {
  const SafetensorsEntry& entry = at(name);
  const std::vector<std::byte> raw = read_bytes(name);
  std::vector<int64_t> out(static_cast<size_t>(entry.count()));
  const std::span<int64_t> to(out);
  if (entry.dtype == StDtype::kI32)
    convert<int32_t>(raw, to);
  else if (entry.dtype == StDtype::kI64)
    convert<int64_t>(raw, to);
  else if (entry.dtype == StDtype::kU8)
    convert<uint8_t>(raw, to);
  else if (entry.dtype == StDtype::kU16)
    convert<uint16_t>(raw, to);
  else
    refuse_type(entry, "I32, I64, U8 or U16");
  return out;
}

WrittenFile write_safetensors(const std::string& path, std::vector<SafetensorsItem> items,
                              const std::map<std::string, std::string>& metadata,
                              const std::function<void()>& after_half) {
  std::sort(items.begin(), items.end(), [](const SafetensorsItem& a, const SafetensorsItem& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  // Text piece by piece: an ordered object would search all keys for each new one.
  std::string header = metadata.empty() ? "" : "\"__metadata__\":" + nlohmann::json(metadata).dump();
  WrittenFile result;
  uint64_t end = 0;
  std::vector<uint64_t> sizes;
  for (const SafetensorsItem& item : items) {
    TW_CHECK(is_valid_tensor_name(item.name) && item.name != "__metadata__", item.name);
    TW_CHECK(result.hash_of.emplace(item.name, "").second, "twice: ", item.name);
    uint64_t bytes = 0;
    TW_CHECK(item.shape.size() <= kMaxSafetensorsRank && shape_bytes(item.shape, item.dtype, bytes), item.name);
    TW_CHECK(item.make || item.data.size() == bytes, item.name, ": ", item.data.size(), " bytes, shape needs ", bytes);
    nlohmann::ordered_json info;
    info["dtype"] = name_of(item.dtype);
    info["shape"] = item.shape;
    info["data_offsets"] = {end, end + bytes};
    header += (header.empty() ? "" : ",") + nlohmann::json(item.name).dump() + ":" + info.dump();
    sizes.push_back(bytes);
    end += bytes;
  }
  header = "{" + header + "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  TW_CHECK(header.size() <= kMaxSafetensorsHeader, "header of ", header.size(), " bytes");

  const uint64_t n = header.size();
  OutputFile file(path, 8 + n + end);
  file.write(std::as_bytes(std::span(&n, 1)));
  file.write(std::as_bytes(std::span(header)));
  uint64_t done = 0;
  bool half_announced = !after_half;
  for (size_t i = 0; i < items.size(); ++i) {
    std::vector<std::byte> made;
    std::span<const std::byte> data = items[i].data;
    if (items[i].make) {
      made = items[i].make();
      data = made;
      TW_CHECK(data.size() == sizes[i], items[i].name);
    }
    result.hash_of[items[i].name] = hash_bytes(data);
    file.write(data);
    done += data.size();
    if (!half_announced && 2 * done >= end) {
      half_announced = true;
      after_half();
    }
  }
  result.bytes = file.written();
  result.hash = file.finish();
  return result;
}

WrittenFile replace_safetensors(const std::string& path, std::vector<SafetensorsItem> items,
                                const std::map<std::string, std::string>& metadata) {
  const std::string temporary = temporary_beside(path);
  WrittenFile written = write_safetensors(temporary, std::move(items), metadata);
  try {
    rename_file(temporary, path);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_directory(folder_of(path));
  return written;
}

std::vector<std::byte> encode_floats(std::span<const float> values, StDtype dtype) {
  std::vector<std::byte> out(values.size() * bits_of(dtype) / 8);
  const auto store = [&]<typename T>(T) {
    for (size_t i = 0; i < values.size(); ++i) {
      const T value = from_float<T>(values[i]);
      std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
    }
  };
  switch (dtype) {
    case StDtype::kF32:
      if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
      break;
    case StDtype::kBF16:
      store(Bf16{});
      break;
    case StDtype::kF16:
      store(Fp16{});
      break;
    default:
      TW_CHECK(false, "cannot encode floats as ", name_of(dtype));
  }
  return out;
}

}  // namespace thinwire
