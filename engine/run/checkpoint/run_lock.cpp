// flock, lease file and heartbeat thread behind run_lock.h.
#include "engine/run/checkpoint/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "engine/base/core/error.h"
#include "engine/base/core/log.h"
#include "engine/base/core/shallow_json.h"
#include "engine/base/core/text.h"

namespace thinwire {
namespace {

constexpr char kLeaseName[] = "/lease.json";
constexpr size_t kLeaseBytes = 1024;  // fixed, so that a heartbeat rewrites it in place

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string job_name() {
  for (const char* variable : {"SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID"}) {
    if (const char* value = std::getenv(variable); value != nullptr && *value != '\0')
      return std::string(value).substr(0, 64);
  }
  return "-";
}

std::string random_token() {
  std::random_device random;
  return printed("%08x%08x%08x%08x", random(), random(), random(), random());
}

std::string lease_text(const Lease& lease) {
  std::string text = "{\"host\": " + nlohmann::json(lease.host).dump() + ", \"pid\": " + std::to_string(lease.pid) +
                     ", \"job\": " + nlohmann::json(lease.job).dump() + ", \"token\": \"" + lease.token +
                     "\", \"heartbeat\": " + printed("%.3f", lease.heartbeat) + "}";
  text.resize(kLeaseBytes - 1, ' ');
  return text + "\n";
}

// nullopt when there is none, or when it was torn or written by something else: then nobody can be named. What the file
// system cannot tell is Error(kIo).
std::optional<Lease> lease_of(const std::string& text) {
  const auto root = parse_shallow(text);
  if (!root.is_object() || !root.contains("pid") || !root["pid"].is_number_integer()) return std::nullopt;
  try {
    return Lease{root.at("host").get<std::string>(), root.at("pid").get<long>(), root.at("job").get<std::string>(),
                 root.at("token").get<std::string>(), root.at("heartbeat").get<double>()};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::optional<Lease> read_lease(const std::string& directory) {
  try {
    return lease_of(read_file(directory + kLeaseName, 1 << 16));
  } catch (const Error& e) {
    if (e.code() != ExitCode::kBadData) throw;
    return std::nullopt;
  }
}

[[noreturn]] void refuse_busy(const std::string& directory, const std::optional<Lease>& holder) {
  throw_busy(directory + ": in use by " + (holder ? holder->describe() : "a process that left no lease") +
             "; wait for it or stop it, or choose another run directory");
}

}  // namespace

std::string Lease::describe() const {
  return printed("host %s (pid %ld, job %s, last heartbeat %.0f s ago)", host.c_str(), pid, job.c_str(),
                 std::max(0.0, now() - heartbeat));
}

bool lease_has_token(const std::string& directory, const std::string& token) {
  const auto lease = read_lease(directory);
  return lease && lease->token == token;
}

bool is_taken_from(const std::string& directory, const std::string& token) {
  const auto lease = lease_of(read_file_now(directory + kLeaseName));
  return lease && lease->token != token;
}

bool is_locked(const std::string& directory) {
  const Descriptor file(::open((directory + "/.lock").c_str(), O_RDWR | O_CLOEXEC));
  return file && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

RunLock::RunLock(const std::string& directory, const LockOptions& options) : directory_(directory) {
  make_directories(directory);
  lease_ = {this_host(), static_cast<long>(::getpid()), options.job.empty() ? job_name() : options.job, random_token(),
            now()};
  const bool have_flock = acquire_flock();
  refuse_or_take_over(have_flock, options.stale_after_seconds);
  write_lease();
  if (options.heartbeat_seconds > 0) heart_ = std::thread([this, every = options.heartbeat_seconds] { beat(every); });
}

RunLock::~RunLock() {
  if (heart_.joinable()) {
    {
      const std::lock_guard guard(mutex_);
      stopping_ = true;
    }
    stop_signal_.notify_all();
    heart_.join();
  }
  // Give the lease back only if it is still ours. One that cannot be read grows stale.
  try {
    if (lease_has_token(directory_, lease_.token)) ::unlink((directory_ + kLeaseName).c_str());
  } catch (const Error& e) {
    log_warning(std::string("warning: ") + e.what());
  }
}

// kill(pid, 0) succeeds for a zombie, too, until its parent has collected it (seconds, for some inits). A zombie holds
// no lock.
static bool process_runs(int64_t pid) {
  if (::kill(static_cast<pid_t>(pid), 0) != 0 && errno != EPERM) return false;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(") ");  // the name may hold anything
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return true;
  return text[name_end + 2] != 'Z' && text[name_end + 2] != 'X';
}

bool RunLock::acquire_flock() {
  const std::string path = directory_ + "/.lock";
  for (;;) {
    lock_file_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!lock_file_) throw_busy(path + ": cannot open for writing: " + std::strerror(errno));
    if (::flock(lock_file_.get(), LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      if (reason == EINTR) continue;
      if (reason == EWOULDBLOCK) refuse_busy(directory_, read_lease(directory_));
      log_warning("warning: " + path + ": this file system has no flock (" + std::strerror(reason) +
                  "); the lease's age alone keeps two jobs apart");
      return false;
    }
    // Somebody may have removed the file between open and flock: then this lock protects nothing, try again.
    struct stat held {
    }, named{};
    if (::fstat(lock_file_.get(), &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
        held.st_dev == named.st_dev) {
      return true;
    }
  }
}

void RunLock::refuse_or_take_over(bool have_flock, double stale_after_seconds) {
  const auto holder = read_lease(directory_);
  if (!holder) return;
  const bool same_host = holder->host == lease_.host;
  const auto gone = [&] { return same_host && !process_runs(holder->pid); };
  const auto take_over = [&] {
    log_info(directory_ + ": taking over from " + holder->describe() + ", whose process is gone");
  };
  if (gone()) return take_over();
  // The kernel granted the lock, yet the lease was not given back: another node (flock may be node-local there), a
  // reused pid, or somebody removed .lock. Only a lease that is still renewed proves a living holder.
  log_info(directory_ + ": lease of " + holder->describe() + " was not given back; watching it" +
           (have_flock ? "" : " (no flock here)"));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(stale_after_seconds);
  while (std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(0.2, stale_after_seconds / 4)));
    const auto again = read_lease(directory_);
    if (!again) return;  // given back meanwhile
    if (gone()) return take_over();
    if (again->token != holder->token || again->heartbeat != holder->heartbeat) refuse_busy(directory_, again);
  }
  log_warning("warning: " + directory_ + ": no heartbeat of " + holder->describe() + " for " +
              std::to_string(static_cast<int>(stale_after_seconds)) + " s; taking over");
}

void RunLock::write_lease() {
  write_file_atomic(directory_ + kLeaseName, lease_text(lease_));
  lease_file_ = Descriptor(::open((directory_ + kLeaseName).c_str(), O_WRONLY | O_CLOEXEC));
  if (!lease_file_) throw_busy(directory_ + kLeaseName + ": cannot open for writing: " + std::strerror(errno));
  // Without flock two starters may both have come this far: the last to write wins, the other sees a foreign token
  // here.
  check();
}

void RunLock::check() const {
  const auto lease = read_lease(directory_);
  if (lease && lease->token == lease_.token) return;
  throw_busy(directory_ + ": this job no longer holds the directory" +
             (lease ? ", it was taken over by " + lease->describe() : ", its lease is gone") +
             "; nothing was committed");
}

void RunLock::beat(double every_seconds) {
  std::unique_lock guard(mutex_);
  while (!stop_signal_.wait_for(guard, std::chrono::duration<double>(every_seconds), [&] { return stopping_; })) {
    lease_.heartbeat = now();
    const std::string text = lease_text(lease_);
    // A full disk does not stop training: the bytes exist already, and a missed beat is made up by the next. Flushed,
    // for a network file system may keep what is written to itself until a file is closed: other nodes would see no
    // beat.
    if (::pwrite(lease_file_.get(), text.data(), text.size(), 0) < 0 || ::fdatasync(lease_file_.get()) != 0)
      log_debug("lease heartbeat not written");
  }
}

}  // namespace thinwire
