// The CUDA table over emulated kernels: the same op functions as on the GPU, built by the C++ compiler.
#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/base/ops/cuda_kernel.h"
#include "engine/base/ops/op_list.h"
#include "tests/emulation/cuda_emulation.h"

namespace thinwire {

size_t sort_pairs_bytes_cuda(int64_t count, int) {
  return static_cast<size_t>(count);
}

void sort_pairs_cuda(CudaQueue& queue, void* scratch, size_t scratch_bytes, const uint32_t* keys, uint32_t* sorted_keys,
                     const int32_t* values, int32_t* sorted_values, int64_t count, int key_bits) {
  queue.add([=] {
    std::memset(scratch, 0xee, scratch_bytes);  // it is the sort's to write
    const uint32_t mask = key_bits >= 32 ? ~0u : (1u << key_bits) - 1;
    std::vector<int64_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return (keys[a] & mask) < (keys[b] & mask); });
    for (int64_t i = 0; i < count; ++i) {
      sorted_keys[i] = keys[order[static_cast<size_t>(i)]];
      sorted_values[i] = values[order[static_cast<size_t>(i)]];
    }
  });
}

// The library's product, by the CPU's.
void matmul_cuda(Exec& exec, const Matmul& op) {
  Exec& cpu = dynamic_cast<EmulatedState&>(*exec.state).cpu();
  Matmul own = op;
  own.b_version = -1;  // as on a GPU: nothing is kept from one product to the next
  CudaQueue(exec).add([&cpu, own] { cpu.ops.matmul(cpu, own); });
}

namespace {

// The checked op, then what check_faults of the CUDA state would say.
template <auto kOp, typename Op>
void emulated(Exec& exec, const Op& op) {
  checked<kOp>(exec, op);
  if (dynamic_cast<DeferredStream*>(&exec.stream) == nullptr) exec.state->check_faults(exec.stream);
}

std::string name_of_emulation() {
  return "cuda kernels on one thread";
}
std::unique_ptr<OpState> make_emulated_state(Device& device) {
  return std::make_unique<EmulatedState>(device);
}

#define TW_ENTRY(name, Op) .name = emulated<name##_cuda>,
constexpr OpTable kEmulatedOps = {
    .backend = "cuda emulated",
    .isa = name_of_emulation,
    .make_state = make_emulated_state,
    TW_FOR_EACH_OP(TW_ENTRY)  //
};
#undef TW_ENTRY

}  // namespace

const OpTable& emulated_cuda_ops() {
  cpu_ops();  // throws on a machine that is too old
  return kEmulatedOps;
}

}  // namespace thinwire
