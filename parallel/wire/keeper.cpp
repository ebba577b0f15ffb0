// The keeper's loop: two pipes, signals, a child, and a moment at which that child must have spoken.
#include "parallel/wire/keeper.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "engine/base/core/error.h"

namespace thinwire {

struct Keeper::Page {
  struct Words {
    uint32_t length;
    Note note;
    bool said;  // the rank has printed them
    char text[kMostText];
  };
  std::atomic<int64_t> until_ns;  // 0: no limit
  std::atomic<uint32_t> turn;     // words[turn % 2] are the last ones
  Words words[2];
  std::atomic<uint32_t> planned_length;
  char planned[kMostPlanned];
};

namespace {

constexpr int kHung = static_cast<int>(ExitCode::kHungPeer), kNoMemory = static_cast<int>(ExitCode::kIo);
constexpr int64_t kSecond = 1'000'000'000, kMillisecond = 1'000'000;
constexpr int64_t kNotePatience = kSecond;          // for whoever writes the end down
constexpr int64_t kLastWords = 300 * kMillisecond;  // the launcher passes on what ranks print
constexpr int kForwarded[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU};

int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

void sleep_ns(int64_t ns) {
  const timespec request{ns / kSecond, ns % kSecond};
  ::nanosleep(&request, nullptr);
}

bool is_awaited(int file) {
  struct stat info {};
  return ::fstat(file, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
}

// What the rank prints, on its way to whoever reads it.
struct Relay {
  int from = -1, to = -1;
  size_t at = 0, size = 0;
  std::array<char, PIPE_BUF> buffer;

  bool full() const { return at < size; }
  pollfd wish() const {
    if (full()) return {to, POLLOUT, 0};
    return {from, POLLIN, 0};  // -1 is passed over
  }
  void close_from() {
    if (from >= 0) ::close(from);
    from = -1;
  }
  void move() {
    if (!full()) {
      const ssize_t n = ::read(from, buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) return;
      if (n <= 0) return close_from();
      at = 0, size = static_cast<size_t>(n);
      return;
    }
    const ssize_t n = ::write(to, buffer.data() + at, size - at);  // a pipe that can take any takes so much
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n < 0) close_from(), at = size = 0;  // the rank hears of it as it would have
    if (n > 0) at += static_cast<size_t>(n);
  }
};

}  // namespace

class Keeper::Process {
 public:
  Process(const Options& options, Page* page, int bell, pid_t rank, int signals, std::array<Relay, 2>& relays)
      : options_(options), page_(page), bell_(bell), rank_(rank), signals_(signals), relays_(relays) {}

  [[noreturn]] void run() {
    for (;;) {
      const int64_t limit = time_left();
      if (limit == 0) end_rank();
      const int64_t before = now_ns();
      pollfd wishes[4] = {{signals_, POLLIN, 0}, {bell_, POLLIN, 0}, relays_[0].wish(), relays_[1].wish()};
      ::poll(wishes, 4, limit < 0 ? -1 : static_cast<int>(std::min(limit / kMillisecond + 1, int64_t{1} << 30)));
      // Stopped, together with the rank or not: nobody's fault.
      if (const int64_t late = now_ns() - before - limit; limit > 0 && late > kSecond) pardon_ += late;
      for (size_t i = 0; i < 2; ++i)
        if (wishes[i + 2].revents != 0) relays_[i].move();
      if (wishes[0].revents != 0) take_signals();
      uint64_t rings = 0;
      if (wishes[1].revents != 0 && ::read(bell_, &rings, sizeof rings) > 0) note_what_was_said();
    }
  }

 private:
  // Until the rank must have spoken; 0: it must have by now; -1: it need not.
  int64_t time_left() {
    const int64_t until = page_->until_ns.load(std::memory_order_acquire);
    if (until != until_) until_ = until, pardon_ = 0, told_ = false, stopped_at_ = stopped_at_ != 0 ? now_ns() : 0;
    if (until == 0) return -1;
    if (stopped_at_ == 0) return std::max<int64_t>(0, until + pardon_ - now_ns());
    if (told_) return -1;
    if (const int64_t left = until + pardon_ - now_ns(); left > 0) return left;
    told_ = true;
    note("", Note::kNone, sentence("its process " + std::to_string(rank_) + " is stopped, and others may wait for it"));
    return -1;
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (::read(signals_, &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) {
        look_at_rank();
      } else if (signal != SIGPIPE) {
        asked_ = true;
        ::kill(rank_, signal);
      }
    }
  }

  void look_at_rank() {
    int state = 0;
    rusage used{};
    while (::wait4(rank_, &state, WNOHANG | WUNTRACED | WCONTINUED, &used) == rank_) {
      if (WIFSTOPPED(state)) {
        stopped_at_ = now_ns();
      } else if (WIFCONTINUED(state)) {
        if (stopped_at_ != 0) pardon_ += now_ns() - stopped_at_;
        stopped_at_ = 0, told_ = false;
      } else {
        pass_on(-1);
        if (WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL) report_lost_memory(int64_t{used.ru_maxrss} * 1024);
        // The launcher ends the other ranks the same way, and may name any of them.
        if (WIFSIGNALED(state) && !asked_) {
          note("", Note::kNone,
               sentence("its process " + std::to_string(rank_) + " was ended by signal " +
                        std::to_string(WTERMSIG(state)) + " (" + ::strsignal(WTERMSIG(state)) + ")"));
        }
        leave_as(state);
      }
    }
  }

  // What lies in the pipes; limit_ns: for how long at most, but for one round, -1: as long as it takes.
  void pass_on(int64_t limit_ns) {
    const int64_t start = now_ns();
    for (bool more = true; more;) {
      more = false;
      for (Relay& relay : relays_) {
        pollfd wish = relay.wish();
        if (wish.fd < 0) continue;
        const int64_t left = limit_ns < 0 ? -1 : std::max<int64_t>(0, start + limit_ns - now_ns());
        if (::poll(&wish, 1, relay.full() ? static_cast<int>(left < 0 ? -1 : left / kMillisecond) : 0) <= 0) continue;
        relay.move();
        more = true;
      }
      if (limit_ns >= 0 && now_ns() - start >= limit_ns) return;
    }
  }

  // The launcher would say that somebody has killed the rank, and the others, that they cannot reach it.
  void report_lost_memory(int64_t peak) {
    const std::string planned(page_->planned, page_->planned_length.load(std::memory_order_acquire));
    const std::string why = options_.lost_memory ? options_.lost_memory(planned, peak) : "";
    if (why.empty()) return;
    const std::string said = sentence(why);
    note(said.substr(7, said.size() - 8), planned.empty() ? Note::kStarting : Note::kRunning, said, kNoMemory);
    tell_launcher(kNoMemory);
    sleep_ns(kLastWords);
    ::_exit(kNoMemory);
  }

  [[noreturn]] static void leave_as(int state) {
    if (WIFSIGNALED(state)) {
      const rlimit no_second_core{0, 0};
      ::setrlimit(RLIMIT_CORE, &no_second_core);
      ::signal(WTERMSIG(state), SIG_DFL);
      sigset_t all;
      sigfillset(&all);
      ::raise(WTERMSIG(state));
      ::sigprocmask(SIG_UNBLOCK, &all, nullptr);
      ::_exit(128 + WTERMSIG(state));
    }
    ::_exit(WEXITSTATUS(state));
  }

  const Page::Words& words() const { return page_->words[page_->turn.load(std::memory_order_acquire) % 2]; }
  static std::string text_of(const Page::Words& words) {
    return {words.text, std::min<size_t>(words.length, kMostText)};
  }

  void note_what_was_said() {
    const Page::Words& last = words();
    if (!last.said || last.note == Note::kNone || noted_) return;
    noted_ = true;
    note(text_of(last), last.note, "");
  }

  std::string sentence(const std::string& text) const {
    char host[256] = {};
    if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
    return "error: rank " + std::to_string(options_.rank) + " (host " + host + "): " + text + "\n";
  }

  // Everything that may touch a file: in a process of its own, which holds nothing that somebody waits for.
  void note(const std::string& message, Note note, const std::string& printed, int code = kHung) {
    const pid_t writer = ::fork();
    if (writer == 0) {
      ::prctl(PR_SET_PDEATHSIG, 0);
      ::setsid();  // a launcher that ends the group leaves it alone
      if (!printed.empty() && ::write(STDERR_FILENO, printed.data(), printed.size()) < 0) ::_exit(1);
      ::close_range(0, ~0U, 0);
      for (int file = 0; file < 3; ++file) file = std::max(file, ::open("/dev/null", O_RDWR));
      if (note != Note::kNone && options_.on_end) options_.on_end(message, note, code);
      ::_exit(0);
    }
    for (const int64_t start = now_ns(); writer > 0 && now_ns() - start < kNotePatience; sleep_ns(5 * kMillisecond)) {
      if (::waitpid(writer, nullptr, WNOHANG) == writer) return;
      pass_on(0);
    }
  }

  [[noreturn]] void end_rank() {
    const Page::Words& last = words();
    pass_on(kLastWords);
    if (!last.said) {
      const std::string text = text_of(last);
      note(text, last.note, sentence(text + "; ending all ranks with code 71"));
      sleep_ns(kLastWords);
    }
    tell_launcher(kHung);
    ::kill(rank_, SIGKILL);
    sleep_ns(kLastWords);  // those of the other ranks
    ::_exit(kHung);
  }

  // Hydra waits until a rank's connection to it is closed, which one that sleeps in the kernel does not do, and knows
  // the code of a job's end only from who calls it off: in the words of PMI 1, as MPI_Abort would say it.
  static void tell_launcher(int code) {
    const char* connection = std::getenv("PMI_FD");
    if (connection == nullptr || std::getenv("HYDI_CONTROL_FD") == nullptr) return;
    char words[64];
    const int length = std::snprintf(words, sizeof words, "cmd=abort exitcode=%d\n", code);
    ::send(std::atoi(connection), words, static_cast<size_t>(length), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  const Options& options_;
  bool asked_ = false;  // a signal for the rank came from outside
  Page* page_;
  int bell_;
  pid_t rank_;
  int signals_;
  std::array<Relay, 2>& relays_;
  int64_t until_ = 0, pardon_ = 0, stopped_at_ = 0;  // pardon: time that does not count for until_
  bool told_ = false, noted_ = false;
};

std::unique_ptr<Keeper> Keeper::fork_rank(const Options& options) {
  if (const char* wish = std::getenv("THINWIRE_KEEPER"); wish != nullptr && std::string(wish) == "0") return nullptr;
  void* memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  const int bell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  auto keeper = std::unique_ptr<Keeper>(new Keeper(static_cast<Page*>(memory), bell, options.start_seconds));
  if (bell < 0) return nullptr;
  std::array<Relay, 2> relays;
  int ends[2] = {-1, -1};
  for (int i = 0; i < 2; ++i) {
    int pipe[2];
    if (!is_awaited(i + 1) || ::pipe2(pipe, O_CLOEXEC) != 0) continue;
    relays[static_cast<size_t>(i)].from = pipe[0], relays[static_cast<size_t>(i)].to = i + 1;
    ends[i] = pipe[1];
  }
  std::fflush(nullptr);
  sigset_t ours, before;
  sigemptyset(&ours);
  for (const int signal : kForwarded) sigaddset(&ours, signal);
  sigaddset(&ours, SIGCHLD), sigaddset(&ours, SIGPIPE);
  ::sigprocmask(SIG_BLOCK, &ours, &before);
  const pid_t parent = ::getpid(), rank = ::fork();
  if (rank > 0) {
    ::prctl(PR_SET_NAME, "tw-keeper");
    ::mlockall(MCL_CURRENT | MCL_ONFAULT);  // where it may: its own program may lie on a file system that hangs
    for (const int end : ends)
      if (end >= 0) ::close(end);
    Process(options, keeper->page_, bell, rank, ::signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK), relays).run();
  }
  for (int i = 0; i < 2; ++i) {
    if (rank == 0 && ends[i] >= 0) ::dup2(ends[i], i + 1);
    if (ends[i] >= 0) ::close(ends[i]);
    relays[static_cast<size_t>(i)].close_from();
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (rank < 0) return nullptr;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kHung);
  return keeper;
}

Keeper::~Keeper() {
  if (bell_ >= 0) ::close(bell_);
  ::munmap(page_, sizeof(Page));
}

void Keeper::say(int64_t until_ns, std::string_view text, Note note, bool said) {
  const uint32_t turn = page_->turn.load(std::memory_order_relaxed) + 1;
  Page::Words& words = page_->words[turn % 2];
  words.length = static_cast<uint32_t>(text.copy(words.text, kMostText));
  words.note = note, words.said = said;
  page_->turn.store(turn, std::memory_order_release);
  const int64_t before = page_->until_ns.exchange(until_ns, std::memory_order_acq_rel);
  // It wakes up by itself no later than it was told before.
  if (!said && (until_ns == 0 || (before != 0 && before <= until_ns))) return;
  const uint64_t one = 1;
  if (::write(bell_, &one, sizeof one) < 0) return;  // it has been rung before
}

void Keeper::expect(double seconds, std::string_view message, Note note) {
  phases_since_ns_ = 0;
  say(seconds > 0.0 ? now_ns() + static_cast<int64_t>(seconds * 1e9) : 0, message, note, false);
}

void Keeper::phase(std::string_view message, Note note, double later) {
  if (phases_since_ns_ == 0) phases_since_ns_ = now_ns();
  if (start_seconds_ <= 0.0) return;
  char text[kMostText];
  const int length =
      std::snprintf(text, sizeof text, "%.*s after start_timeout_s (%g s)",
                    static_cast<int>(std::min(message.size(), kMostText - 100)), message.data(), start_seconds_);
  say(phases_since_ns_ + static_cast<int64_t>((start_seconds_ + later) * 1e9),
      {text, static_cast<size_t>(std::max(0, length))}, note, false);
}

void Keeper::plans(std::string_view memory) {
  page_->planned_length.store(static_cast<uint32_t>(memory.copy(page_->planned, kMostPlanned)),
                              std::memory_order_release);
}

void Keeper::end_within(double seconds, std::string_view message, Note note) {
  phases_since_ns_ = 0;
  say(now_ns() + static_cast<int64_t>(seconds * 1e9), message, note, true);
}

}  // namespace thinwire
