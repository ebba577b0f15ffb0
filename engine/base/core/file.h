// Files: whole reads with clear errors, read-only maps, and writes that are either complete and durable or not there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace thinwire {

// Reads a whole file. Throws Error(kBadData) if it is missing or unreadable, or larger than `limit` bytes.
std::string read_file(const std::string& path, size_t limit = SIZE_MAX);

// Writes path.tmp-<pid>, flushes it to disk and renames it over `path`; fsyncs the directory when `durable`.
// Throws Error(kIo) naming path and reason; the old file is then untouched.
void write_file_atomic(const std::string& path, const std::string& content, bool durable = true);

// fsync of a directory, so that renames in it survive a power cut.
void sync_directory(const std::string& path);

// mkdir -p. Throws Error(kBusy) when a part of the path is not a directory or not writable.
void make_directories(const std::string& path);

// A read-only memory map of a regular file; an empty file gives an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);  // throws Error(kBadData)
  ~MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  // Size of the file now: a reader that suspects the file shrank asks before touching pages.
  size_t current_size() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
};

}  // namespace thinwire
