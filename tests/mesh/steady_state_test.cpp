// What whole steps allocate once buffers, pools and lists have their sizes: next to nothing, whatever the layout.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

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

constexpr int kWarm = 30, kWindows = 6, kUpdates = 5;  // updates of each window

// Allocations of all ranks per rank and step: the median of the windows behind the warm steps, because a pool that
// grows once, where more pieces than ever meet, is no steady state.
double allocations(Layout layout) {
  // A watchdog looks at files every few seconds, and allocates for it: the longer a step takes, the more would count as
  // the step's.
  layout.more.push_back("watchdog_seconds=0");
  std::vector<int64_t> at;
  run({}, layout, 8, kWarm + kWindows * kUpdates, [&](int step) {
    if (step >= kWarm && (step - kWarm) % kUpdates == 0) at.push_back(allocations_of_the_process());
  });
  std::vector<double> windows;
  for (size_t i = 1; i < at.size(); ++i)
    windows.push_back(static_cast<double>(at[i] - at[i - 1]) / (layout.ranks() * kUpdates));
  EXPECT_EQ(windows.size(), size_t{kWindows});
  std::sort(windows.begin(), windows.end());
  return windows[windows.size() / 2];
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
    // few; one allocation for every transfer or layer would be ten and more. A cut sequence's tokens are picked out.
    EXPECT_LE(got, (layout.context > 1 ? 7.0 : 2.0) * layout.accumulation + 1.0) << layout.name();
  }
}

}  // namespace
}  // namespace thinwire::mesh::steady_state_test
