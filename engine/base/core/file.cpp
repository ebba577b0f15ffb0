// POSIX behind file.h; every failed call becomes one message with path and reason.
#include "engine/base/core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/core/error.h"

namespace thinwire {
namespace {

std::string reason() {
  return std::strerror(errno);
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

std::string read_file(const std::string& path, size_t limit) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) throw_bad_data(path + ": cannot open: " + reason());
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) throw_bad_data(path + ": cannot stat: " + reason());
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
    const ssize_t n = ::read(file.fd, buffer, sizeof buffer);
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
    Descriptor file{::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (file.fd < 0) fail("create");
    size_t done = 0;
    while (done < content.size()) {
      const ssize_t n = ::write(file.fd, content.data() + done, content.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("write");
      done += static_cast<size_t>(n);
    }
    if (durable && ::fsync(file.fd) != 0) fail("flush");
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail("rename");
  if (durable) {
    const auto slash = path.rfind('/');
    sync_directory(slash == std::string::npos ? "." : path.substr(0, slash));
  }
}

void sync_directory(const std::string& path) {
  Descriptor dir{::open(path.empty() ? "/" : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (dir.fd < 0) throw_io(path + ": cannot open directory: " + reason());
  if (::fsync(dir.fd) != 0 && errno != EINVAL) throw_io(path + ": cannot flush directory: " + reason());
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

MappedFile::MappedFile(const std::string& path) : path_(path) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) throw_bad_data(path + ": cannot open: " + reason());
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) throw_bad_data(path + ": cannot stat: " + reason());
  if (!S_ISREG(info.st_mode)) throw_bad_data(path + ": not a regular file");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ != 0) {
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (data_ == MAP_FAILED) {
      data_ = nullptr;
      throw_bad_data(path + ": cannot map: " + reason());
    }
  }
  fd_ = std::exchange(file.fd, -1);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
  if (fd_ >= 0) ::close(fd_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

size_t MappedFile::current_size() const {
  struct stat info {};
  return fd_ >= 0 && ::fstat(fd_, &info) == 0 ? static_cast<size_t>(info.st_size) : 0;
}

}  // namespace thinwire
