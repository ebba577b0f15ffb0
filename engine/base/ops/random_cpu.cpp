// Draws the normal numbers of a slice of a tensor; one Philox block gives four elements. Runs once per run, so it is
// not vectorised: the numbers come from the same double arithmetic on every machine.

#include "engine/base/ops/op_list.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

template <typename T>
void fill(const FillNormal& op, int64_t first, int64_t last) {
  T* x = op.x.as<T>();
  for (int64_t i = first; i < last;) {
    const uint64_t element = static_cast<uint64_t>(op.first + i), block = element / 4;
    const PhiloxBlock words =
        philox(seed_key(op.seed), {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), op.tensor_id,
                                   static_cast<uint32_t>(RandomPurpose::kInit)});
    const std::array<float, 2> low = normal_pair(words[0], words[1]), high = normal_pair(words[2], words[3]);
    const float four[4] = {low[0], low[1], high[0], high[1]};
    for (uint64_t k = element % 4; k < 4 && i < last; ++k, ++i) x[i] = from_float<T>(four[k] * op.std);
  }
}

}  // namespace

void fill_normal_cpu(Exec& exec, const FillNormal& op) {
  const int index = storage_index(op.x.dtype);
  parallel_blocks(exec.threads, op.x.count(), 1 << 12, [&](int64_t first, int64_t last) {
    if (index == 0)
      fill<float>(op, first, last);
    else if (index == 1)
      fill<Bf16>(op, first, last);
    else
      fill<Fp16>(op, first, last);
  });
}

}  // namespace thinwire
