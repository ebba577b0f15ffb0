// Softmax cross entropy on CUDA: a block per row of logits, maximum and sum in one visit (online softmax, Milakov and
// Gimelshein 2018), then the gradient in place.
//
// What fits of a row stays in shared memory between the two visits, so memory sees it once; the rest is read again, and
// mostly comes from the second cache. Shared memory is held to kResident so that two blocks share a multiprocessor of
// 228 KB and one computes while the other loads.
#include <algorithm>

#include "engine/base/ops/cuda_reduce.h"
#include "engine/base/ops/cuda_vector.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

constexpr int kMostThreads = 512;
constexpr int kInFlight = 4;  // loads of a thread under way
constexpr int64_t kResident = 112 << 10;
constexpr float kLowest = -3.402823466e38f;

template <typename T>
struct RowArgs {
  T* logits;
  const int32_t* targets;
  const float* row_weight;
  const float* scale;  // null: logits are only read
  int64_t cols, valid_cols;
  int64_t first_col, vocabulary;  // of a rank's columns; 0 and valid_cols where they are all
  int resident;                   // packs of W elements that stay in shared memory
  unsigned* faults;
};

constexpr float kLog2e = 1.44269504088896341f;
// Up to here rounding kLog2e * v loses less than 0.1.
constexpr float kWide = 1e6f;

struct RowSum {
  float maximum;
  float sum;  // of e^(v - maximum)
};

// Powers are taken of 2, with one multiply-add each: e^(v - m) = 2^(kLog2e v - r) * 2^(r - kLog2e m), where r is
// kLog2e m rounded and the second factor, which belongs to the whole row, undoes that rounding. The error is then that
// of a rounded v - m. Beyond kWide the two powers would leave the range of numbers: plain differences.
struct Scale {
  float maximum, reference, factor;  // factor: 2^(reference - kLog2e maximum)
  bool wide;                         // |maximum| is beyond kWide: neither reference nor factor
};
TW_DEVICE Scale scale_at(float maximum) {
  Scale s = {maximum, maximum * kLog2e, 1.0f, !(fabsf(maximum) < kWide)};
  if (!s.wide) s.factor = exp2f(-fmaf(maximum, kLog2e, -s.reference));
  return s;
}
// e^(v - maximum) / factor
template <int W>
TW_DEVICE void powers(const Scale& s, const float (&v)[W], float (&out)[W]) {
  if (s.wide) {
    TW_UNROLL
    for (int k = 0; k < W; ++k) out[k] = expf(v[k] - s.maximum);
  } else {
    TW_UNROLL
    for (int k = 0; k < W; ++k) out[k] = fast_exp2(fmaf(v[k], kLog2e, -s.reference));
  }
}

// What a thread has seen: `sum` of e^(v - maximum) / factor.
struct Running {
  Scale scale;
  float sum;
};

// The maximum skips NaN and the sum does not, so NaN reaches the loss.
template <int W>
TW_DEVICE void absorb(Running& s, const float (&v)[W]) {
  float top = s.scale.maximum;
  TW_UNROLL
  for (int k = 0; k < W; ++k) top = fmaxf(top, v[k]);
  if (top > s.scale.maximum) {  // a few times per row
    const Scale next = scale_at(top);
    s.sum *= s.scale.factor * expf(s.scale.maximum - top) / next.factor;
    s.scale = next;
  }
  float terms[W];
  powers(s.scale, v, terms);
  TW_UNROLL
  for (int k = 0; k < W; ++k) s.sum += terms[k];
}

// Merges the threads' maxima and sums; slots for 2 * kMostWarps floats.
TW_DEVICE RowSum merged(const Running& mine, float* slots) {
  float top = mine.scale.maximum;
  TW_UNROLL
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) top = fmaxf(top, shuffle_xor(top, lanes));
  if (threadIdx.x % kWarp == 0) slots[threadIdx.x / kWarp] = top;
  __syncthreads();
  top = slots[0];
  for (unsigned w = 1; w < blockDim.x / kWarp; ++w) top = fmaxf(top, slots[w]);
  const float sum = mine.sum * mine.scale.factor * expf(mine.scale.maximum - top);
  return {top, block_sum(sum, slots + kMostWarps)};
}

// One visit of a row: what every thread's columns say of maximum and sum, merged; `kept` (shared memory) gets the first
// `resident` packs.
template <typename T, int W>
TW_DEVICE RowSum row_sum(const T* row, int64_t valid_cols, int resident, T* kept, float* slots) {
  Running mine = {scale_at(kLowest), 0.0f};
  const int valid = static_cast<int>(valid_cols), packs = (valid + W - 1) / W, step = static_cast<int>(blockDim.x);
  for (int first = static_cast<int>(threadIdx.x); first < packs; first += step * kInFlight) {
    T raw[kInFlight][W];
    TW_UNROLL
    for (int j = 0; j < kInFlight; ++j) {
      const int p = first + j * step;
      if (p < packs) load_values<W>(row + p * W, raw[j]);
    }
    TW_UNROLL
    for (int j = 0; j < kInFlight; ++j) {
      const int p = first + j * step;
      if (p >= packs) continue;
      if (p < resident) store_values<W>(kept + p * W, raw[j]);
      const int left = valid - p * W;
      float v[W];
      TW_UNROLL
      for (int k = 0; k < W; ++k) v[k] = k < left ? widen(raw[j][k]) : -INFINITY;  // padding must not be seen
      absorb(mine, v);
    }
  }
  return merged(mine, slots);
}

// Overwrites a row by (softmax - onehot) * weight; target < 0: it is not in this row.
template <typename T, int W>
TW_DEVICE void write_gradient(T* row, const RowArgs<T>& a, const T* kept, RowSum s, float weight, int64_t target,
                              float logit) {
  const Scale scale = scale_at(s.maximum);
  const float inverse = 1.0f / s.sum, factor = inverse * weight * scale.factor;
  const float at_target = (expf(logit - s.maximum) * inverse - 1.0f) * weight;
  const int packs = static_cast<int>(a.cols / W), step = static_cast<int>(blockDim.x);
  const int valid = static_cast<int>(a.valid_cols), hit = static_cast<int>(target);
  for (int first = static_cast<int>(threadIdx.x); first < packs; first += step * kInFlight) {
    T raw[kInFlight][W];
    TW_UNROLL
    for (int j = 0; j < kInFlight; ++j) {
      const int p = first + j * step;
      if (p >= packs) continue;
      if (p < a.resident)
        load_values<W>(kept + p * W, raw[j]);
      else
        load_values<W>(row + p * W, raw[j]);
    }
    TW_UNROLL
    for (int j = 0; j < kInFlight; ++j) {
      const int p = first + j * step, c = p * W;
      if (p >= packs) continue;
      float v[W], out[W];
      TW_UNROLL
      for (int k = 0; k < W; ++k) v[k] = widen(raw[j][k]);
      powers(scale, v, out);
      TW_UNROLL
      for (int k = 0; k < W; ++k) out[k] *= factor;
      if (c + W > valid || (hit >= c && hit < c + W)) {
        TW_UNROLL
        for (int k = 0; k < W; ++k) {
          if (c + k == hit) out[k] = at_target;
          if (c + k >= valid) out[k] = 0.0f;
        }
      }
      store_floats<W>(row + c, out);
    }
  }
}

template <typename T, int W>
TW_DEVICE void clear_row(T* row, int64_t cols) {
  float zero[W] = {};
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * W; c < cols; c += static_cast<int64_t>(blockDim.x) * W) {
    store_floats<W>(row + c, zero);
  }
}

// False, and reported, where a target that counts lies outside of the vocabulary.
template <typename T>
TW_DEVICE bool target_is_valid(const RowArgs<T>& a, int64_t target) {
  const bool valid = target >= 0 && target < a.vocabulary;
  if (!valid && threadIdx.x == 0) atomic_or(a.faults, kFaultTarget);
  return valid;
}

template <typename T, int W>
TW_KERNEL void __launch_bounds__(kMostThreads, 2) loss_kernel(RowArgs<T> a, float* loss) {
  TW_DYNAMIC_SHARED(shared);
  TW_SHARED_ARRAY(float, slots, 2 * kMostWarps);
  T* kept = reinterpret_cast<T*>(shared);
  const int64_t r = blockIdx.x;
  T* row = a.logits + r * a.cols;
  const float weight = a.row_weight[r];
  if (weight == 0.0f) {
    if (threadIdx.x == 0) loss[r] = 0.0f;
    if (a.scale != nullptr) clear_row<T, W>(row, a.cols);
    return;
  }
  const int64_t target = a.targets[r];
  // Before anything is overwritten: barriers of row_sum stand between.
  const float logit = target_is_valid(a, target) ? widen(row[target]) : NAN;
  const RowSum s = row_sum<T, W>(row, a.valid_cols, a.resident, kept, slots);
  if (threadIdx.x == 0) loss[r] = logf(s.sum) + (s.maximum - logit);
  if (a.scale != nullptr) write_gradient<T, W>(row, a, kept, s, weight * a.scale[0], target, logit);
}

template <typename T, int W>
TW_KERNEL void __launch_bounds__(kMostThreads) statistics_kernel(RowArgs<T> a, float* statistics) {
  TW_SHARED_ARRAY(float, slots, 2 * kMostWarps);
  const int64_t r = blockIdx.x;
  const T* row = a.logits + r * a.cols;
  float* out = statistics + 3 * r;
  const bool counts = a.row_weight[r] != 0.0f;
  if (!counts) {
    if (threadIdx.x == 0) out[0] = out[1] = out[2] = 0.0f;
    return;
  }
  const RowSum s = row_sum<T, W>(row, a.valid_cols, 0, static_cast<T*>(nullptr), slots);
  const int64_t target = a.targets[r], here = target - a.first_col;
  const bool valid = target_is_valid(a, target);
  if (threadIdx.x != 0) return;
  out[0] = s.maximum;
  out[1] = s.sum;
  out[2] = valid && here >= 0 && here < a.valid_cols ? widen(row[here]) : 0.0f;
}

// Every rank does the same sums in the same order.
template <typename T, int W>
TW_KERNEL void __launch_bounds__(kMostThreads)
    vocab_loss_kernel(RowArgs<T> a, const float* all, int64_t ranks, int64_t rows, float* loss) {
  const int64_t r = blockIdx.x;
  T* row = a.logits + r * a.cols;
  const float weight = a.row_weight[r];
  if (weight == 0.0f) {
    if (threadIdx.x == 0) loss[r] = 0.0f;
    if (a.scale != nullptr) clear_row<T, W>(row, a.cols);
    return;
  }
  RowSum s = {kLowest, 0.0f};
  float logit = 0.0f;
  for (int64_t k = 0; k < ranks; ++k) {
    const float* of = all + (k * rows + r) * 3;
    s.maximum = of[0] > s.maximum ? of[0] : s.maximum;
    logit += of[2];
  }
  for (int64_t k = 0; k < ranks; ++k) {
    const float* of = all + (k * rows + r) * 3;
    s.sum += of[1] * expf(of[0] - s.maximum);
  }
  const int64_t target = a.targets[r], here = target - a.first_col;
  if (!target_is_valid(a, target)) logit = NAN;
  if (threadIdx.x == 0) loss[r] = logf(s.sum) + (s.maximum - logit);
  if (a.scale == nullptr) return;
  const bool mine = here >= 0 && here < a.valid_cols;
  write_gradient<T, W>(row, a, static_cast<const T*>(nullptr), s, weight * a.scale[0], mine ? here : -1, logit);
}

struct RowLaunch {
  bool vectors;
  int threads;
};
template <typename T>
RowLaunch launch_of(const RowArgs<T>& a) {
  const bool vectors = aligned16(a.logits) && a.cols % kVector<T> == 0;
  const int64_t packs = vectors ? a.cols / kVector<T> : a.cols;
  return {vectors, static_cast<int>(std::clamp<int64_t>(ceil_div(packs, kWarp) * kWarp, kWarp, kMostThreads))};
}

template <typename T, typename Op>
RowArgs<T> row_args(CudaQueue& queue, const Op& op) {
  TW_CHECK(op.logits.cols() < int64_t{1} << 30, op.logits.cols(), " columns");
  RowArgs<T> a = {};
  a.logits = op.logits.template as<T>();
  a.targets = op.targets.template as<int32_t>();
  a.row_weight = op.row_weight.template as<float>();
  a.cols = op.logits.cols();
  a.faults = queue.fault_word();
  return a;
}

// What the two halves of the vocabulary-parallel loss share.
template <typename T, typename Op>
RowArgs<T> vocab_args(CudaQueue& queue, const Op& op) {
  RowArgs<T> a = row_args<T>(queue, op);
  a.first_col = op.first_col;
  a.vocabulary = op.vocabulary;
  a.valid_cols = std::clamp<int64_t>(op.vocabulary - op.first_col, 0, a.cols);
  return a;
}
}  // namespace

void cross_entropy_cuda(Exec& exec, const CrossEntropy& op) {
  const int64_t rows = op.logits.rows();
  CudaQueue queue(exec);
  with_storage(op.logits.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int W = kVector<T>;
    RowArgs<T> a = row_args<T>(queue, op);
    a.scale = static_cast<const float*>(op.dlogits_scale.data);
    a.valid_cols = a.vocabulary = op.valid_cols;
    const RowLaunch launch = launch_of(a);
    size_t shared = 0;
    if (a.scale != nullptr && launch.vectors) {
      a.resident = static_cast<int>(std::min<int64_t>(ceil_div(op.valid_cols, W), kResident / 16));
      shared = static_cast<size_t>(a.resident) * 16;
    }
    queue.launch("cross_entropy", launch.vectors ? loss_kernel<T, W> : loss_kernel<T, 1>, {rows}, launch.threads,
                 shared, a, op.loss.as<float>());
  });
}

void vocab_statistics_cuda(Exec& exec, const VocabStatistics& op) {
  const int64_t rows = op.logits.rows();
  CudaQueue queue(exec);
  with_storage(op.logits.dtype, [&](auto type) {
    using T = decltype(type);
    const RowArgs<T> a = vocab_args<T>(queue, op);
    const RowLaunch launch = launch_of(a);
    queue.launch("vocab_statistics", launch.vectors ? statistics_kernel<T, kVector<T>> : statistics_kernel<T, 1>,
                 {rows}, launch.threads, 0, a, op.statistics.as<float>());
  });
}

void vocab_loss_cuda(Exec& exec, const VocabLoss& op) {
  const int64_t rows = op.logits.rows();
  CudaQueue queue(exec);
  with_storage(op.logits.dtype, [&](auto type) {
    using T = decltype(type);
    RowArgs<T> a = vocab_args<T>(queue, op);
    a.scale = static_cast<const float*>(op.dlogits_scale.data);
    const RowLaunch launch = launch_of(a);
    queue.launch("vocab_loss", launch.vectors ? vocab_loss_kernel<T, kVector<T>> : vocab_loss_kernel<T, 1>, {rows},
                 launch.threads, 0, a, op.all.as<float>(), op.all.count() / (rows * 3), rows, op.loss.as<float>());
  });
}

}  // namespace thinwire
