// The CPU table: every op of ops.h by name.
#include "engine/base/ops/cpu_state.h"
#include "engine/base/ops/float_mode.h"
#include "engine/base/ops/isa.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/ops.h"

namespace thinwire {
namespace {

std::string active_isa_name() {
  return isa_name(active_isa());
}

std::unique_ptr<OpState> make_cpu_state(Device& device) {
  TW_CHECK(device.kind() == DeviceKind::kCpu, "the CPU table runs on the CPU device");
  return std::make_unique<CpuOpState>();
}

// Results and operands that are subnormal count as zero; codecs, whose bytes keep such numbers, are no ops.
template <auto kOp, typename Op>
void on_cpu(Exec& exec, const Op& op) {
  const SubnormalsAreZero mode;
  checked<kOp>(exec, op);
}

#define TW_ENTRY(name, Op) .name = on_cpu<name##_cpu>,
constexpr OpTable kCpuOps = {
    .backend = "cpu",
    .isa = active_isa_name,
    .make_state = make_cpu_state,
    TW_FOR_EACH_OP(TW_ENTRY)  //
};
#undef TW_ENTRY

}  // namespace

const OpTable& cpu_ops() {
  active_isa();  // throws on a machine that is too old, before anything runs
  return kCpuOps;
}

Exec make_exec(const OpTable& ops, Device& device, Stream& stream, int threads) {
  TW_CHECK(threads >= 1, "an Exec needs a thread, got ", threads);
  return Exec{ops, stream, threads, ops.make_state(device)};
}

}  // namespace thinwire
