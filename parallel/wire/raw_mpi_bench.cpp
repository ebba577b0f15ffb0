// Plain MPI calls, as a program without Thinwire would make them.
#include "parallel/wire/raw_mpi_bench.h"

#include <mpi.h>

#include <algorithm>
#include <vector>

namespace thinwire::raw_mpi {
namespace {

constexpr int kTag = 3;
const MPI_Comm kWorld = MPI_COMM_WORLD;  // not constexpr: in Open MPI it is the address of a global

bool all_equal(std::span<const int> counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int n) { return n == counts[0]; });
}

std::vector<int> offsets_of(std::span<const int> counts) {
  std::vector<int> offsets(counts.size(), 0);
  for (size_t r = 1; r < counts.size(); ++r) offsets[r] = offsets[r - 1] + counts[r - 1];
  return offsets;
}

int rank() {
  int me = 0;
  MPI_Comm_rank(kWorld, &me);
  return me;
}

void test_until_over(MPI_Request& request) {
  for (int over = 0; over == 0;) MPI_Test(&request, &over, MPI_STATUS_IGNORE);
}

}  // namespace

void send(const void* data, size_t bytes, int peer, bool started) {
  if (!started) {
    MPI_Send(data, static_cast<int>(bytes), MPI_BYTE, peer, kTag, kWorld);
    return;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, kTag, kWorld, &request);
  test_until_over(request);
}

void receive(void* data, size_t bytes, int peer, bool started) {
  if (!started) {
    MPI_Recv(data, static_cast<int>(bytes), MPI_BYTE, peer, kTag, kWorld, MPI_STATUS_IGNORE);
    return;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, kTag, kWorld, &request);
  test_until_over(request);
}

void send_window(const void* data, size_t bytes, int peer, int window) {
  std::vector<MPI_Request> requests(static_cast<size_t>(window));
  for (MPI_Request& request : requests)
    MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, kTag, kWorld, &request);
  MPI_Waitall(window, requests.data(), MPI_STATUSES_IGNORE);
  receive(nullptr, 0, peer);
}

void receive_window(void* data, size_t bytes, int peer, int window) {
  std::vector<MPI_Request> requests(static_cast<size_t>(window));
  for (MPI_Request& request : requests)
    MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, kTag, kWorld, &request);
  MPI_Waitall(window, requests.data(), MPI_STATUSES_IGNORE);
  send(nullptr, 0, peer);
}

void all_reduce(float* data, int64_t count) {
  MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, kWorld);
}

void all_reduce_beside(float* data, int64_t count, const std::function<void()>& work) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, kWorld, &request);
  work();
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

void reduce_scatter(const float* whole, float* mine, std::span<const int> counts) {
  if (all_equal(counts)) {
    MPI_Reduce_scatter_block(whole, mine, counts[0], MPI_FLOAT, MPI_SUM, kWorld);
  } else {
    MPI_Reduce_scatter(whole, mine, counts.data(), MPI_FLOAT, MPI_SUM, kWorld);
  }
}

void all_gather(const float* mine, float* whole, std::span<const int> counts, bool started) {
  const int own = counts[static_cast<size_t>(rank())];
  MPI_Request request = MPI_REQUEST_NULL;
  if (started && all_equal(counts)) {
    MPI_Iallgather(mine, own, MPI_FLOAT, whole, own, MPI_FLOAT, kWorld, &request);
  } else if (started) {
    const std::vector<int> offsets = offsets_of(counts);
    MPI_Iallgatherv(mine, own, MPI_FLOAT, whole, counts.data(), offsets.data(), MPI_FLOAT, kWorld, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);  // here, while `offsets` lives
  } else if (all_equal(counts)) {
    MPI_Allgather(mine, own, MPI_FLOAT, whole, own, MPI_FLOAT, kWorld);
  } else {
    MPI_Allgatherv(mine, own, MPI_FLOAT, whole, counts.data(), offsets_of(counts).data(), MPI_FLOAT, kWorld);
  }
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

void all_to_all(const float* from, float* to, std::span<const int> counts, bool started) {
  const int own = counts[static_cast<size_t>(rank())];
  MPI_Request request = MPI_REQUEST_NULL;
  if (all_equal(counts)) {
    if (started) {
      MPI_Ialltoall(from, own, MPI_FLOAT, to, own, MPI_FLOAT, kWorld, &request);
    } else {
      MPI_Alltoall(from, own, MPI_FLOAT, to, own, MPI_FLOAT, kWorld);
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return;
  }
  // Rank r takes counts[r] elements from everybody.
  const std::vector<int> offsets = offsets_of(counts), take(counts.size(), own), places = offsets_of(take);
  if (started) {
    MPI_Ialltoallv(from, counts.data(), offsets.data(), MPI_FLOAT, to, take.data(), places.data(), MPI_FLOAT, kWorld,
                   &request);
  } else {
    MPI_Alltoallv(from, counts.data(), offsets.data(), MPI_FLOAT, to, take.data(), places.data(), MPI_FLOAT, kWorld);
  }
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

void broadcast(void* data, size_t bytes, int root, bool started) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (started) {
    MPI_Ibcast(data, static_cast<int>(bytes), MPI_BYTE, root, kWorld, &request);
  } else {
    MPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, root, kWorld);
  }
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

void barrier() {
  MPI_Barrier(kWorld);
}

}  // namespace thinwire::raw_mpi
