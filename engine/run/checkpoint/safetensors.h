// Our own safetensors: a reader that checks the whole header before it touches data, and a writer whose files are
// flushed to disk before they count.
//
// File: u64 little-endian N | N bytes of JSON, padded with blanks | tensors back to back, row-major, little-endian. The
// reader accepts what the reference implementation accepts (except the extra refusals below) and checks every one of
// its rules: N <= 100,000,000 and inside the file, UTF-8, known dtypes, unsigned integers, string metadata, contiguous
// ranges from 0 to the end of the file, size == shape x dtype without overflow. It also refuses duplicate keys, more
// than 16 dimensions, more than a million tensors, names that are empty, hold control characters or `/../`, and tensors
// spelled as JSON arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/core/dtype.h"
#include "engine/base/core/file.h"

namespace thinwire {

// Element types of the format, in the order in which writers sort tensors (largest last).
enum class StDtype : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64
};
std::string_view name_of(StDtype dtype);  // "F32"
unsigned bits_of(StDtype dtype);
StDtype to_st_dtype(DType dtype);

// A tensor of an open file: where it is, not what it holds.
struct SafetensorsEntry {
  std::string name;
  StDtype dtype = StDtype::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // from the start of the file
  uint64_t bytes = 0;

  int64_t count() const;
  std::string shape_text() const;  // "[3, 4]"
};

// Reads by pread and never by a map: a file that shrinks while it is read gives an error and not a signal.
// Everything throws Error(kBadData) with path, place and reason. Memory: the header and its entries, nothing of the
// data.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  // In the order of the data.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // nullptr when absent; `at` throws, naming the tensor.
  const SafetensorsEntry* find(std::string_view name) const;
  const SafetensorsEntry& at(std::string_view name) const;

  // Bytes [offset, offset + out.size()) of the tensor.
  void read_bytes(const SafetensorsEntry& entry, uint64_t offset, std::span<std::byte> out) const;
  std::vector<std::byte> read_bytes(std::string_view name) const;
  // The whole tensor as floats: F32 as it is, BF16 and F16 exactly, F64 rounded once. out.size() must equal its count.
  void read_f32(std::string_view name, std::span<float> out) const;
  // The whole tensor as integers, from I32, I64 or U8, U16.
  std::vector<int64_t> read_i64(std::string_view name) const;

 private:
  void parse(std::string_view header);
  [[noreturn]] void refuse_type(const SafetensorsEntry& entry, const char* expected) const;

  std::string path_;
  Descriptor file_;
  uint64_t size_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

// A tensor to be written: either `data`, which must outlive the call, or `make`, asked when its turn comes so that only
// one such tensor is in memory. Either must give exactly shape x dtype bytes.
struct SafetensorsItem {
  std::string name;
  StDtype dtype = StDtype::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
  std::function<std::vector<std::byte>()> make;
};

// Hashes are XXH3-128 of bytes as they were in memory, before they were written.
struct WrittenFile {
  uint64_t bytes = 0;
  std::string hash;                            // of the whole file
  std::map<std::string, std::string> hash_of;  // of each tensor, by its name
};

// Writes a new file at `path` (which must not exist), tensors sorted by dtype (descending) and name as the reference
// does, header padded to a multiple of 8, flushed to the device. `after_half`, if given, is called once about half the
// data has been written (fault injection). Throws Error(kIo); names that the reader would refuse are a CHECK.
WrittenFile write_safetensors(const std::string& path, std::vector<SafetensorsItem> items,
                              const std::map<std::string, std::string>& metadata = {},
                              const std::function<void()>& after_half = {});

// The same through a temporary file beside `path`, which is then renamed over it and the directory flushed.
WrittenFile replace_safetensors(const std::string& path, std::vector<SafetensorsItem> items,
                                const std::map<std::string, std::string>& metadata = {});

// float -> bytes of F32, BF16 or F16 (nearest even), for export.
std::vector<std::byte> encode_floats(std::span<const float> values, StDtype dtype);

// The names that reader and writer accept, besides uniqueness.
bool is_valid_tensor_name(std::string_view name);

}  // namespace thinwire
