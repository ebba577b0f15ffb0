// Looks at a run's files, and writes the page anew when one of them has changed.
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

// SIGINT and SIGTERM are waited for instead of handled, so that no page is cut off.
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
  // Whether one comes within so many seconds.
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

// What differs as soon as the run has written something, and when it did that last by the files' own clock.
struct Look {
  std::string print;
  std::time_t last = 0;
};

Look look_at(const std::string& dir) {
  Look look;
  for (const std::string& path : {metrics_path(dir), status_path(dir), resolved_config_path(dir)}) {
    struct stat file {};
    if (::stat(path.c_str(), &file) != 0) continue;
    look.last = std::max(look.last, file.st_mtim.tv_sec);
    look.print += std::to_string(file.st_ino) + " " + std::to_string(file.st_size) + " " +
                  std::to_string(file.st_mtim.tv_sec) + "." + std::to_string(file.st_mtim.tv_nsec) + "\n";
  }
  return look;
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
  const std::string now_and_then = "loads itself again every " + in_seconds(options.every_s);
  const std::string& dir = options.run_dir;
  say("following " + dir + ": " + std::filesystem::absolute(options.output).lexically_normal().string() + " " +
      now_and_then + "; ends with the run, or after " + in_seconds(options.quiet_s) + " without news");
  std::string seen = "nothing";  // what the last look saw
  std::time_t news = std::time(nullptr);
  Clock::time_point changed = Clock::now();
  double took = 0;
  bool stopped = false;
  for (;;) {
    std::error_code ignored;
    const bool there = std::filesystem::exists(dir, ignored);
    if (!there && stopped) return ExitCode::kPreempted;
    const Look look = look_at(dir);
    const bool first = seen == "nothing";
    bool quiet = seconds_since(changed) >= options.quiet_s;
    if (first || look.print != seen) {
      changed = Clock::now();
      if (look.last != 0) news = look.last;
      // A run that died long ago needs no waiting for.
      quiet = first && static_cast<double>(std::time(nullptr) - news) >= options.quiet_s;
    }
    if (!there && quiet)
      throw_bad_data(dir + ": no such run directory came within " + in_seconds(options.quiet_s) +
                     "; give the run's key run_dir, or a longer --quiet");
    if (!there && first) say("waiting for " + dir + ", which is not there yet");
    if (there && (first || look.print != seen || quiet || stopped)) {
      const Clock::time_point start = Clock::now();
      RunData run = load_run(dir);
      const bool ended = run.status && run.status->state != "running";
      const std::string stamp = utc_text(std::time(nullptr));
      Following following;
      if (ended) {
        following.words = how_it_ended(*run.status);
      } else if (quiet) {
        following.words =
            "no news since " + utc_text(news) + " (" + in_seconds(options.quiet_s) + "): the run was killed, or hangs";
        // The last word of a run that was killed is that it is running.
        if (run.status) run.status->state = "no news since " + utc_text(news);
      } else if (stopped) {
        following.words = "not followed any more since " + stamp;
      } else {
        following = {(run.steps.empty() ? "waiting for the first step; written " : "live: written ") + stamp + ", " +
                         now_and_then,
                     options.every_s};
      }
      write_file_atomic(options.output, report_page({run}, following), false);
      took = seconds_since(start);
      if (ended || quiet || stopped) {
        say(following.words);
        return ended || quiet ? ExitCode::kFinished : ExitCode::kPreempted;
      }
    }
    seen = look.print;
    // A page of many steps takes long to write: at most a tenth of the time goes into that.
    stopped = signals.within(std::max(options.every_s, 9 * took));
  }
}

}  // namespace thinwire
