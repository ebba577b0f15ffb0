// The world that this process is part of: MPI where a launcher started several ranks, otherwise one rank alone.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "engine/base/core/check.h"
#include "engine/base/core/file.h"
#include "parallel/wire/binding.h"
#include "parallel/wire/launcher.h"
#include "parallel/wire/transport.h"
#include "parallel/wire/transport_delayed.h"
#include "parallel/wire/transport_mpi.h"
#include "parallel/wire/transport_node.h"

namespace thinwire {
namespace {

class SilentTransport final : public Transport {
 public:
  SilentTransport(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool post_send(const void*, size_t, int peer, int, uint32_t) override { refuse(peer); }
  bool post_receive(void*, size_t, int peer, int, uint32_t) override { refuse(peer); }
  size_t poll(std::span<Completion>) override { return 0; }
  bool withdraw(uint32_t) noexcept override { return true; }
  [[noreturn]] void abort(int code) override {
    std::fflush(nullptr);
    std::_Exit(code);
  }

 private:
  [[noreturn]] static void refuse(int peer) {
    check_failed(__FILE__, __LINE__, "a rank that listens", "nobody is there to talk to rank " + std::to_string(peer));
  }
  int rank_, size_;
};

}  // namespace

std::unique_ptr<Transport> make_silent_transport(int rank, int size) {
  return std::make_unique<SilentTransport>(rank, size);
}

World open_world(Keeper* keeper) {
  World world;
  const Launch launch = launch_of_environment();
  if (launch.count == 1) {
    world.transport = make_silent_transport(0, 1);
    world.hosts = {this_host()};
    world.nodes = {0};
    return world;
  }
  std::vector<std::string> machines;
  std::unique_ptr<Transport> mpi = open_mpi(launch.count, machine_identity(), world.hosts, machines, keeper);
  world.nodes = number_nodes(machines);
  const NodePlace place = place_on_node(world.nodes, mpi->rank());
  world.local_rank = place.local_rank, world.local_size = place.local_size;
  const std::chrono::microseconds delay = wished_delay();
  if (delay.count() > 0) mpi = delayed_transport(std::move(mpi), world.nodes, delay);
  world.transport = join_node(std::move(mpi), world.nodes, wants_node_memory(), world.notice, keeper);
  if (delay.count() > 0 && world.transport->rank() == 0)
    world.notice += (world.notice.empty() ? "" : "; ") + std::string("what other nodes send is held back by ") +
                    std::to_string(delay.count()) + " us, an emulated latency (THINWIRE_DELAY_US)";
  return world;
}

}  // namespace thinwire
