// What whole steps allocate once buffers, pools and lists have their sizes: next to nothing, whatever the layout.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tests/comm/allocation_count.h"
#include "tests/mesh/mesh_harness.h"

// oneDNN allocates in every product (about 400 times a step here); it is called through this, which does not count.
// Declared by what the call looks like to the linker: oneDNN's own headers belong to the ops.
extern "C" int dnnl_primitive_execute(const void* primitive, void* stream, int count, const void* arguments) {
  static const auto real =
      reinterpret_cast<decltype(&dnnl_primitive_execute)>(::dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
  thinwire::count_allocations_of_this_thread(false);
  const int status = real(primitive, stream, count, arguments);
  thinwire::count_allocations_of_this_thread(true);
  return status;
}

namespace thinwire::mesh::steady_state_test {
namespace {

constexpr int kWarm = 30, kUpdates = 30;

// Allocations of all ranks per rank and step, behind the warm ones.
double allocations(const Layout& layout) {
  int64_t before = 0, after = 0;
  run({}, layout, 8, kWarm + kUpdates, [&](int step) {
    if (step == kWarm) before = allocations_of_the_process();
    if (step == kWarm + kUpdates) after = allocations_of_the_process();
  });
  return static_cast<double>(after - before) / (layout.ranks() * kUpdates);
}

TEST(SteadyState, UpdatesAllocateNothing) {
  const std::vector<std::string> coded = {"compression.preset=thinwire", "compression.adapt=false"};
  const std::vector<std::string> zeropp = {"compression.preset=zeropp", "compression.adapt=false"};
  const Layout layouts[] = {
      {},
      {.data = 2},
      {.data = 4, .weights = "global", .gradients = "global", .optimizer = "global", .accumulation = 2},
      {.tensor = 2, .sequence_parallel = true},
      {.pipeline = 2, .schedule = "zb_h1", .accumulation = 4},
      {.pipeline = 2, .data = 2, .tensor = 2, .optimizer = "global", .accumulation = 2},
      {.context = 3, .more = {"cp_comm_type=p2p"}},
      {.data = 2, .optimizer = "global", .more = coded},
      {.pipeline = 2, .data = 2, .accumulation = 4, .more = coded},
      {.data = 4,
       .weights = "global",
       .gradients = "global",
       .optimizer = "global",
       .secondary = "node",
       .ranks_per_node = 2,
       .more = zeropp},
  };
  for (const Layout& layout : layouts) {
    const double got = allocations(layout);
    RecordProperty(layout.name(), std::to_string(got));
    // Two a micro-batch: its place among those under way. How many pieces meet is timing, so pools may still grow by a
    // few; one allocation for every transfer or layer would be ten and more.
    EXPECT_LE(got, 2.0 * layout.accumulation + 1.0) << layout.name();
  }
}

}  // namespace
}  // namespace thinwire::mesh::steady_state_test
