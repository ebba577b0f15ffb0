// A build without MPI has one rank, and nothing to compare with.
#include "engine/run/bench/benches.h"
#include "parallel/wire/transport.h"

namespace thinwire {

int bench_comm(const std::string& filter, bool) {
  open_world();  // refuses to be one of several
  refuse_one_rank(filter);
}

}  // namespace thinwire
