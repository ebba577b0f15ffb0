// The table walk: CUDA tables fill every entry that the CPU's fills.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "engine/base/ops/op_list.h"
#include "tests/support/walked_table.h"

namespace thinwire::table_cuda_test {
namespace {

TEST(CudaTable, HasNoHoleThatTheCpuTableHasNot) {
  const OpTable &cpu = cpu_ops(), &cuda = walked_table();
  EXPECT_STRNE(cuda.backend, cpu.backend);
  EXPECT_FALSE(cuda.isa().empty());
  EXPECT_NE(cuda.make_state, nullptr);
  std::set<std::string> holes;
#define TW_WALK(name, Op) \
  if (cpu.name != nullptr && cuda.name == nullptr) holes.insert(#name);
  TW_FOR_EACH_OP(TW_WALK)
#undef TW_WALK
  EXPECT_EQ(holes, std::set<std::string>());  // an op that CUDA lacks on purpose is named here, with the reason
#define TW_OTHER(name, Op) EXPECT_NE(reinterpret_cast<void*>(cpu.name), reinterpret_cast<void*>(cuda.name)) << #name;
  TW_FOR_EACH_OP(TW_OTHER)
#undef TW_OTHER
}

}  // namespace
}  // namespace thinwire::table_cuda_test
