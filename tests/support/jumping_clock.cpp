// Preloaded in front of the C library: a wall clock that somebody sets while the program runs.
//
// THINWIRE_CLOCK_JUMPS=seconds:by[,seconds:by ...]: after so many seconds of the process's life the clock of the day is
// moved by so many seconds. Clocks that nobody can set (CLOCK_MONOTONIC and its kin) go on.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

timespec kernel_time(clockid_t id) {
  timespec t{};
  ::syscall(SYS_clock_gettime, id, &t);
  return t;
}

double monotonic() {
  const timespec t = kernel_time(CLOCK_MONOTONIC);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

const double kBegan = monotonic();

long moved() {
  const char* text = std::getenv("THINWIRE_CLOCK_JUMPS");
  const double age = monotonic() - kBegan;
  long sum = 0;
  for (double after = 0.0; text != nullptr && *text != 0; text = std::strchr(text, ',')) {
    if (*text == ',') ++text;
    long by = 0;
    if (std::sscanf(text, "%lf:%ld", &after, &by) == 2 && age >= after) sum += by;
  }
  return sum;
}

}  // namespace

extern "C" int clock_gettime(clockid_t id, timespec* out) noexcept {
  *out = kernel_time(id);
  if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) out->tv_sec += moved();
  return 0;
}

extern "C" time_t time(time_t* out) noexcept {
  const time_t now = kernel_time(CLOCK_REALTIME).tv_sec + moved();
  if (out != nullptr) *out = now;
  return now;
}

extern "C" int gettimeofday(timeval* out, void*) noexcept {
  const timespec now = kernel_time(CLOCK_REALTIME);
  *out = {now.tv_sec + moved(), now.tv_nsec / 1000};
  return 0;
}
