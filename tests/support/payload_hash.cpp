// A library to preload into `train`: hashes what each rank hands to MPI, without touching the program.
//
// scripts/compare_commits compiles it with mpicxx. Per destination rank it keeps, over messages of at least 1 KiB:
// their number, their bytes, the sum of their hashes (a multiset: the order, which is a matter of timing, does not
// count), and a histogram of byte values (which does not change either when the same bytes travel in other pieces).
// Smaller messages are votes and are counted alone. MPI_Finalize writes $THINWIRE_PAYLOADS/rank<R>, one line per
// destination: "destination messages bytes multiset histogram small".
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {

constexpr std::uint64_t kPrime = 0x9E3779B97F4A7C15u;

struct Sent {
  std::uint64_t messages = 0, bytes = 0, multiset = 0, small = 0;
  std::uint64_t histogram[256] = {};
};

std::uint64_t mixed(std::uint64_t h) {
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
  return h ^ (h >> 31);
}

struct Recorder {
  std::mutex mutex;
  std::map<int, Sent> sent;  // by destination, a rank of the world

  void add(const void* data, int count, MPI_Datatype type, int destination) {
    int width = 0;
    MPI_Type_size(type, &width);
    const auto* at = static_cast<const unsigned char*>(data);
    const std::size_t bytes = static_cast<std::size_t>(count) * static_cast<std::size_t>(width);
    const std::lock_guard lock(mutex);
    Sent& s = sent[destination];
    if (bytes < 1024) {
      ++s.small;
      return;
    }
    std::uint64_t h = kPrime ^ bytes;
    std::size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, at + i, 8);
      h = (h ^ mixed(word + i)) * kPrime;
    }
    for (; i < bytes; ++i) h = (h ^ (at[i] + 256u)) * kPrime;
    for (i = 0; i < bytes; ++i) ++s.histogram[at[i]];
    ++s.messages;
    s.bytes += bytes;
    s.multiset += mixed(h);
  }

  void write() {
    const char* folder = std::getenv("THINWIRE_PAYLOADS");
    if (folder == nullptr) return;
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    std::FILE* f = std::fopen((std::string(folder) + "/rank" + std::to_string(rank)).c_str(), "w");
    if (f == nullptr) return;
    const std::lock_guard lock(mutex);
    for (const auto& [destination, s] : sent) {
      std::uint64_t h = 0;
      for (const std::uint64_t n : s.histogram) h = mixed(h + n + kPrime);
      std::fprintf(f, "%d %llu %llu %016llx %016llx %llu\n", destination, static_cast<unsigned long long>(s.messages),
                   static_cast<unsigned long long>(s.bytes), static_cast<unsigned long long>(s.multiset),
                   static_cast<unsigned long long>(h), static_cast<unsigned long long>(s.small));
    }
    std::fclose(f);
  }
};

Recorder& recorder() {
  static Recorder r;
  return r;
}

}  // namespace

// The communicators of Thinwire are copies of the world: a rank in them is a rank of the world.
#define TW_HASHED_SEND(name)                                                                         \
  int MPI_##name(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm) { \
    recorder().add(data, count, type, peer);                                                         \
    return PMPI_##name(data, count, type, peer, tag, comm);                                          \
  }
#define TW_HASHED_ISEND(name)                                                                      \
  int MPI_##name(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, \
                 MPI_Request* request) {                                                           \
    recorder().add(data, count, type, peer);                                                       \
    return PMPI_##name(data, count, type, peer, tag, comm, request);                               \
  }

extern "C" {
TW_HASHED_SEND(Send)
TW_HASHED_SEND(Ssend)
TW_HASHED_SEND(Rsend)
TW_HASHED_ISEND(Isend)
TW_HASHED_ISEND(Issend)
TW_HASHED_ISEND(Irsend)

int MPI_Finalize() {
  recorder().write();
  return PMPI_Finalize();
}
}
