// Transfers as MPI_Isend and MPI_Irecv, tested together by MPI_Testsome; the only file that calls MPI.
#include "parallel/wire/transport_mpi.h"

#include <mpi.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "parallel/wire/handshake.h"
#include "parallel/wire/keeper.h"
#include "parallel/wire/launcher.h"
#include "parallel/wire/transport_delayed.h"
#include "parallel/wire/transport_node.h"

#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION < 40200300
// MPICH before 4.2 over UCX's tcp can hang in MPI_Finalize: a rank that has closed its connections waits for the others
// in PMI, and no longer answers those that need its answer to close theirs (pmodels/mpich pull request 6596). By then
// all messages have been received, so nothing need be closed; libmpich finds this function before UCX's own.
extern "C" void* ucp_disconnect_nb(void*) {
  return nullptr;
}
#endif

namespace thinwire {
namespace {

constexpr int kTestsPerPoll = 4;  // a large message needs a test for every few of its pieces
// Sends up to this size are often buffered, and complete at once: worth a test.
constexpr size_t kOftenBuffered = 512 << 10;

// An error of MPI about its arguments is a fault of this program; any other is one of the network, a peer or its host,
// and the job may be started again.
bool is_our_fault(int code) {
  int kind = MPI_SUCCESS;
  MPI_Error_class(code, &kind);
  switch (kind) {
    case MPI_ERR_ARG:
    case MPI_ERR_BUFFER:
    case MPI_ERR_COMM:
    case MPI_ERR_COUNT:
    case MPI_ERR_RANK:
    case MPI_ERR_REQUEST:
    case MPI_ERR_TAG:
    case MPI_ERR_TRUNCATE:
    case MPI_ERR_TYPE:
      return true;
    default:
      return false;
  }
}

// peer: -1 where the call has none.
void check_mpi(int code, const char* call, int peer = -1) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(is_our_fault(code) ? ExitCode::kInternal : ExitCode::kHungPeer,
              std::string(call) + (peer >= 0 ? " with rank " + std::to_string(peer) : "") + " failed: " + text);
}

// Doubles `us` afterwards, up to 1 ms.
void sleep_doubling(long& us) {
  const timespec request{0, us * 1000};
  ::nanosleep(&request, nullptr);
  us = std::min(us * 2, 1000L);
}

constexpr int kRollCallTag = kTags - 3;
constexpr double kReportsLater = 2.0;  // seconds by which other ranks let rank 0, which knows more, report first

// Before a collective call of MPI every rank sends a byte to rank 0, which can then name the ranks that are missing:
// the collective cannot.
void roll_call(Transport& transport, Keeper* keeper, const std::string& place, Keeper::Note note) {
  const bool is_root = transport.rank() == 0;
  Handshake handshake(transport, kRollCallTag, is_root ? keeper : nullptr, place, note);
  std::vector<char> bytes(static_cast<size_t>(transport.size()));
  for (int peer = 1; is_root && peer < transport.size(); ++peer)
    handshake.receive(&bytes[static_cast<size_t>(peer)], 1, peer);
  if (!is_root) handshake.send(bytes.data(), 1, 0);
  if (!is_root && keeper != nullptr)
    keeper->phase("still waits in the " + place, note, kReportsLater + 0.1 * keeper->start_seconds());
  handshake.finish();
}

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(Keeper* keeper) : keeper_(keeper) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    reserve(256);
    roll_call(*this, keeper_, "first handshake", Keeper::Note::kStarting);
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  }

  ~MpiTransport() override {
    // After an error other ranks may never come here, and posted receives may still be written: this process is about
    // to end with the code of that error, and the launcher ends the others.
    if (!requests_.empty() || std::uncaught_exceptions() > 0) return;
    // MPI_Finalize may spin until the last rank arrives, so this waits for it with naps. An error here ends all ranks:
    // others may wait for ever.
    try {
      roll_call(*this, keeper_, "last barrier", Keeper::Note::kNone);
      MPI_Request barrier = MPI_REQUEST_NULL;
      check_mpi(MPI_Ibarrier(comm_, &barrier), "the last MPI_Ibarrier");
      int reached = 0;
      for (long nap_us = 10; reached == 0;) {
        check_mpi(MPI_Test(&barrier, &reached, MPI_STATUS_IGNORE), "MPI_Test of the last MPI_Ibarrier");
        if (reached == 0) sleep_doubling(nap_us);
      }
    } catch (const Error& e) {
      end_mpi(static_cast<int>(e.code()), e.what());
    }
    MPI_Comm_free(&comm_);
    MPI_Finalize();
    if (keeper_ != nullptr) keeper_->rest();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  MPI_Comm comm() const { return comm_; }

  bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(data, count_of(bytes), MPI_BYTE, peer, tag, comm_, &request), "MPI_Isend", peer);
    if (bytes <= kOftenBuffered) {
      int complete = 0;
      check_mpi(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), "MPI_Test of a send", peer);
      if (complete != 0) return true;
    }
    add(request, token, bytes, peer, true);
    return false;
  }

  bool post_receive(void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Irecv(data, count_of(bytes), MPI_BYTE, peer, tag, comm_, &request), "MPI_Irecv", peer);
    add(request, token, bytes, peer, false);
    return false;
  }

  size_t poll(std::span<Completion> done) override {
    const size_t open = requests_.size();
    if (open == 0) {
      // A send that MPI reported complete may still be in its buffer: any call of MPI makes progress with it.
      int found = 0;
      check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &found, MPI_STATUS_IGNORE), "MPI_Iprobe");
      return 0;
    }
    // Only as many requests are tested as `done` can report. With more open, the next poll tests the next ones.
    const size_t window = std::min(open, done.size());
    if (first_ >= open) first_ = 0;
    const size_t first = std::min(first_, open - window);
    first_ = first + window;
    int n = 0;
    for (int round = 0; round < kTestsPerPoll && n == 0; ++round) n = test(first, static_cast<int>(window));
    if (n <= 0) return 0;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      const Posted& posted = posted_[first + static_cast<size_t>(indices_[i])];
      done[i] = {posted.token, posted.bytes};
      if (posted.is_send) continue;
      int bytes = 0;
      MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
      done[i].bytes = static_cast<size_t>(bytes);
    }
    // Close the gaps, keeping the order of posting.
    size_t kept = first;
    for (size_t i = first; i < open; ++i) {
      if (i < first + window && requests_[i] == MPI_REQUEST_NULL) continue;
      requests_[kept] = requests_[i];
      posted_[kept++] = posted_[i];
    }
    requests_.resize(kept);
    posted_.resize(kept);
    return static_cast<size_t>(n);
  }

  bool withdraw(uint32_t token) noexcept override {
    for (size_t i = 0; i < posted_.size(); ++i)
      if (posted_[i].token == token && !posted_[i].is_send) MPI_Cancel(&requests_[i]);
    return false;
  }

  [[noreturn]] void abort(int code) override {
    MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
  }

 private:
  // How many of the requests [first, first + window) are complete; their numbers, from `first`, are then in indices_,
  // and their statuses in statuses_. MPI_UNDEFINED (negative) does not occur: all are open.
  int test(size_t first, int window) {
    int n = 0;
    if (window == 1) {  // a tenth cheaper, and the usual case of a wait
      indices_[0] = 0;
      check_mpi(MPI_Test(&requests_[first], &n, &statuses_[0]), "MPI_Test", posted_[first].peer);
      return n;
    }
    const int code = MPI_Testsome(window, &requests_[first], &n, indices_.data(), statuses_.data());
    if (code != MPI_SUCCESS) {
      for (int i = 0; code == MPI_ERR_IN_STATUS && i < n; ++i) {
        const auto at = static_cast<size_t>(i);
        check_mpi(statuses_[at].MPI_ERROR, "MPI_Testsome", posted_[first + static_cast<size_t>(indices_[at])].peer);
      }
      check_mpi(code, "MPI_Testsome");
    }
    return n;
  }

  struct Posted {
    uint32_t token;
    int peer;
    bool is_send;
    size_t bytes;
  };

  static int count_of(size_t bytes) {
    TW_CHECK(bytes <= INT_MAX, bytes, " bytes in one message");
    return static_cast<int>(bytes);
  }
  void reserve(size_t n) {
    requests_.reserve(n);
    posted_.reserve(n);
    indices_.resize(n);
    statuses_.resize(n);
  }
  void add(MPI_Request request, uint32_t token, size_t bytes, int peer, bool is_send) {
    if (requests_.size() == indices_.size()) reserve(indices_.size() * 2);
    requests_.push_back(request);
    posted_.push_back({token, peer, is_send, bytes});
  }

  MPI_Comm comm_ = MPI_COMM_WORLD;  // after the first handshake: a duplicate of it
  Keeper* keeper_;
  int rank_ = 0, size_ = 1;
  std::vector<MPI_Request> requests_;  // without gaps, so that one call tests them all
  std::vector<Posted> posted_;         // of requests_
  size_t first_ = 0;                   // request that the next poll begins with
  std::vector<int> indices_;           // of test()
  std::vector<MPI_Status> statuses_;
};

// Without an RDMA network card UCX's rendezvous protocol gains nothing: over TCP its handshake queues after the bulk
// data (measured at 1 Gbit/s: 69 % of the wire used, 97 % without), and copies through shared memory are faster, too. A
// setting of the user is kept.
void prefer_eager_messages() {
  if (::access("/sys/class/infiniband", F_OK) != 0) ::setenv("UCX_RNDV_THRESH", "inf", 0);
}

// Raises the limit of open files, which TCP connections are: rank 0 has one to every rank, and the default limit is
// often 1024 where much more is granted.
void allow_many_connections() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == files.rlim_max) return;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace

[[noreturn]] static void end_all_ranks(int code, const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  std::fflush(nullptr);
  std::this_thread::sleep_for(kLastLines);
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized), MPI_Finalized(&finalized);
  if (initialized != 0 && finalized == 0) MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

void end_mpi(int code, const std::string& message) {
  end_all_ranks(code, "rank " + std::to_string(launch_of_environment().rank) + ": " + message);
}

// For an error that every rank has found. Rank 0 prints it once and ends the job; if all ranks exited, the launcher's
// exit code would depend on which is first.
[[noreturn]] static void refuse_together(int rank, const std::string& message) {
  if (rank != 0) std::this_thread::sleep_for(std::chrono::seconds(20));  // until the launcher ends us
  end_all_ranks(static_cast<int>(ExitCode::kBadConfig), message);
}

std::unique_ptr<Transport> open_mpi(int64_t expected_ranks, const std::string& machine, std::vector<std::string>& hosts,
                                    std::vector<std::string>& machines, Keeper* keeper) {
  prefer_eager_messages();
  allow_many_connections();
  if (keeper != nullptr) keeper->phase("still waits for the others in MPI_Init", Keeper::Note::kStarting);
  int provided = MPI_THREAD_SINGLE, size = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // duplicates inherit it
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (provided < MPI_THREAD_SERIALIZED)
    throw_bad_config("this MPI was built without thread support (MPI_THREAD_SERIALIZED is needed)");
  if (size != expected_ranks) {
    MPI_Finalize();
    throw_bad_config("the launcher started " + std::to_string(expected_ranks) + " processes, but MPI joins only " +
                     std::to_string(size) +
                     " of them: use the mpirun of the MPI that this program was built with, or srun --mpi=pmi2 | pmix");
  }
  auto transport = std::make_unique<MpiTransport>(keeper);
  const MPI_Comm comm = transport->comm();
  void* largest_tag = nullptr;
  int known = 0;
  MPI_Comm_get_attr(comm, MPI_TAG_UB, &largest_tag, &known);
  if (known == 0 || *static_cast<int*>(largest_tag) < kTags - 1)
    throw_bad_config("this MPI grants fewer tags than the standard says: 2^15 are needed");

  struct RankInfo {
    char host[MPI_MAX_PROCESSOR_NAME] = {};
    char machine[128] = {};
    char error[256] = {};  // in this rank's environment, perhaps in no other's: all ranks have to know
    int64_t delay_us = 0;
  };
  RankInfo mine;
  try {
    mine.delay_us = wished_delay().count();
    wants_node_memory();
  } catch (const Error& e) {
    std::string(e.what()).copy(mine.error, sizeof mine.error - 1);
  }
  std::vector<RankInfo> all(static_cast<size_t>(size));
  int length = 0;
  MPI_Get_processor_name(mine.host, &length);
  machine.copy(mine.machine, sizeof mine.machine - 1);
  check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_CHAR, all.data(), sizeof mine, MPI_CHAR, comm), "MPI_Allgather");
  hosts.clear(), machines.clear();
  for (const RankInfo& info : all) {
    hosts.emplace_back(info.host), machines.emplace_back(info.machine);
    if (info.error[0] != 0)
      refuse_together(transport->rank(),
                      "rank " + std::to_string(hosts.size() - 1) + " (" + info.host + "): " + info.error);
    if (info.delay_us != all[0].delay_us)
      refuse_together(transport->rank(), "THINWIRE_DELAY_US differs between ranks: " + std::to_string(all[0].delay_us) +
                                             " on rank 0, " + std::to_string(info.delay_us) + " on rank " +
                                             std::to_string(hosts.size() - 1) + ": give all of them the same");
  }
  return transport;
}

}  // namespace thinwire
