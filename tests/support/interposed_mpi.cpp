// Preloaded in front of the MPI library: an MPI that grants the tags of the standard, 0 .. 32767, and none beyond; and
// one that reports an error at a chosen call of a chosen rank.
//
// THINWIRE_MPI_FAULT=rank:call:posts, call one of dup, allgather, barrier (that call itself), post (the posts-th
// Isend or Irecv), poll (the first Test, Testsome or Iprobe behind so many posts): it does nothing and returns
// MPI_ERR_OTHER, once. THINWIRE_MPI_STOP=rank:moment: there this rank stops itself (SIGSTOP), moment one of init
// (before MPI_Init), first (before its first Isend or Irecv), last (before it tells the others that it has come to the
// last barrier: the tag of such words on a communicator of its own). THINWIRE_MPI_COUNT=PATH: a rank that ends writes
// its posts to PATH.<rank>, and behind it how many of them were sends of something.
//
// THINWIRE_MPI_FLIP=rank:sends:bit: of the sends-th message of that rank (from 0, those without bytes left out) one bit
// has turned over when it arrives; bit counts modulo its length.
//
// THINWIRE_MPI_EARLY=PATH: a file that all ranks map, and that is zero or absent at the start. For every ordered pair
// it holds three numbers (int64): bytes sent, bytes asked for, and by how many the first was ever ahead of the second:
// what the receiver's MPI may have had to keep. At most 16 ranks; number (from * 16 + to) * 3.
#include <fcntl.h>
#include <mpi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

int largest_tag = 32767;

void check(const char* call, int tag) {
  if (tag <= largest_tag) return;
  std::fprintf(stderr, "%s with tag %d, and this MPI grants %d\n", call, tag, largest_tag);
  std::abort();
}

int rank_of_environment() {
  for (const char* name : {"PMI_RANK", "OMPI_COMM_WORLD_RANK"})
    if (const char* value = std::getenv(name); value != nullptr) return std::atoi(value);
  return 0;
}

struct Fault {
  char call[16] = {};
  long posts = 0;
  Fault() {
    int rank = -1;
    const char* text = std::getenv("THINWIRE_MPI_FAULT");
    if (text == nullptr || std::sscanf(text, "%d:%15[a-z]:%ld", &rank, call, &posts) != 3 ||
        rank != rank_of_environment())
      call[0] = '\0';
  }
  bool strikes(const char* kind) {
    if (std::strcmp(call, kind) != 0) return false;
    call[0] = '\0';
    return true;
  }
};
Fault fault;
long posted = 0, sent = 0;

struct Flip {
  long sends = -1;
  unsigned long bit = 0;
  Flip() {
    int rank = -1;
    const char* text = std::getenv("THINWIRE_MPI_FLIP");
    if (text == nullptr || std::sscanf(text, "%d:%ld:%lu", &rank, &sends, &bit) != 3 || rank != rank_of_environment())
      sends = -1;
  }
  // What travels instead of the message, and is never freed: nobody says when MPI has done with it.
  const void* of(const void* data, int count) {
    if (count == 0 || sent++ != sends) return data;
    auto* bytes = static_cast<char*>(std::malloc(static_cast<size_t>(count)));
    std::memcpy(bytes, data, static_cast<size_t>(count));
    const unsigned long at = bit % (8ul * static_cast<unsigned long>(count));
    bytes[at / 8] = static_cast<char>(bytes[at / 8] ^ (1 << at % 8));
    return bytes;
  }
};
Flip flip;

struct Early {
  static constexpr int kMostRanks = 16;
  struct Pair {
    std::atomic<int64_t> sent, asked, most;
  };
  Pair* pairs = nullptr;
  Early() {
    const char* path = std::getenv("THINWIRE_MPI_EARLY");
    const int file = path == nullptr ? -1 : ::open(path, O_RDWR | O_CREAT, 0600);
    constexpr size_t kBytes = sizeof(Pair) * kMostRanks * kMostRanks;
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(kBytes)) != 0) return;
    void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) pairs = static_cast<Pair*>(memory);
    ::close(file);
  }
  Pair& pair(int from, int to) const { return pairs[from * kMostRanks + to]; }
  void send(int to, int bytes) const {
    if (pairs == nullptr) return;
    Pair& p = pair(rank_of_environment(), to);
    const int64_t ahead = p.sent.fetch_add(bytes) + bytes - p.asked.load();
    for (int64_t most = p.most.load(); most < ahead && !p.most.compare_exchange_weak(most, ahead);) continue;
  }
  void ask(int from, int bytes) const {
    if (pairs != nullptr) pair(from, rank_of_environment()).asked += bytes;
  }
};
Early early;

constexpr int kRollCallTag = 32765;

void stop_at(const char* moment) {
  const char* text = std::getenv("THINWIRE_MPI_STOP");
  int rank = -1;
  char wanted[16] = {};
  if (text == nullptr || std::sscanf(text, "%d:%15[a-z]", &rank, wanted) != 2 || rank != rank_of_environment() ||
      std::strcmp(wanted, moment) != 0)
    return;
  std::raise(SIGSTOP);
}

void stop_at_post(int tag, MPI_Comm comm) {
  if (posted == 0) stop_at("first");
  if (tag == kRollCallTag && comm != MPI_COMM_WORLD) stop_at("last");
}

bool strikes_post() {
  ++posted;
  return posted >= fault.posts && fault.strikes("post");
}
bool strikes_poll() {
  return posted >= fault.posts && fault.strikes("poll");
}

}  // namespace

extern "C" {

int MPI_Init_thread(int* count, char*** arguments, int required, int* provided) {
  stop_at("init");
  return PMPI_Init_thread(count, arguments, required, provided);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* copy) {
  return fault.strikes("dup") ? MPI_ERR_OTHER : PMPI_Comm_dup(comm, copy);
}

int MPI_Allgather(const void* mine, int count, MPI_Datatype type, void* all, int counts, MPI_Datatype types,
                  MPI_Comm comm) {
  return fault.strikes("allgather") ? MPI_ERR_OTHER : PMPI_Allgather(mine, count, type, all, counts, types, comm);
}

int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
  return fault.strikes("barrier") ? MPI_ERR_OTHER : PMPI_Ibarrier(comm, request);
}

int MPI_Comm_get_attr(MPI_Comm comm, int key, void* value, int* known) {
  const int code = PMPI_Comm_get_attr(comm, key, value, known);
  if (code == MPI_SUCCESS && key == MPI_TAG_UB && *known != 0) *static_cast<int**>(value) = &largest_tag;
  return code;
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  check("MPI_Isend", tag);
  stop_at_post(tag, comm);
  early.send(peer, count);
  return strikes_post() ? MPI_ERR_OTHER : PMPI_Isend(flip.of(data, count), count, type, peer, tag, comm, request);
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  check("MPI_Irecv", tag);
  stop_at_post(tag, comm);
  early.ask(peer, count);
  return strikes_post() ? MPI_ERR_OTHER : PMPI_Irecv(data, count, type, peer, tag, comm, request);
}

int MPI_Test(MPI_Request* request, int* over, MPI_Status* status) {
  return strikes_poll() ? MPI_ERR_OTHER : PMPI_Test(request, over, status);
}

int MPI_Testsome(int count, MPI_Request* requests, int* over, int* indices, MPI_Status* statuses) {
  return strikes_poll() ? MPI_ERR_OTHER : PMPI_Testsome(count, requests, over, indices, statuses);
}

int MPI_Iprobe(int peer, int tag, MPI_Comm comm, int* found, MPI_Status* status) {
  return strikes_poll() ? MPI_ERR_OTHER : PMPI_Iprobe(peer, tag, comm, found, status);
}

int MPI_Finalize() {
  if (const char* path = std::getenv("THINWIRE_MPI_COUNT"); path != nullptr) {
    if (std::FILE* file = std::fopen((path + ("." + std::to_string(rank_of_environment()))).c_str(), "w")) {
      std::fprintf(file, "%ld %ld\n", posted, sent);
      std::fclose(file);
    }
  }
  return PMPI_Finalize();
}
}
