// The table of a rehearsal: every op checks its arguments and does nothing.
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/ops.h"

namespace thinwire {
namespace {

template <typename Op>
void nothing(Exec&, const Op&) {}

#define TW_ENTRY(name, Op) .name = checked<nothing<Op>>,
constexpr OpTable kRehearsalOps = {
    .backend = "rehearsal",
    .isa = [] { return std::string("none"); },
    .make_state = [](Device&) { return std::make_unique<OpState>(); },
    TW_FOR_EACH_OP(TW_ENTRY)  //
};
#undef TW_ENTRY

}  // namespace

const OpTable& rehearsal_ops() {
  return kRehearsalOps;
}

}  // namespace thinwire
