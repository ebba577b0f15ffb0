// POSIX behind file.h; every failed call becomes one message with path and reason.
#include "engine/base/core/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "engine/base/core/error.h"
#include "engine/base/core/log.h"

namespace thinwire {
namespace {

constexpr size_t kMost = size_t{64} << 20;                              // bytes of one read or write
constexpr std::chrono::milliseconds kFirstPause{50}, kLastPause{3200};  // 6.35 s in all

std::string reason() {
  return std::strerror(errno);
}

// Repeats `attempt`, which returns 0 or an errno, until that is 0 or an error of the path itself, and returns it. Other
// errors may be the file system's and pass: a warning, tries for 6 s, then Error(kIo).
template <typename Attempt>
int persist(const std::string& path, const char* what, const Attempt& attempt) {
  for (auto pause = kFirstPause;; pause *= 2) {
    const int error = attempt();
    switch (error) {
      case 0:
      case EISDIR:
      case ELOOP:
      case ENAMETOOLONG:
      case ENOENT:
      case ENOTDIR:
        return error;
      default:
        break;
    }
    const std::string why = path + ": cannot " + what + ": " + std::strerror(error);
    if (pause > kLastPause)
      throw_io(why + ", again and again for 6 s; mend the file system or the permissions, and start again");
    if (pause == kFirstPause) log_warning("warning: " + why + "; trying again");
    std::this_thread::sleep_for(pause);
  }
}

template <typename Attempt>
void persist_or_refuse(const std::string& path, const char* what, const Attempt& attempt) {
  if (const int error = persist(path, what, attempt); error != 0)
    throw_bad_data(path + ": cannot " + what + ": " + std::strerror(error));
}

Descriptor open_to_read(const std::string& path) {
  Descriptor file;
  persist_or_refuse(path, "open", [&] {
    file = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return file ? 0 : errno;
  });
  return file;
}

// Calls take(chunk) until the file ends.
template <typename Take>
void read_chunks(const Descriptor& file, const std::string& path, const Take& take) {
  char buffer[1 << 16];
  for (ssize_t n = 1; n > 0;) {
    // read, not pread: the file may be a pipe.
    persist_or_refuse(path, "read", [&] {
      do n = ::read(file.get(), buffer, sizeof buffer);
      while (n < 0 && errno == EINTR);
      return n < 0 ? errno : 0;
    });
    take(std::string_view(buffer, static_cast<size_t>(n)));
  }
}

// Reads from byte offset + done until `out` is full or the file ends. Returns 0 or an errno.
int read_some(const Descriptor& file, uint64_t offset, std::span<std::byte> out, size_t& done) {
  while (done < out.size()) {
    const ssize_t n =
        ::pread(file.get(), out.data() + done, std::min(out.size() - done, kMost), static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return 0;
}

}  // namespace

bool Descriptor::close() {
  return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0;
}

uint64_t Descriptor::size() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) throw_io("cannot tell the size of an open file: " + reason());
  return static_cast<uint64_t>(info.st_size);
}

Descriptor open_regular(const std::string& path) {
  Descriptor file = open_to_read(path);
  struct stat info {};
  persist_or_refuse(path, "stat", [&] { return ::fstat(file.get(), &info) == 0 ? 0 : errno; });
  if (!S_ISREG(info.st_mode)) throw_bad_data(path + ": not a regular file");
  return file;
}

size_t read_at(const Descriptor& file, const std::string& path, uint64_t offset, std::span<std::byte> out) {
  size_t done = 0;
  persist_or_refuse(path, "read", [&] {
    if (read_some(file, offset, out, done) == 0) return 0;
    const Descriptor anew(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return anew ? read_some(anew, offset, out, done) : errno;
  });
  return done;
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
  const Descriptor file = open_to_read(path);
  struct stat info {};
  persist_or_refuse(path, "stat", [&] { return ::fstat(file.get(), &info) == 0 ? 0 : errno; });
  if (S_ISDIR(info.st_mode)) throw_bad_data(path + ": is a directory, a file is needed");
  std::string content;
  if (info.st_size > 0) {
    if (static_cast<uint64_t>(info.st_size) > limit) {
      throw_bad_data(path + ": " + std::to_string(info.st_size) + " bytes, at most " + std::to_string(limit) +
                     " are accepted");
    }
    content.reserve(static_cast<size_t>(info.st_size));
  }
  read_chunks(file, path, [&](std::string_view chunk) {
    if (content.size() + chunk.size() > limit)
      throw_bad_data(path + ": larger than " + std::to_string(limit) + " bytes");
    content.append(chunk);
  });
  return content;
}

std::string read_file_now(const std::string& path) {
  std::ostringstream content;  // iterators over the stream would throw
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content ? content.str() : "";
}

void read_lines(const std::string& path, const std::function<void(std::string_view line, bool ended)>& visit) {
  std::string line;
  read_chunks(open_to_read(path), path, [&](std::string_view chunk) {
    for (size_t end; (end = chunk.find('\n')) != std::string_view::npos; chunk.remove_prefix(end + 1)) {
      line.append(chunk.substr(0, end));
      visit(line, true);
      line.clear();
    }
    line.append(chunk);
  });
  if (!line.empty()) visit(line, false);
}

std::string this_host() {
  char host[256] = {};
  return ::gethostname(host, sizeof host - 1) == 0 && host[0] != '\0' ? host : "localhost";
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

void rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_io(to + ": cannot rename: " + reason());
}

std::string temporary_beside(const std::string& path) {
  const std::string name = path + ".tmp-" + this_host() + "-" + std::to_string(::getpid());
  struct stat info {};
  for (int number = 1;; ++number) {
    const std::string candidate = number == 1 ? name : name + "-" + std::to_string(number);
    if (::lstat(candidate.c_str(), &info) != 0) return candidate;
  }
}

void write_file_atomic(const std::string& path, const std::string& content, bool durable) {
  std::string temporary;
  const auto fail = [&](const char* what) {
    const std::string why = reason();
    ::unlink(temporary.c_str());
    throw_io(path + ": cannot " + what + ": " + why);
  };
  {
    Descriptor file;
    do {  // again where another thread took the name first
      temporary = temporary_beside(path);
      file = Descriptor(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    } while (!file && errno == EEXIST);
    if (!file) fail("create");
    if (!write_all(file, std::as_bytes(std::span(content)))) fail("write");
    if (durable && ::fsync(file.get()) != 0) fail("flush");
    if (!file.close()) fail("close");  // where NFS reports a full disk
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail("rename");
  if (durable) sync_directory(folder_of(path));
}

void sync_directory(const std::string& path) {
  const Descriptor dir(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir) throw_io(path + ": cannot open directory: " + reason());
  if (::fsync(dir.get()) != 0 && errno != EINVAL) throw_io(path + ": cannot flush directory: " + reason());
}

bool is_directory(const std::string& path) {
  struct stat info {};
  return persist(path, "stat", [&] { return ::stat(path.c_str(), &info) == 0 ? 0 : errno; }) == 0 &&
         S_ISDIR(info.st_mode);
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  persist(path, "list", [&] {
    names.clear();
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), ::closedir);
    if (directory == nullptr) return errno;
    for (;;) {
      errno = 0;  // readdir returns nullptr at the end, too: only errno tells a failure
      const dirent* entry = ::readdir(directory.get());
      if (entry == nullptr) return errno;
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
  });
  return names;
}

void make_directories(const std::string& path) {
  for (size_t end = 1; end <= path.size(); ++end) {
    if (end != path.size() && path[end] != '/') continue;
    const std::string part = path.substr(0, end);
    struct stat info {};
    // Most are there. All ranks ask for the same ones, and a mkdir of each would be a change that a shared file system
    // has to order; some mount points refuse it with an error of their own.
    if (::stat(part.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) continue;
    if (::mkdir(part.c_str(), 0777) != 0 && errno != EEXIST)
      throw_busy(part + ": cannot create directory: " + reason());
    if (::stat(part.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) throw_busy(part + ": is not a directory");
  }
}

MappedFile::MappedFile(const std::string& path) : file_(open_regular(path)) {
  const size_t size = file_.size();
  if (size == 0) return;
  void* data = MAP_FAILED;
  persist_or_refuse(path, "map", [&] {
    data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file_.get(), 0);
    return data == MAP_FAILED ? errno : 0;
  });
  data_ = {data, Unmap{size}};
}

void MappedFile::Unmap::operator()(void* data) const {
  ::munmap(data, size);
}

}  // namespace thinwire
