// The parent process of a rank: it passes on what the rank prints, its signals and its end, and ends it with code 71
// where the rank cannot.
//
// Why a process: a rank has threads that write checkpoints, metrics and logs and that read data. One of them that
// sleeps in a frozen file system cannot be killed; until the system is thawed the whole process stays, holds what it
// prints into, and its exit code reaches nobody. The process that the launcher has started must therefore touch no
// file: it forks the rank before anything else happens, hands on two pipes, and waits. What has to be written at the
// end is written by a process of its own, which nobody waits for longer than a moment.
//
// Rank and keeper share one page: until when the rank wants to have spoken again, and what to say if it does not. The
// rank pays a few stores for that; the keeper wakes up when such a moment has come. Time in which the rank is stopped,
// or the keeper did not run, does not count.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace thinwire {

// The rank's side. Its calls come from one thread at a time; none of them waits, locks or takes memory.
class Keeper {
 public:
  // Who has to write down that a rank ended with 71: nobody; the job that has started; one that never came to start.
  enum class Note : uint8_t { kNone, kRunning, kStarting };
  struct Options {
    int rank = 0;
    double start_seconds = 600.0;  // of phases; 0: for ever
    // Called in a process of its own when the rank ends with such a code: 71, or 74 where its memory was the reason.
    std::function<void(const std::string& message, Note note, int code)> on_end;
    // Asked when a SIGKILL has ended the rank: why, if it was the kernel's for want of memory; else nothing. planned:
    // of plans(); peak: bytes that the rank had in use.
    std::function<std::string(const std::string& planned, int64_t peak)> lost_memory;
  };
  static constexpr size_t kMostText = 8192, kMostPlanned = 1024;

  // Forks: the rank goes on behind this call, the caller's process becomes the keeper and never returns. Output that
  // goes to neither a pipe nor a socket is inherited: nobody waits for the end of a file or a terminal. nullptr where
  // the system grants no process, and with THINWIRE_KEEPER=0 (for debuggers): the rank then has no keeper.
  static std::unique_ptr<Keeper> fork_rank(const Options& options);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // Unless the rank speaks again within so many seconds (0: no limit), the keeper prints the message behind rank and
  // host, and ends it. Of a message at most kMostText bytes are kept.
  void expect(double seconds, std::string_view message, Note note);
  // The start and the end of a job: start_seconds for all phases together that follow each other. The message gets
  // their number. later: what this rank waits in addition, where another one can say more.
  void phase(std::string_view message, Note note, double later = 0.0);
  double start_seconds() const { return start_seconds_; }
  void rest() { expect(0.0, "", Note::kNone); }
  // What the rank needs of the node's memory, in words, once it has started; of them at most kMostPlanned bytes are
  // kept.
  void plans(std::string_view memory);
  // The rank has said why it ends with 71, and does so within so many seconds, or is ended. The note is taken at once.
  void end_within(double seconds, std::string_view message, Note note);

 private:
  struct Page;
  class Process;
  Keeper(Page* page, int bell, double start_seconds) : page_(page), bell_(bell), start_seconds_(start_seconds) {}
  void say(int64_t until_ns, std::string_view text, Note note, bool said);

  Page* page_;
  int bell_;
  double start_seconds_;
  int64_t phases_since_ns_ = 0;  // 0: in none
};

}  // namespace thinwire
