// Polls a run's files, and writes the page again when one of them has changed.
#include "engine/run/trace/report_follow.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include "engine/base/core/file.h"
#include "engine/base/core/text.h"
#include "engine/run/trace/report_html.h"
#include "engine/run/trace/run_files.h"

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

std::string in_seconds(double s) {
  return printed("%.3g s", s);
}

void say(const std::string& words) {
  std::printf("%s\n", words.c_str());
  std::fflush(stdout);
}

// SIGINT and SIGTERM, blocked and waited for, so that neither interrupts the writing of a page.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  ~Signals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  // Waits so many seconds, or until one of the two comes: then true.
  bool within(double seconds) const {
    const Clock::time_point start = Clock::now();
    for (double left = seconds; left > 0; left = seconds - seconds_since(start)) {
      const timespec time{static_cast<std::time_t>(left), static_cast<long>((left - std::floor(left)) * 1e9)};
      if (sigtimedwait(&set_, nullptr, &time) > 0) return true;
    }
    return false;
  }

 private:
  sigset_t set_{}, before_{};
};

// State of the run's files. The fingerprint changes when the run writes one of them.
struct FileState {
  std::string fingerprint;
  std::time_t last_write = 0;  // by the file system's clock; 0: there are no files
};

FileState file_state(const std::string& dir) {
  FileState state;
  for (const std::string& path : {metrics_path(dir), status_path(dir), resolved_config_path(dir)}) {
    struct stat file {};
    if (::stat(path.c_str(), &file) != 0) continue;
    state.last_write = std::max(state.last_write, file.st_mtim.tv_sec);
    state.fingerprint += std::to_string(file.st_ino) + " " + std::to_string(file.st_size) + " " +
                         std::to_string(file.st_mtim.tv_sec) + "." + std::to_string(file.st_mtim.tv_nsec) + "\n";
  }
  return state;
}

std::string how_it_ended(const RunStatus& status) {
  std::string words = "the run has ended: " + status.state;
  if (status.code) words += ", code " + std::to_string(*status.code);
  if (status.code && *status.code != 0 && !status.reason.empty()) words += " (" + status.reason + ")";
  words += ", after step " + std::to_string(status.step);
  if (status.total_steps > 0) words += " of " + std::to_string(status.total_steps);
  return words + (status.requeue ? "; the same command goes on" : "");
}

}  // namespace

ExitCode follow_run(const FollowOptions& options) {
  const Signals signals;
  const std::string reloads = "loads itself again every " + in_seconds(options.every_s);
  const std::string& dir = options.run_dir;
  say("following " + dir + ": " + std::filesystem::absolute(options.output).lexically_normal().string() + " " +
      reloads + "; ends with the run, or after " + in_seconds(options.quiet_s) + " without news");
  std::string seen;  // fingerprint of the last poll
  std::time_t last_write = std::time(nullptr);
  Clock::time_point changed = Clock::now();  // when a poll found a change
  double took = 0;                           // seconds, to write the page
  bool stopped = false;                      // by a signal
  for (bool first = true;; first = false) {
    std::error_code ignored;
    const bool exists = std::filesystem::exists(dir, ignored);
    if (!exists && stopped) return ExitCode::kPreempted;
    const FileState state = file_state(dir);
    const bool news = first || state.fingerprint != seen;
    bool quiet = seconds_since(changed) >= options.quiet_s;
    if (news) {
      changed = Clock::now();
      if (state.last_write != 0) last_write = state.last_write;
      // A run that died long ago is not waited for.
      quiet = first && static_cast<double>(std::time(nullptr) - last_write) >= options.quiet_s;
    }
    if (!exists && quiet)
      throw_bad_data(dir + ": no such run directory came within " + in_seconds(options.quiet_s) +
                     "; give the run's key run_dir, or a longer --quiet");
    if (!exists && first) say("waiting for " + dir + ", which is not there yet");
    if (exists && (news || quiet || stopped)) {
      const Clock::time_point start = Clock::now();
      RunData run = load_run(dir);
      const bool ended = run.status && run.status->state != "running";
      const std::string stamp = utc_text(std::time(nullptr));
      Following following;
      if (ended) {
        following.words = how_it_ended(*run.status);
      } else if (quiet) {
        following.words = "no news since " + utc_text(last_write) + " (" + in_seconds(options.quiet_s) +
                          "): the run was killed, or hangs";
        // The status file of a run that was killed still says that it is running.
        if (run.status) run.status->state = "no news since " + utc_text(last_write);
      } else if (stopped) {
        following.words = "not followed any more since " + stamp;
      } else {
        following = {
            (run.steps.empty() ? "waiting for the first step; written " : "live: written ") + stamp + ", " + reloads,
            options.every_s};
      }
      write_file_atomic(options.output, report_page({run}, following), false);
      took = seconds_since(start);
      if (ended || quiet || stopped) {
        say(following.words);
        return ended || quiet ? ExitCode::kFinished : ExitCode::kPreempted;
      }
    }
    seen = state.fingerprint;
    // A page of many steps takes long to write: at most a tenth of the time goes into writing.
    stopped = signals.within(std::max(options.every_s, 9 * took));
  }
}

}  // namespace thinwire
