// Files: whole reads with clear errors, read-only maps, and writes that are complete or leave the old file.
// Reading retries: after an error that may pass (EIO, ESTALE, EACCES, EMFILE ...) it warns, tries again for 6 s, and
// then throws Error(kIo) naming the file. A path that does not exist, or is no file, is Error(kBadData) at once; to
// is_directory and list_directory, which retry likewise, that is no error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thinwire {

// An owned file descriptor.
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
  bool close();  // false with errno where close(2) failed; true where nothing was open
  // Size in bytes now. Throws Error(kIo) where fstat fails: 0 would be taken for a damaged file.
  uint64_t size() const;

 private:
  int fd_ = -1;
};

// Opens a regular file for reading; Error(kBadData) for anything else.
Descriptor open_regular(const std::string& path);
// Fills `out` with the bytes of `file` from `offset` on. Returns how many there were, fewer only at the end of the
// file. Where reading fails (a descriptor that NFS calls stale), `path`, under which it was opened, is opened again.
size_t read_at(const Descriptor& file, const std::string& path, uint64_t offset, std::span<std::byte> out);
// Writes all of it; false with errno where that failed.
bool write_all(const Descriptor& file, std::span<const std::byte> bytes);

// Reads a whole file. Throws Error(kBadData) if it is larger than `limit` bytes, too.
std::string read_file(const std::string& path, size_t limit = SIZE_MAX);
// The same for whoever has no time to bear with a file system in trouble: empty where the file cannot be read just now.
std::string read_file_now(const std::string& path);
// Calls visit(line, ended) for every line of a file, one in memory at a time; ended: a newline, which is no part of it,
// stood behind it.
void read_lines(const std::string& path, const std::function<void(std::string_view line, bool ended)>& visit);

// "localhost" where the system does not say.
std::string this_host();
// The folder that a path lies in; "." for a name without one.
std::string folder_of(const std::string& path);
// rename(2). Throws Error(kIo) naming `to` and the reason.
void rename_file(const std::string& from, const std::string& to);

// A free name for a file that will be renamed over `path`: path.tmp-<host>-<pid>, with a number behind it where that is
// taken (by another thread, or by a dead process of another container). Open it with O_EXCL.
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

// A read-only memory map of a regular file. bytes() is empty for an empty file.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_.get()), data_ ? data_.get_deleter().size : 0};
  }
  // Size of the file now. Pages beyond it raise SIGBUS: a reader of a file that may have shrunk asks first.
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
