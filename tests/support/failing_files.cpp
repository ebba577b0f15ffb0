// Preloaded in front of the C library: a file system that fails where it is told to.
//
// THINWIRE_FILE_FAULT=call:part:error:first:count, call one of open, read (pread, too), sync: the calls number first to
// first + count - 1 on paths that hold `part` fail with this errno.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Fault {
  char call[8] = {}, part[200] = {};
  int error = 0;
  long first = 1, count = 0;
};

const Fault& fault() {
  static const Fault planned = [] {
    Fault f;
    const char* text = std::getenv("THINWIRE_FILE_FAULT");
    if (text == nullptr ||
        std::sscanf(text, "%7[a-z]:%199[^:]:%d:%ld:%ld", f.call, f.part, &f.error, &f.first, &f.count) != 5)
      f.count = 0;
    return f;
  }();
  return planned;
}

std::atomic<long> matched = 0;

// Sets errno.
bool strikes(const char* call, const char* path) {
  const Fault& f = fault();
  if (f.count == 0 || std::strcmp(f.call, call) != 0 || std::strstr(path, f.part) == nullptr) return false;
  const long number = ++matched;
  if (number < f.first || number >= f.first + f.count) return false;
  errno = f.error;
  return true;
}

bool strikes(const char* call, int file) {
  if (fault().count == 0 || std::strcmp(fault().call, call) != 0) return false;
  char link[40], path[4096] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  return ::readlink(link, path, sizeof path - 1) > 0 && strikes(call, path);
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  static auto* const real = next<int(const char*, int, ...)>("open");
  return strikes("open", path) ? -1 : real(path, flags, mode);
}

ssize_t read(int file, void* to, size_t bytes) {
  static auto* const real = next<ssize_t(int, void*, size_t)>("read");
  return strikes("read", file) ? -1 : real(file, to, bytes);
}

ssize_t pread(int file, void* to, size_t bytes, off_t offset) {
  static auto* const real = next<ssize_t(int, void*, size_t, off_t)>("pread");
  return strikes("read", file) ? -1 : real(file, to, bytes, offset);
}

int fdatasync(int file) {
  static auto* const real = next<int(int)>("fdatasync");
  return strikes("sync", file) ? -1 : real(file);
}

int fsync(int file) {
  static auto* const real = next<int(int)>("fsync");
  return strikes("sync", file) ? -1 : real(file);
}
}
