// Checks that every head lies inside the tensor and cuts the work by tokens.
#include "engine/base/ops/rotary_cpu.h"

#include <algorithm>

#include "engine/base/ops/op_checks.h"
#include "engine/base/ops/parallel_for.h"
#include "engine/base/ops/rotary_kernel.h"

namespace thinwire {

void rotary_cpu(Exec& exec, const Rotary& op) {
  const int64_t heads = op.groups * op.heads_per_group, tokens = op.batch * op.length;
  if (tokens == 0 || heads == 0 || op.rot_dim == 0) return;
  TW_CHECK(op.rot_dim > 0 && op.rot_dim % 2 == 0, "rotary over ", op.rot_dim, " elements");
  const HeadLayout& at = op.layout;
  TW_CHECK(at.offset >= 0 && at.batch >= 0 && at.token >= 0 && at.group >= 0 && at.head >= 0,
           "negative stride of heads");
  const int64_t end = at.offset + (op.batch - 1) * at.batch + (op.length - 1) * at.token + (op.groups - 1) * at.group +
                      (op.heads_per_group - 1) * at.head + op.rot_dim;
  TW_CHECK(op.data && end <= op.data.count(), "heads end at ", end, ", the tensor has ", op.data.count(), " elements");
  const int64_t half = op.rot_dim / 2, positions = op.first_position + op.length;
  TW_CHECK(op.first_position >= 0, "first position ", op.first_position);
  for (const View& table : {op.cos, op.sin}) {
    TW_CHECK(table && table.dtype == DType::f32 && table.cols() == half && table.rows() >= positions, "rotary table [",
             table.rows(), ",", table.cols(), "] for ", positions, " positions of ", half);
  }
  const RotaryBlock block = {static_cast<char*>(op.data.data) + static_cast<size_t>(at.offset) * size_of(op.data.dtype),
                             at.batch,
                             at.token,
                             at.group,
                             at.head,
                             op.length,
                             op.groups,
                             op.heads_per_group,
                             half,
                             op.first_position,
                             op.cos.as<float>(),
                             op.sin.as<float>(),
                             op.inverse};
  const auto kernel = TW_PICK_KERNELS(rotary_kernels).tokens[storage_index(op.data.dtype)];
  parallel_blocks(exec.threads, tokens, std::max<int64_t>(1, (1 << 14) / (heads * op.rot_dim)),
                  [&](int64_t first, int64_t last) { kernel(block, first, last); });
}

}  // namespace thinwire
