// A file being written for keeps: space reserved first, hashed on its way out of memory, flushed before it counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/core/file.h"

namespace thinwire {

// Two lower-case hexadecimal digits for each byte.
std::string to_hex(std::span<const std::byte> bytes);
// Back again; nothing where the text is no such digits.
std::optional<std::string> from_hex(std::string_view text);

// XXH3-128 of memory as 32 lower-case hexadecimal digits (canonical byte order).
std::string hash_bytes(std::span<const std::byte> bytes);
inline std::string hash_text(std::string_view text) {
  return hash_bytes(std::as_bytes(std::span(text.data(), text.size())));
}

// XXH3-128 fed in pieces.
class RunningHash {
 public:
  RunningHash();
  ~RunningHash();
  RunningHash(const RunningHash&) = delete;
  RunningHash& operator=(const RunningHash&) = delete;
  void add(std::span<const std::byte> bytes);
  std::string digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A new file at `path` (which must not exist). Every failure throws Error(kIo) naming path and reason; a file that was
// not finished is removed by the destructor. Writes through the page cache, never through a map: a full disk is then an
// error code and not a signal.
class OutputFile {
 public:
  // Reserves `expected_bytes` where the file system can, so that a full disk is known before the first byte is written.
  OutputFile(const std::string& path, uint64_t expected_bytes);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  uint64_t written() const { return written_; }
  // Flushes data and size to the device, closes the file and returns the hash of all bytes as they were in memory.
  std::string finish();

 private:
  [[noreturn]] void fail(const char* what);
  std::string path_;
  Descriptor file_;
  uint64_t written_ = 0;
  bool finished_ = false;
  RunningHash hash_;
};

}  // namespace thinwire
