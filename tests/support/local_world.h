// Ranks as threads of one process: a Transport that needs no launcher.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "parallel/wire/transport.h"

namespace thinwire {

// Ranks as threads of this process. make_endpoint(r) may be called once per rank, from any thread; the world must
// outlive its endpoints. With a seed, completions are held back and reported in a random order.
class LocalWorld {
 public:
  explicit LocalWorld(int size, uint64_t shuffle_seed = 0);
  ~LocalWorld();
  std::unique_ptr<Transport> make_endpoint(int rank);
  // Ends every rank's waits with Error(kHungPeer): one of them will not come any more.
  void fail(const std::string& message);

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

// Runs body(endpoint) on `size` threads and rethrows the first error after all have ended (an error in one rank ends
// the others' waits with Error(kHungPeer)).
void run_local_ranks(int size, const std::function<void(Transport&)>& body, uint64_t shuffle_seed = 0);

}  // namespace thinwire
