// POSIX behind file.h; every failed call becomes one message with path and reason.
#include "engine/base/core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/core/error.h"

namespace thinwire {
namespace {

constexpr size_t kMost = size_t{64} << 20;  // of one call of the system

std::string reason() {
  return std::strerror(errno);
}

}  // namespace

bool Descriptor::close() {
  return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0;
}

uint64_t Descriptor::size() const {
  struct stat info {};
  return fd_ >= 0 && ::fstat(fd_, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

Descriptor open_regular(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw_bad_data(path + ": cannot open: " + reason());
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) throw_bad_data(path + ": not a regular file");
  return file;
}

int64_t read_at(const Descriptor& file, uint64_t offset, std::span<std::byte> out) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n =
        ::pread(file.get(), out.data() + done, std::min(out.size() - done, kMost), static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return static_cast<int64_t>(done);
}

bool write_all(const Descriptor& file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file.get(), bytes.data(), std::min(bytes.size(), kMost));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

std::string read_file(const std::string& path, size_t limit) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw_bad_data(path + ": cannot open: " + reason());
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) throw_bad_data(path + ": cannot stat: " + reason());
  if (S_ISDIR(info.st_mode)) throw_bad_data(path + ": is a directory, a file is needed");
  std::string content;
  if (info.st_size > 0) {
    if (static_cast<uint64_t>(info.st_size) > limit) {
      throw_bad_data(path + ": " + std::to_string(info.st_size) + " bytes, at most " + std::to_string(limit) +
                     " are accepted");
    }
    content.reserve(static_cast<size_t>(info.st_size));
  }
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(file.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_bad_data(path + ": cannot read: " + reason());
    if (n == 0) break;
    if (content.size() + static_cast<size_t>(n) > limit)
      throw_bad_data(path + ": larger than " + std::to_string(limit) + " bytes");
    content.append(buffer, static_cast<size_t>(n));
  }
  return content;
}

void write_file_atomic(const std::string& path, const std::string& content, bool durable) {
  const std::string temporary = path + ".tmp-" + std::to_string(::getpid());
  const auto fail = [&](const char* what) {
    const std::string why = reason();
    ::unlink(temporary.c_str());
    throw_io(path + ": cannot " + what + ": " + why);
  };
  {
    const Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file) fail("create");
    if (!write_all(file, std::as_bytes(std::span(content)))) fail("write");
    if (durable && ::fsync(file.get()) != 0) fail("flush");
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail("rename");
  if (durable) {
    const auto slash = path.rfind('/');
    sync_directory(slash == std::string::npos ? "." : path.substr(0, slash));
  }
}

void sync_directory(const std::string& path) {
  const Descriptor dir(::open(path.empty() ? "/" : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir) throw_io(path + ": cannot open directory: " + reason());
  if (::fsync(dir.get()) != 0 && errno != EINVAL) throw_io(path + ": cannot flush directory: " + reason());
}

void make_directories(const std::string& path) {
  for (size_t end = 1; end <= path.size(); ++end) {
    if (end != path.size() && path[end] != '/') continue;
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), 0755) != 0 && errno != EEXIST)
      throw_busy(part + ": cannot create directory: " + reason());
    struct stat info {};
    if (::stat(part.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) throw_busy(part + ": is not a directory");
  }
}

MappedFile::MappedFile(const std::string& path) : file_(open_regular(path)) {
  const size_t size = file_.size();
  if (size == 0) return;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file_.get(), 0);
  if (data == MAP_FAILED) throw_bad_data(path + ": cannot map: " + reason());
  data_ = {data, Unmap{size}};
}

void MappedFile::Unmap::operator()(void* data) const {
  ::munmap(data, size);
}

}  // namespace thinwire
