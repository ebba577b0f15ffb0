// Files: whole reads with clear errors, read-only maps, and writes that are either complete and durable or not there.
// Reading retries: after an error that need not last (EIO, ESTALE, EACCES, EMFILE ...) it warns, tries again for some
// seconds, and then throws Error(kIo) naming the file. A file that does not exist, or is none, is Error(kBadData) at
// once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace thinwire {

// An open file of the system, closed when it goes.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  bool close();  // at once; false with errno where the system could not
  // Size in bytes now. Throws Error(kIo) where that cannot be told: 0 would be taken for a damaged file.
  uint64_t size() const;

 private:
  int fd_ = -1;
};

// Opens a regular file for reading.
Descriptor open_regular(const std::string& path);
// Fills `out` from byte `offset` on of the file that was opened there. Returns how many bytes there were, fewer only at
// the end of the file. A descriptor that went stale is not a lost file: `path` is opened anew.
size_t read_at(const Descriptor& file, const std::string& path, uint64_t offset, std::span<std::byte> out);
// Writes all of it; false with errno where that failed.
bool write_all(const Descriptor& file, std::span<const std::byte> bytes);

// Reads a whole file. Throws Error(kBadData) if it is larger than `limit` bytes, too.
std::string read_file(const std::string& path, size_t limit = SIZE_MAX);

// "localhost" where the system does not say.
std::string this_host();
// "." where the path is a mere name.
std::string folder_of(const std::string& path);
// rename(2). Throws Error(kIo) naming `to` and the reason.
void rename_file(const std::string& from, const std::string& to);

// The name of a file that will be renamed over `path`: path.tmp-<host>-<pid>, with a number behind it where that is
// taken (by another thread, or by a process of another container that died). To be opened with O_EXCL.
std::string temporary_beside(const std::string& path);

// Writes a new file beside `path` and renames it over `path`; `durable`: fsyncs the file before and the directory
// after. Throws Error(kIo) naming path and reason; the old file is then untouched.
void write_file_atomic(const std::string& path, const std::string& content, bool durable = true);

// fsync of a directory, so that renames in it survive a power cut.
void sync_directory(const std::string& path);

// False where nothing is there, or something else.
bool is_directory(const std::string& path);
// The names in a directory, in no order; none where there is no directory.
std::vector<std::string> list_directory(const std::string& path);

// mkdir -p. Throws Error(kBusy) when a part of the path is not a directory or not writable.
void make_directories(const std::string& path);

// A read-only memory map of a regular file; an empty file gives an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_.get()), data_ ? data_.get_deleter().size : 0};
  }
  // Size of the file now: a reader that suspects the file shrank asks before touching pages.
  size_t current_size() const { return file_.size(); }

 private:
  struct Unmap {
    size_t size;
    void operator()(void* data) const;
  };
  Descriptor file_;
  std::unique_ptr<void, Unmap> data_;
};

}  // namespace thinwire
