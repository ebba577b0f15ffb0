// How bytes travel between ranks: the few calls that an MPI library, or threads of one process, must offer.
#pragma once

#include <time.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace thinwire {

// What poll() reports: the posted transfer that carried `token` is over.
struct Completion {
  uint32_t token = 0;
  size_t bytes = 0;  // received (sent transfers: as posted)
};

// One rank's end of the wire. Not thread-safe: the caller (Progress) holds the progress lock, but where it says
// otherwise. Messages between two ranks with the same tag arrive in the order they were posted; messages with different
// tags do not wait for each other.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Starts a transfer; the memory belongs to it until its token is reported. Returns true when it is over already (its
  // token is then not reported). A receive posts the largest size it can take; receiving more is an Error(kInternal).
  // tag: 0 .. kTags - 1.
  virtual bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) = 0;
  virtual bool post_receive(void* data, size_t bytes, int peer, int tag, uint32_t token) = 0;
  // Moves things on, never blocks; reports at most done.size() transfers that are over.
  virtual size_t poll(std::span<Completion> done) = 0;
  // Gives a posted transfer up, in an error: true if its memory will not be touched any more and its token not be
  // reported; false if both may still happen (MPI: the job is about to end).
  virtual bool withdraw(uint32_t token) noexcept = 0;

  // How a thread sleeps until there is something to poll for, without the progress lock:
  //   heard = listen();  a last poll (poll() under the progress lock); sleep(heard, limit) if it found nothing;
  //   stop_listening() in any case.
  // What a peer does between that poll and the sleep ends the sleep at once. Where all_wake() is false (asked under the
  // lock), some of what is open may end without a sound: a sleep is then no longer than one can wait. A limit is kept
  // in any case. wake() wakes this rank's own sleepers.
  virtual uint32_t listen() { return 0; }
  virtual void sleep(uint32_t, std::chrono::microseconds limit) {
    const timespec request{limit.count() / 1000000, (limit.count() % 1000000) * 1000};
    ::nanosleep(&request, nullptr);  // an early end by a signal only means an early poll
  }
  virtual void stop_listening() {}
  virtual void wake() {}
  virtual bool all_wake() const { return false; }

  // Ends all ranks with this code, at once; may be called from any thread without the progress lock. Does not return:
  // threads of one process leave with Error(code), in the caller and in every poll; processes end.
  [[noreturn]] virtual void abort(int code) = 0;
};

// What the MPI standard grants: tags from 0 to 32767 (sequence_window.h says how they are used).
inline constexpr int kTagBits = 15;
inline constexpr int kTags = 1 << kTagBits;

// Rank `rank` of a world in which nobody speaks: every message is refused.
std::unique_ptr<Transport> make_silent_transport(int rank, int size);

// What the launcher started. Built with MPI and started by mpirun / srun: MPI (initialised here, finalised by the
// destructor, THREAD_SERIALIZED). Otherwise one rank alone, which needs no MPI at all.
// Throws Error(kBadConfig) when several ranks were started but this build has no MPI.
struct World {
  std::unique_ptr<Transport> transport;
  std::vector<std::string> hosts;  // per rank, for messages: two machines may bear one name
  std::vector<int> nodes;          // per rank: its machine, numbered by their first ranks
  int local_rank = 0, local_size = 1;
  std::string notice;  // what the user should know of this node's start, on its first rank; empty: nothing
};
class Keeper;
World open_world(Keeper* keeper = nullptr);  // which is told how far that is, and outlives the world

}  // namespace thinwire
