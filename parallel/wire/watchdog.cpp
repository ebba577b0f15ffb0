// The watchdog's thread: sleeps, compares signs of life, writes reports, and at the limit ends the job.
#include "parallel/wire/watchdog.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/log.h"

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kStuckSeconds = 0.3;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

// When a file was written; 0 if it is not there.
int64_t stamp_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return 0;
  return static_cast<int64_t>(info.st_mtim.tv_sec) * 1000000000 + info.st_mtim.tv_nsec;
}

// The content of a small file, empty if it cannot be read.
std::string content_of(const std::string& path) {
  std::ifstream file(path);  // read_file would bear with a file system in trouble: nobody has time for that here
  return {std::istreambuf_iterator<char>(file), {}};
}

// A watchdog that cannot write still has to end the job.
bool try_write(const std::string& path, const std::string& content) {
  try {
    write_file_atomic(path, content, false);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string report_path(const std::string& folder, int rank) {
  return folder + "/rank" + std::to_string(rank) + ".txt";
}

// Past the log, whose lock a stuck thread may hold.
void print_message(const std::string& message) {
  std::string text = "thinwire: " + message;
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  log_write_file(LogLevel::kError, message);
}

std::string json_text(const Verdict& verdict, int reporter, double silence_s) {
  std::string list;
  for (int rank : verdict.culprits) list += (list.empty() ? "" : ",") + std::to_string(rank);
  char end[96];
  std::snprintf(end, sizeof end, "],\"reporter\":%d,\"silence_s\":%.3f}\n", reporter, silence_s);
  return "{\"code\":71,\"culprits\":[" + list + end;
}

}  // namespace

Watchdog::Watchdog(Transport& transport, const FlightRecorder& recorder, WatchdogOptions options)
    : transport_(&transport), recorder_(&recorder), options_(std::move(options)), host_(host_name()) {
  TW_CHECK(options_.seconds > 0.0 && recorder.world_size() == transport.size());
  if (static_cast<int>(options_.hosts.size()) == transport.size())
    host_ = options_.hosts[static_cast<size_t>(transport.rank())];
  options_.hosts.resize(static_cast<size_t>(transport.size()));
  if (!options_.end) options_.end = [this](int code) { transport_->abort(code); };
  if (!options_.print) options_.print = print_message;
  if (!options_.directory.empty()) {
    folder_ = options_.directory + "/watchdog";
    own_file_ = report_path(folder_, transport.rank());
    try {
      make_directories(folder_);
      if (transport.rank() == 0) {
        for (const char* file : {"/watchdog.json", "/watchdog/alarm", "/watchdog/verdict"})
          ::unlink((options_.directory + file).c_str());
      }
      write_report("");
    } catch (const Error& e) {
      log_warning(std::string("watchdog: reports go to stderr alone: ") + e.what());
      folder_.clear();
    }
  }
  // Signals are the main thread's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] {
    try {
      run();
    } catch (const Error&) {
      // Where ranks are threads, abort() leaves with what every other thread of the world gets as well.
    }
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  if (folder_.empty()) return;
  ::unlink(own_file_.c_str());
  if (transport_->rank() == 0) ::unlink((folder_ + "/alarm").c_str());
  ::rmdir(folder_.c_str());  // the last rank's succeeds
}

bool Watchdog::sleep(double seconds) {
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return stop_; });
}

void Watchdog::look_at_polls() {
  const uint64_t polls = recorder_->polls();
  if (polls != polls_) polls_ = polls, polled_ = Clock::now();
}

WaitReport Watchdog::own_report() const {
  WaitReport report = make_report(transport_->rank(), *recorder_, silence_s_);
  report.host = host_;
  report.pid = ::getpid();
  // A waiting thread polls every few milliseconds.
  report.stuck = report.state == WaitReport::State::kWaiting && polls_ > 0 && since(polled_) > kStuckSeconds;
  return report;
}

void Watchdog::write_report(const std::string& answers) const {
  WaitReport report = own_report();
  report.answers = answers;
  if (!try_write(own_file_, to_text(report, *recorder_)) && !answers.empty())
    options_.print("watchdog: cannot write " + own_file_ + "\n");
}

// Renamed into place: several ranks may raise the same file at once, the last one stays.
void Watchdog::raise(const char* file) const {
  const std::string mine = folder_ + "/" + file + "." + std::to_string(transport_->rank());
  const std::string id = std::to_string(std::chrono::system_clock::now().time_since_epoch().count()) + "." +
                         std::to_string(transport_->rank());
  if (try_write(mine, id)) ::rename(mine.c_str(), (folder_ + "/" + file).c_str());
}

void Watchdog::run() {
  pthread_setname_np(pthread_self(), "tw-watchdog");
  const double limit = options_.seconds;
  const std::string alarm_file = folder_ + "/alarm", verdict_file = folder_ + "/verdict";
  // Left over from an earlier run unless they change.
  int64_t alarm = folder_.empty() ? 0 : stamp_of(alarm_file);
  const int64_t old_verdict = folder_.empty() ? 0 : stamp_of(verdict_file);
  uint64_t signs = recorder_->signs_of_life();
  Clock::time_point quiet = Clock::now(), alarmed = quiet - std::chrono::hours(24);
  int written = 0;  // quarters of the limit after which this silence was reported
  for (;;) {
    // Answers are due within answer_seconds: be awake more often while anybody suspects something.
    double nap = std::min(limit / 16.0, 5.0);
    if (since(alarmed) < limit) nap = std::min(nap, options_.answer_seconds / 4.0);
    const Clock::time_point before = Clock::now();
    if (!sleep(nap)) return;
    const double slept = since(before);
    // This process was stopped, or the machine was: nobody's fault, and not silence.
    if (slept > 4.0 * nap + 1.0)
      quiet += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(slept - nap));
    look_at_polls();
    const uint64_t now_signs = recorder_->signs_of_life();
    if (now_signs != signs) signs = now_signs, quiet = Clock::now(), written = 0;
    silence_s_ = since(quiet);
    const bool blocked = recorder_->waiting_threads() > 0 || recorder_->open_operations() > 0;
    const int quarter = static_cast<int>(std::min(4.0, 4.0 * silence_s_ / limit));
    if (folder_.empty()) {
      if (blocked && quarter >= 4) return end_job_without_directory();
      continue;
    }
    if (const int64_t verdict = stamp_of(verdict_file); verdict != 0 && verdict != old_verdict) return end_job();
    if (blocked && quarter >= 4) {
      raise("verdict");
      return end_job();
    }
    if (blocked && quarter >= 2 && quarter > written) {
      written = quarter;
      write_report("");
      raise("alarm");
    }
    const int64_t now_alarm = stamp_of(alarm_file);
    if (now_alarm != alarm) alarm = now_alarm, alarmed = Clock::now(), write_report("");
    if (!blocked && quarter >= 4 && written < 4) written = 4, write_report("");
  }
}

void Watchdog::end_job() {
  const int size = transport_->size(), me = transport_->rank();
  const Clock::time_point start = Clock::now();
  const double silence_before = silence_s_;
  std::vector<WaitReport> reports(static_cast<size_t>(size));
  std::string id;
  bool printer = true, all = false;
  while (!all && since(start) < options_.answer_seconds) {
    silence_s_ = silence_before + since(start);
    look_at_polls();
    if (const std::string now = content_of(folder_ + "/verdict"); !now.empty() && now != id) {
      id = now;
      write_report(id);
      printer = true;
      for (int r = 0; r < size; ++r) reports[static_cast<size_t>(r)] = WaitReport{.rank = r};
    }
    // Ascending: most ranks learn from rank 0's answer that they have nothing to print, and read nothing else.
    all = true;
    for (int r = 0; r < size && printer; ++r) {
      WaitReport& report = reports[static_cast<size_t>(r)];
      if (report.state != WaitReport::State::kAbsent) continue;
      WaitReport read = r == me ? own_report() : parse_report(content_of(report_path(folder_, r)));
      if (r != me && (read.answers != id || read.rank != r)) {
        report.host = read.host;  // known from its start, for the message
        all = false;
        continue;
      }
      report = std::move(read);
      printer = r >= me;
    }
    if (!printer) all = false;
    if (!all && !sleep(std::min(0.05, options_.answer_seconds / 8.0))) return;
  }
  if (!printer) {
    if (sleep(2.0 * options_.grace_seconds)) options_.end(static_cast<int>(ExitCode::kHungPeer));
    return;
  }
  if (id.empty()) return end_job_without_directory();  // the directory has gone bad since the start
  for (int r = 0; r < size; ++r) {
    WaitReport& report = reports[static_cast<size_t>(r)];
    report.rank = r;
    if (report.host.empty()) report.host = options_.hosts[static_cast<size_t>(r)];
  }
  double silence = 0.0;
  for (const WaitReport& report : reports)
    if (report.state == WaitReport::State::kWaiting) silence = std::max(silence, report.silent_s);
  const Verdict verdict = judge(reports);
  try_write(options_.directory + "/watchdog.json", json_text(verdict, me, silence));
  finish(verdict_text(verdict, reports, std::max(silence, options_.seconds), options_.directory));
}

// Only this rank's view: the ranks it waits for are all it can name.
void Watchdog::end_job_without_directory() {
  finish("watchdog: nothing moved on this rank for too long; ending all ranks with code 71.\n  " +
         wait_text(own_report()) + "\n  Without a shared directory for reports nothing more can be said.\n");
}

void Watchdog::finish(const std::string& message) {
  if (options_.on_verdict) options_.on_verdict(message);
  options_.print(message);
  if (sleep(options_.grace_seconds)) options_.end(static_cast<int>(ExitCode::kHungPeer));
}

}  // namespace thinwire
