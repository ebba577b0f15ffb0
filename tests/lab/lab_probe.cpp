// A small MPI program that says what its ranks can see of each other: names, rates, and any way to share memory.
//   lab_probe names                    every rank's host and whom MPI counts as its node
//   lab_probe bandwidth MEGABYTES      rank 0 sends to the last rank; prints Mbit/s of payload
//   lab_probe latency                  8-byte ping-pong between rank 0 and the last rank; prints microseconds one way
//   lab_probe isolation                rank 0 makes shared memory of every kind; every rank says what it can reach
//   lab_probe exit CODE [SECONDS]      rank 1 (or the only one) ends all by MPI_Abort(CODE), after SECONDS
//   lab_probe stream MEGABYTES         rank 0 sends megabyte after megabyte to the last rank
//   lab_probe wait SECONDS             all ranks sit in a barrier of rank 0
#include <fcntl.h>
#include <mpi.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

// MPICH before 4.2 over UCX tcp can hang in MPI_Finalize with more than two ranks: a rank that has closed its
// connections waits for the others in PMI, deaf to those that still need its answer to close theirs (pmodels/mpich pull
// request 6596). Here all messages have been received by then, so the connections need no farewell; libmpich finds this
// before UCX's own.
extern "C" void* ucp_disconnect_nb(void*) {
  return nullptr;
}

namespace {

int rank = 0, size = 1;

// One line per rank, in rank order, printed by rank 0 alone.
void print_all(const std::string& mine) {
  char line[256] = {};
  std::strncpy(line, mine.c_str(), sizeof line - 1);
  std::vector<char> all(rank == 0 ? sizeof line * static_cast<size_t>(size) : 0);
  MPI_Gather(line, sizeof line, MPI_CHAR, all.data(), sizeof line, MPI_CHAR, 0, MPI_COMM_WORLD);
  if (rank != 0) return;
  for (int r = 0; r < size; ++r) std::printf("%s\n", all.data() + sizeof line * static_cast<size_t>(r));
  std::fflush(stdout);
}

std::string host() {
  char name[64] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

void names() {
  char processor[MPI_MAX_PROCESSOR_NAME] = {};
  int length = 0, node_size = 0;
  MPI_Get_processor_name(processor, &length);
  MPI_Comm node;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  MPI_Comm_size(node, &node_size);
  MPI_Comm_free(&node);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  int first = 0;
  while (first < CPU_SETSIZE && !CPU_ISSET(first, &cores)) ++first;
  print_all("rank " + std::to_string(rank) + " host " + host() + " processor " + processor + " node_size " +
            std::to_string(node_size) + " cores " + std::to_string(CPU_COUNT(&cores)) + " first " +
            std::to_string(first));
}

void bandwidth(int megabytes) {
  const int peer = size - 1, bytes = megabytes * 1000 * 1000;
  std::vector<char> data(static_cast<size_t>(bytes), 'x');
  char token = 0;
  double start = 0.0;
  // The first, small round opens the connection and uses up the burst that the shaper grants.
  for (const int count : {std::min(bytes, 2 * 1000 * 1000), bytes}) {
    start = MPI_Wtime();
    if (rank == 0) {
      MPI_Send(data.data(), count, MPI_CHAR, peer, 0, MPI_COMM_WORLD);
      MPI_Recv(&token, 1, MPI_CHAR, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == peer) {
      MPI_Recv(data.data(), count, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(&token, 1, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
    }
  }
  if (rank == 0) std::printf("%.2f\n", bytes * 8e-6 / (MPI_Wtime() - start));
}

void stream(int megabytes) {
  std::vector<char> data(1000 * 1000);
  for (int i = 0; i < megabytes; ++i) {
    if (rank == 0) MPI_Ssend(data.data(), 1000 * 1000, MPI_CHAR, size - 1, 0, MPI_COMM_WORLD);
    if (rank == size - 1) MPI_Recv(data.data(), 1000 * 1000, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
}

void latency() {
  const int peer = size - 1;
  std::vector<double> times;
  long long word = 0;
  for (int i = 0; i < 2100; ++i) {
    const double start = MPI_Wtime();
    if (rank == 0) {
      MPI_Send(&word, 8, MPI_CHAR, peer, 0, MPI_COMM_WORLD);
      MPI_Recv(&word, 8, MPI_CHAR, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == peer) {
      MPI_Recv(&word, 8, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(&word, 8, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    }
    if (i >= 100) times.push_back((MPI_Wtime() - start) / 2);
  }
  std::nth_element(times.begin(), times.begin() + 1000, times.end());
  if (rank == 0) std::printf("%.2f\n", times[1000] * 1e6);
}

// An abstract socket belongs to a network namespace: a process elsewhere cannot be handed a file descriptor through it.
sockaddr_un abstract_name(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

void isolation() {
  int pid = static_cast<int>(getpid());
  MPI_Bcast(&pid, 1, MPI_INT, 0, MPI_COMM_WORLD);
  const std::string name = "thinwire-lab-probe-" + std::to_string(pid);
  const key_t key = 0x7417 + pid;
  socklen_t length = 0;
  const sockaddr_un address = abstract_name(name, length);
  const int connection = socket(AF_UNIX, SOCK_STREAM, 0);
  int posix = -1, sysv = -1;
  if (rank == 0) {
    posix = shm_open(("/" + name).c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
    sysv = shmget(key, 4096, IPC_CREAT | IPC_EXCL | 0600);
    if (bind(connection, reinterpret_cast<const sockaddr*>(&address), length) != 0 || listen(connection, 64) != 0)
      std::abort();
    if (posix < 0 || sysv < 0) std::abort();
  }
  MPI_Barrier(MPI_COMM_WORLD);
  bool reached[3] = {true, true, true};
  if (rank != 0) {
    posix = shm_open(("/" + name).c_str(), O_RDWR, 0600);
    reached[0] = posix >= 0;
    reached[1] = shmget(key, 4096, 0600) >= 0;
    reached[2] = connect(connection, reinterpret_cast<const sockaddr*>(&address), length) == 0;
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) {
    shm_unlink(("/" + name).c_str());
    shmctl(sysv, IPC_RMID, nullptr);
  }
  close(connection);
  if (posix >= 0) close(posix);
  print_all("rank " + std::to_string(rank) + " host " + host() + " posix " + (reached[0] ? "yes" : "no") + " sysv " +
            (reached[1] ? "yes" : "no") + " socket " + (reached[2] ? "yes" : "no"));
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const std::string mode = argc > 1 ? argv[1] : "";
  const int number = argc > 2 ? std::atoi(argv[2]) : 0;
  if (mode == "names") {
    names();
  } else if (mode == "bandwidth" && number > 0) {
    bandwidth(number);
  } else if (mode == "stream" && number > 0) {
    stream(number);
  } else if (mode == "latency") {
    latency();
  } else if (mode == "isolation") {
    isolation();
  } else if (mode == "exit") {
    if (rank == std::min(1, size - 1)) {
      if (argc > 3) sleep(static_cast<unsigned>(std::atoi(argv[3])));
      MPI_Abort(MPI_COMM_WORLD, number);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  } else if (mode == "wait") {
    if (rank == 0) sleep(static_cast<unsigned>(number));
    MPI_Barrier(MPI_COMM_WORLD);
  } else {
    if (rank == 0) std::fprintf(stderr, "error: lab_probe: see the head of lab_probe.cpp\n");
    MPI_Abort(MPI_COMM_WORLD, 64);
  }
  MPI_Finalize();
  return 0;
}
