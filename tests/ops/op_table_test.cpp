// The table walk: the CPU backend fills every entry of OpTable.
#include <gtest/gtest.h>

#include "engine/base/ops/op_list.h"

namespace thinwire::op_table_test {
namespace {

TEST(OpTable, CpuHasNoHole) {
  const OpTable& table = cpu_ops();
  EXPECT_STREQ(table.backend, "cpu");
  EXPECT_FALSE(table.isa().empty());
  EXPECT_NE(table.make_state, nullptr);
#define TW_EXPECT_FILLED(name, Op) EXPECT_NE(table.name, nullptr) << #name;
  TW_FOR_EACH_OP(TW_EXPECT_FILLED)
#undef TW_EXPECT_FILLED
}

}  // namespace
}  // namespace thinwire::op_table_test
