// The watchdog's thread: sleeps, compares signs of life, writes reports, and at the limit ends the job.
#include "parallel/wire/watchdog.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/log.h"
#include "engine/base/core/text.h"
#include "parallel/wire/thread_stacks.h"

namespace thinwire {
namespace {

using Time = WatchClock::Time;
constexpr double kStuckSeconds = 0.3;
constexpr double kFileSeconds = 0.25;  // how long a file may keep the watchdog; a disk that is only slow takes less
constexpr double kLastFileSeconds = 5.0;
constexpr double kKeeperSeconds = 10.0;  // that this thread may be late
constexpr double kEndSeconds = 2.0;      // from when it means to end to when the keeper ends the process
constexpr int kWaves = 11;               // of questions in half of the time to answer: 2^11 ranks of a host or more

// When a file was written; 0 if it is not there.
int64_t stamp_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return 0;
  return static_cast<int64_t>(info.st_mtim.tv_sec) * 1000000000 + info.st_mtim.tv_nsec;
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

// Past the log, whose lock a stuck thread may hold, and on a lane of its own: stderr may be a file, too.
void print_message(const std::string& message) {
  FileLane("tw-words").within(kFileSeconds, [text = "thinwire: " + message] {
    std::string_view left = text;
    while (!left.empty()) {
      const ssize_t n = ::write(STDERR_FILENO, left.data(), left.size());
      if (n <= 0) break;
      left.remove_prefix(static_cast<size_t>(n));
    }
  });
}

std::string json_text(const Verdict& verdict, int reporter, double silence_s) {
  std::string list;
  for (int rank : verdict.culprits) list += (list.empty() ? "" : ",") + std::to_string(rank);
  return "{\"code\":71,\"culprits\":[" + list + printed("],\"reporter\":%d,\"silence_s\":%.3f}\n", reporter, silence_s);
}

}  // namespace

Watchdog::Watchdog(Transport& transport, const FlightRecorder& recorder, WatchdogOptions options)
    : transport_(&transport),
      recorder_(&recorder),
      options_(std::move(options)),
      clock_(options_.clock != nullptr ? options_.clock : &system_clock_),
      host_(this_host()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TW_CHECK(options_.seconds > 0.0);
  if (!wake_) throw_io("the watchdog gets no descriptor from the system");
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
      try_write(own_file_, to_text(own_report(), *recorder_));
    } catch (const Error& e) {
      log_warning(std::string("watchdog: reports go to stderr alone: ") + e.what());
      folder_.clear();
    }
  }
  prepare_thread_stacks();
  const SignalsBlocked blocked;
  thread_ = std::thread([this] {
    try {
      run();
    } catch (const Error&) {
      // Where ranks are threads, abort() leaves with what every other thread of the world gets as well.
    }
  });
}

Watchdog::~Watchdog() {
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
  if (options_.keeper != nullptr) options_.keeper->rest();
  if (folder_.empty()) return;
  files_.within(kLastFileSeconds, [folder = folder_, own = own_file_, first = transport_->rank() == 0] {
    ::unlink(own.c_str());
    if (first) ::unlink((folder + "/alarm").c_str());
    ::rmdir(folder.c_str());  // the last rank's succeeds
  });
}

bool Watchdog::sleep(double seconds, bool until_news) {
  const Time start = clock_->now();
  for (double left = seconds;;) {
    if (options_.net != nullptr) {
      options_.net->turn(
          std::max(left, 0.0), wake_.get(), [this] { return to_text(own_report()); }, *clock_);
    } else {
      pollfd wish{wake_.get(), POLLIN, 0};
      clock_->poll({&wish, 1}, left);
    }
    pollfd stop{wake_.get(), POLLIN, 0};
    if (::poll(&stop, 1, 0) > 0) return false;
    left = seconds - since(start);
    if (left <= 0.0 || until_news) return true;
  }
}

void Watchdog::look_at_polls() {
  const uint64_t polls = recorder_->polls();
  if (polls != polls_) polls_ = polls, polled_ = clock_->now();
}

WaitReport Watchdog::own_report() const {
  WaitReport report = make_report(transport_->rank(), *recorder_, silence_s_);
  report.host = host_;
  report.pid = ::getpid();
  // A waiting thread polls every few milliseconds.
  report.stuck = report.state == WaitReport::State::kWaiting && polls_ > 0 && since(polled_) > kStuckSeconds;
  return report;
}

bool Watchdog::with_files(double seconds, std::function<void()> task) {
  return clock_->within(files_, files_.idle() ? seconds : 0.0, std::move(task));
}

void Watchdog::write_report(const std::string& answers) {
  WaitReport report = own_report();
  report.answers = answers;
  with_files(kFileSeconds, [path = own_file_, text = to_text(report, *recorder_)] { try_write(path, text); });
}

// Only at the end: threads are disturbed for it. answers: of the report before, which somebody may not have read yet.
void Watchdog::write_stacks(const std::string& answers) {
  if (folder_.empty()) return;
  WaitReport report = own_report();
  report.answers = answers;
  with_files(kFileSeconds, [path = own_file_, text = to_text(report, *recorder_)] {
    try_write(path,
              text + "\nThreads (scripts/resolve_stacks names the places):\n" + thread_stacks(kFileSeconds / 2.0));
  });
}

// Renamed into place: several ranks may raise the same file at once, the last one stays.
void Watchdog::raise(const char* file) {
  const std::string path = folder_ + "/" + file, mine = path + "." + std::to_string(transport_->rank());
  const std::string id = std::to_string(std::chrono::system_clock::now().time_since_epoch().count()) + "." +
                         std::to_string(transport_->rank());
  with_files(kFileSeconds, [=] {
    if (try_write(mine, id)) ::rename(mine.c_str(), path.c_str());
  });
}

// Nothing where the files hang.
std::optional<Watchdog::Stamps> Watchdog::look_at_files() {
  const auto seen = std::make_shared<Stamps>();
  const bool over = with_files(kFileSeconds, [seen, folder = folder_] {
    *seen = {stamp_of(folder + "/alarm"), stamp_of(folder + "/verdict")};
  });
  return over ? std::optional(*seen) : std::nullopt;
}

void Watchdog::run() {
  pthread_setname_np(pthread_self(), "tw-watchdog");
  const double limit = options_.seconds;
  // Left over from an earlier run unless they change.
  std::optional<Stamps> old;
  uint64_t signs = recorder_->signs_of_life();
  Time quiet = clock_->now(), alarmed = quiet - std::chrono::hours(24), looked = alarmed;
  bool blocked = false;
  int written = 0;  // quarters of the limit after which this silence was reported
  for (;;) {
    // Answers are due within answer_seconds: be awake more often while anybody suspects something.
    double nap = std::min(limit / 16.0, 5.0);
    if (since(alarmed) < limit) nap = std::min(nap, options_.answer_seconds / 4.0);
    const Time before = clock_->now();
    if (options_.keeper != nullptr)
      options_.keeper->expect(limit + kKeeperSeconds, "the watchdog does not get on", options_.note);
    if (!old && !folder_.empty()) old = look_at_files();
    if (!sleep(nap, true)) return;
    const double slept = since(before);
    // This process was stopped, or the machine was: nobody's fault, and not silence.
    if (slept > 4.0 * nap + 1.0)
      quiet += std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(slept - nap));
    look_at_polls();
    const uint64_t now_signs = recorder_->signs_of_life();
    const bool was_blocked =
        std::exchange(blocked, recorder_->waiting_threads() > 0 || recorder_->open_operations() > 0);
    // A rank that begins to wait shows life, too: it may have begun between the two reads.
    if (now_signs != signs || (blocked && !was_blocked)) signs = now_signs, quiet = clock_->now(), written = 0;
    silence_s_ = since(quiet);
    const int quarter = static_cast<int>(std::min(4.0, 4.0 * silence_s_ / limit));
    if (asked()) return end_job();
    if (folder_.empty()) {
      if (blocked && quarter >= 4) return end_job();
      continue;
    }
    // Every rank asks one server of metadata: no more often than it takes to see an alarm long before the verdict.
    Stamps seen = old.value_or(Stamps());
    if (old && (since(looked) > limit / 20.0 || since(alarmed) < limit))
      looked = clock_->now(), seen = look_at_files().value_or(*old);
    if (old && seen.verdict != 0 && seen.verdict != old->verdict) return end_job();
    if (blocked && quarter >= 4) {
      raise("verdict");
      return end_job();
    }
    if (blocked && quarter >= 2 && quarter > written) {
      written = quarter;
      write_report("");
      raise("alarm");
    }
    if (old && seen.alarm != old->alarm) old->alarm = seen.alarm, alarmed = clock_->now(), write_report("");
    if (!blocked && quarter >= 4 && written < 4) written = 4, write_report("");
  }
}

// What the ranks have answered so far.
struct Watchdog::Answers {
  std::vector<WaitReport> reports;
  std::string verdict;  // the file's content: what answers in files refer to
  bool speaks = true;   // this rank, as far as it knows
  bool complete() const {
    return std::all_of(reports.begin(), reports.end(), [](auto& r) { return r.state != WaitReport::State::kAbsent; });
  }
  void take(int from, WaitReport report, int me) {
    WaitReport& known = reports[static_cast<size_t>(from)];
    if (report.rank != from || report.state == WaitReport::State::kAbsent) return;
    known = std::move(report);
    speaks = speaks && from >= me;
  }
};

// Most ranks learn from rank 0 that they have nothing to say, and ask nobody else: it asks all at once, the others ask
// those below them in growing waves, and all where none of these has answered after half of the time.
void Watchdog::ask_on(double elapsed, bool speaks) {
  const int me = transport_->rank(), size = transport_->size();
  const double part = elapsed / options_.answer_seconds;
  const bool all = me == 0 || (speaks && part > 0.5);
  const int below = 1 << std::min(24, static_cast<int>(part * 2.0 * kWaves));
  for (int rank = 0; rank < (all ? size : std::min(me, below)); ++rank)
    if (rank != me) options_.net->ask(rank);
}

void Watchdog::hear(Answers& answers) {
  const int me = transport_->rank();
  if (options_.net->lowest_asker() < me) answers.speaks = false;
  for (int rank = 0; rank < transport_->size(); ++rank)
    if (answers.reports[static_cast<size_t>(rank)].state == WaitReport::State::kAbsent &&
        !options_.net->answer(rank).empty())
      answers.take(rank, parse_report(options_.net->answer(rank)), me);
}

void Watchdog::read_files(Answers& answers) {
  const int me = transport_->rank(), size = transport_->size();
  struct Found {
    std::string verdict;
    std::vector<std::pair<int, std::string>> reports;
  };
  const auto found = std::make_shared<Found>();
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank)
    if (answers.reports[static_cast<size_t>(rank)].state == WaitReport::State::kAbsent) missing.push_back(rank);
  if (!with_files(options_.answer_seconds / 2.0, [found, missing, folder = folder_, me, known = answers.verdict] {
        found->verdict = read_file_now(folder + "/verdict");
        // What is new has not been answered yet: nobody needs to open the file of every rank.
        if (!found->verdict.empty() && found->verdict != known) return;
        // Ascending: one answer from below is enough.
        for (size_t i = 0; i < missing.size() && (found->reports.empty() || found->reports.back().first > me); ++i)
          if (WaitReport r = parse_report(read_file_now(report_path(folder, missing[i]))); r.answers == found->verdict)
            found->reports.emplace_back(missing[i], to_text(r));
      }))
    return;
  if (!found->verdict.empty() && found->verdict != answers.verdict) {
    answers.verdict = found->verdict;
    write_report(answers.verdict);
    return;  // what was read may answer an earlier one, as may what was heard: that is no worse
  }
  for (const auto& [rank, text] : found->reports) answers.take(rank, parse_report(text), me);
}

void Watchdog::end_job() {
  const int size = transport_->size(), me = transport_->rank();
  const Time start = clock_->now();
  const double silence_before = silence_s_;
  Answers answers;
  answers.reports.resize(static_cast<size_t>(size));
  while (!answers.complete() && since(start) < options_.answer_seconds) {
    silence_s_ = silence_before + since(start);
    look_at_polls();
    answers.take(me, own_report(), me);
    if (options_.net != nullptr) ask_on(since(start), answers.speaks), hear(answers);
    // The first look makes this rank answer those who can but read.
    if (!folder_.empty() &&
        (options_.net == nullptr || answers.verdict.empty() || since(start) > options_.answer_seconds / 2.0))
      read_files(answers);
    if (!answers.speaks || !answers.complete())
      if (!sleep(std::min(0.05, options_.answer_seconds / 8.0), true)) return;
  }
  const bool heard = std::any_of(answers.reports.begin(), answers.reports.end(),
                                 [me](auto& r) { return r.rank != me && r.state != WaitReport::State::kAbsent; });
  if (!answers.speaks) {
    if (options_.keeper != nullptr)
      options_.keeper->end_within(2.0 * options_.grace_seconds + kEndSeconds, "", Keeper::Note::kNone);
    write_stacks(answers.verdict);
    if (sleep(2.0 * options_.grace_seconds)) options_.end(static_cast<int>(ExitCode::kHungPeer));
    return;
  }
  // Where nobody could be asked, those who are silent may be well.
  if (!heard && answers.verdict.empty() && (options_.net == nullptr || !options_.net->reached()))
    return end_job_alone();
  for (int r = 0; r < size; ++r) {
    WaitReport& report = answers.reports[static_cast<size_t>(r)];
    report.rank = r;
    if (report.host.empty()) report.host = options_.hosts[static_cast<size_t>(r)];
  }
  double silence = 0.0;
  for (const WaitReport& report : answers.reports)
    if (report.state == WaitReport::State::kWaiting) silence = std::max(silence, report.silent_s);
  const Verdict verdict = judge(answers.reports);
  finish(verdict_text(verdict, answers.reports, std::max(silence, options_.seconds), options_.directory),
         json_text(verdict, me, silence), answers.verdict);
}

// Only this rank's view: the ranks it waits for are all it can name.
void Watchdog::end_job_alone() {
  finish("watchdog: nothing moved on this rank for too long; ending all ranks with code 71.\n  " +
             wait_text(own_report()) + "\n  Nobody else could be asked: nothing more can be said.\n",
         "", "");
}

void Watchdog::finish(const std::string& message, const std::string& json, const std::string& answers) {
  const Time start = clock_->now();
  options_.print(message);
  if (options_.keeper != nullptr)
    options_.keeper->end_within(options_.grace_seconds + kEndSeconds, message, options_.note);
  with_files(options_.grace_seconds, [=, on_verdict = options_.keeper == nullptr ? options_.on_verdict : nullptr,
                                      path = options_.directory.empty() ? "" : options_.directory + "/watchdog.json"] {
    if (!json.empty() && !path.empty()) try_write(path, json);
    if (on_verdict) on_verdict(message);
    log_write_file(LogLevel::kError, message);
  });
  write_stacks(answers);
  if (sleep(std::max(0.0, options_.grace_seconds - since(start)))) options_.end(static_cast<int>(ExitCode::kHungPeer));
}

}  // namespace thinwire
