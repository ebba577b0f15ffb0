// The mask by which a library's attention drops probabilities, from our own random words (attention_fused.h).
#include "engine/base/ops/attention_fused.h"
#include "engine/base/ops/cuda_dropout.h"
#include "engine/base/ops/cuda_flat.h"

namespace thinwire {
namespace {

// Of whole samples and heads; the mask's elements are numbered as the probabilities of a sample are.
template <typename T>
struct MaskBody {
  static constexpr int kWidth = kVector<T>;
  T* mask;
  DropoutPlan dropout;         // from the first sample and head on
  int64_t length, per_sample;  // elements of the mask in a sample
  float kept_is;
  template <int W>
  struct Data {};
  template <int W>
  TW_DEVICE void load(int64_t, Data<W>&) const {}
  template <int W>
  TW_DEVICE void finish(int64_t i, Data<W>&) const {
    const int64_t sample = quotient(i, per_sample), own = i - sample * per_sample;
    const int64_t row = quotient(own, length), key = own - row * length, query = row - quotient(row, length) * length;
    const auto id = static_cast<uint64_t>(dropout.sample_ids[sample]);
    const auto element = static_cast<uint64_t>(dropout.first + own);
    float kept[W] = {};
    if (key <= query) {
      if constexpr (W % 4 == 0) {
        TW_UNROLL
        for (int b = 0; b < W / 4; ++b) {
          const Words words = dropout_words(dropout, id, (element >> 2) + static_cast<uint64_t>(b));
          TW_UNROLL
          for (int k = 0; k < 4; ++k)
            kept[4 * b + k] = key + 4 * b + k <= query && words.w[k] >= dropout.threshold ? kept_is : 0.0f;
        }
      } else {
        kept[0] = keep_factor(dropout, id, element) > 0.0f ? kept_is : 0.0f;
      }
    }
    store_floats<W>(mask + i, kept);
  }
};

}  // namespace

void attention_mask_cuda(Exec& exec, const Dropout& dropout, const AttentionShape& shape, const AttentionCalls& calls,
                         const AttentionCalls::Start& start, void* mask) {
  const AttentionCall& c = calls.call;
  DropoutPlan plan = make_dropout_plan(dropout, shape);
  TW_CHECK(plan.active && !c.part && c.q_len % 8 == 0 && plan.first % 4 == 0, "a mask of length ", c.q_len);
  plan.first += start.head * plan.per_head;
  plan.sample_ids += start.sample;
  const int64_t per_sample = c.batch * c.q_heads / calls.samples * c.q_len * c.q_len;
  CudaQueue queue(exec);
  with_storage(c.dtype, [&](auto type) {
    using T = decltype(type);
    const MaskBody<T> body = {static_cast<T*>(mask), plan, c.q_len, per_sample, attention_dropout_scale(c).mask};
    launch_flat<2>(queue, "attention_mask", body, calls.samples * per_sample, aligned16(body.mask));
  });
}

}  // namespace thinwire
