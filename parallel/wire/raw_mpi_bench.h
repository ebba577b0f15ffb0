// Plain MPI calls on all ranks, for `bench comm` to time beside ours; nothing else uses them. A build without MPI has
// none.
//
// Only in a process whose World is MPI, and only while no operation of ours is open. Sums are fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace thinwire::raw_mpi {

// `started`: by the calls that only start, tested until they are over, in place of the blocking ones.
void send(const void* data, size_t bytes, int peer, bool started = false);
void receive(void* data, size_t bytes, int peer, bool started = false);
// `window` messages under way at once, then one empty answer.
void send_window(const void* data, size_t bytes, int peer, int window);
void receive_window(void* data, size_t bytes, int peer, int window);
void all_reduce(float* data, int64_t count);
// The same without blocking, with work() between start and wait.
void all_reduce_beside(float* data, int64_t count, const std::function<void()>& work);
// counts: elements per rank. The blocked forms are used where all are equal.
void reduce_scatter(const float* whole, float* mine, std::span<const int> counts);
// `started`, here and below: the call that only starts, and a wait for it, in place of the blocking one.
void all_gather(const float* mine, float* whole, std::span<const int> counts, bool started = false);
// Rank r takes counts[r] from everybody.
void all_to_all(const float* from, float* to, std::span<const int> counts, bool started = false);
void broadcast(void* data, size_t bytes, int root, bool started = false);
void barrier();

}  // namespace thinwire::raw_mpi
