// The optimizers on CUDA: one pass over the flat buffers, the scalars of the step read on the device.
//
// The table of weight decay travels as an argument, so that a captured launch owns it; a buffer with more changes of
// decay than an argument holds is walked in several launches.
#include <span>
#include <type_traits>

#include "engine/base/ops/cuda_flat.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

constexpr int kMostSpans = 128;

// Span s holds elements [end[s - 1], end[s]); the last end is the number of elements.
struct SpanTable {
  int64_t end[kMostSpans];
  float decay[kMostSpans];
  int count;
};

// The span of element i.
TW_DEVICE int span_of(const SpanTable& spans, int64_t i) {
  int low = 0, high = spans.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (i < spans.end[middle])
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

template <int W>
TW_DEVICE void decays_of(const SpanTable& spans, int64_t i, float factor, float (&decay)[W]) {
  int s = span_of(spans, i);
  TW_UNROLL
  for (int k = 0; k < W; ++k) {
    while (s + 1 < spans.count && i + k >= spans.end[s]) ++s;
    decay[k] = factor * spans.decay[s];
  }
}

// What only counts its elements and stores none.
struct NoWorking {};
template <int W>
TW_DEVICE void put_working(NoWorking*, int64_t, const float (&)[W]) {}
template <int W, typename T>
TW_DEVICE void put_working(T* working, int64_t i, const float (&p)[W]) {
  store_floats<W>(working + i, p);
}

template <int W, typename T>
TW_DEVICE void put_zero(T* gradient, int64_t i) {
  const float zero[W] = {};
  store_floats<W>(gradient + i, zero);
}

// As the vector instructions of the CPU: where either is NaN, b.
TW_DEVICE float larger(float a, float b) {
  return a > b ? a : b;
}
TW_DEVICE float smaller(float a, float b) {
  return a < b ? a : b;
}

template <typename Working, typename Gradient, bool kTakesMomentum>
struct AdamWBody {
  static constexpr int kWidth = 4;
  float *master, *m, *v;
  Gradient* gradient;
  Working* working;
  const StepState* state;
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
  bool zero_gradient;
  SpanTable spans;
  template <int W>
  struct Data {
    float p[W], m[W], v[W], g[W];
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    load_floats<W>(gradient + i, d.g);
    load_values<W>(master + i, d.p);
    load_values<W>(v + i, d.v);
    if constexpr (!kTakesMomentum) load_values<W>(m + i, d.m);
  }
  template <int W>
  TW_DEVICE void finish(int64_t i, Data<W>& d) const {
    const float lr = state->lr, scale = state->grad_scale;
    const float correction1 = 1.0f / state->bias_correction1, correction2 = 1.0f / state->bias_correction2;
    float decay[W];
    decays_of<W>(spans, i, state->weight_decay, decay);
    TW_UNROLL
    for (int k = 0; k < W; ++k) {
      const float g = d.g[k] * scale;
      float update;
      if constexpr (kTakesMomentum) {
        // The momentum comes ready, and v is that of the last plain step. Where v is zero m stays zero: times a huge
        // number, the root is a limit that holds nowhere else.
        const float root = sqrtf(d.v[k] * correction2), limit = root * kMomentumLimit, mask = root * 1e30f;
        update = smaller(larger(g * correction1, 0.0f - limit), limit) / (root + eps);
        d.m[k] = smaller(larger(g, 0.0f - mask), mask);
      } else {
        d.m[k] = fmaf(beta1, d.m[k], one_minus_beta1 * g);
        d.v[k] = fmaf(beta2, d.v[k], one_minus_beta2 * g * g);
        update = d.m[k] * correction1 / (sqrtf(d.v[k] * correction2) + eps);
      }
      d.p[k] = fmaf(-lr, fmaf(decay[k], d.p[k], update), d.p[k]);
    }
    store_values<W>(m + i, d.m);
    if constexpr (!kTakesMomentum) store_values<W>(v + i, d.v);
    store_values<W>(master + i, d.p);
    put_working<W>(working, i, d.p);
    if (zero_gradient) put_zero<W>(gradient, i);
  }
};

template <typename Working, typename Gradient>
struct SgdBody {
  static constexpr int kWidth = 4;
  float *master, *buffer;  // buffer: null without momentum
  Gradient* gradient;
  Working* working;
  const StepState* state;
  float momentum;
  bool zero_gradient;
  SpanTable spans;
  template <int W>
  struct Data {
    float p[W], g[W], buffer[W] = {};
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    load_floats<W>(gradient + i, d.g);
    load_values<W>(master + i, d.p);
    if (buffer != nullptr) load_values<W>(buffer + i, d.buffer);
  }
  template <int W>
  TW_DEVICE void finish(int64_t i, Data<W>& d) const {
    const float lr = state->lr, scale = state->grad_scale;
    float decay[W];
    decays_of<W>(spans, i, state->weight_decay, decay);
    TW_UNROLL
    for (int k = 0; k < W; ++k) {
      float step = fmaf(decay[k], d.p[k], d.g[k] * scale);
      if (buffer != nullptr) {
        step = fmaf(momentum, d.buffer[k], step);
        d.buffer[k] = step;
      }
      d.p[k] = fmaf(-lr, step, d.p[k]);
    }
    if (buffer != nullptr) store_values<W>(buffer + i, d.buffer);
    store_values<W>(master + i, d.p);
    put_working<W>(working, i, d.p);
    if (zero_gradient) put_zero<W>(gradient, i);
  }
};

// Calls body(first, table) for runs of elements [first, first + table's last end) whose spans fit a table; neighbours
// of one decay are one span.
template <typename Body>
void for_tables(std::span<const DecaySpan> spans, const Body& body) {
  SpanTable table{};
  int64_t first = 0, end = 0;
  for (const DecaySpan& span : spans) {
    if (span.count == 0) continue;
    const bool joins = table.count > 0 && table.decay[table.count - 1] == span.decay;
    if (!joins && table.count == kMostSpans) {
      body(first, table);
      first = end;
      table.count = 0;
    }
    end = span.first + span.count;
    if (!joins) table.decay[table.count++] = span.decay;
    table.end[table.count - 1] = end - first;
  }
  if (table.count > 0) body(first, table);
}

// Calls f(pointer to the working copy, pointer to the gradient); the former is of type NoWorking where there is none.
template <typename F>
void with_types(const View& working, const View& gradient, const F& f) {
  if (gradient.dtype == DType::bf16)
    f(working.as<Bf16>(), gradient.as<Bf16>());
  else if (!working)
    f(static_cast<NoWorking*>(nullptr), gradient.as<float>());
  else if (working.dtype == DType::bf16)
    f(working.as<Bf16>(), gradient.as<float>());
  else
    f(working.as<Fp16>(), gradient.as<float>());
}

template <typename T>
T* advanced(T* p, int64_t n) {
  return p == nullptr ? nullptr : p + n;
}

// Four of a 16-bit type are 8 bytes.
template <typename T>
bool aligned_for_four(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % (4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) == 0;
}

}  // namespace

void adamw_cuda(Exec& exec, const AdamW& op) {
  const StepState* state = static_cast<const StepState*>(op.state.data);
  float *master = op.master.as<float>(), *m = op.m.as<float>(), *v = op.v.as<float>();
  CudaQueue queue(exec);
  with_types(op.working, op.gradient, [&](auto* working, auto* gradient) {
    using Working = std::remove_pointer_t<decltype(working)>;
    using Gradient = std::remove_pointer_t<decltype(gradient)>;
    for_tables(op.spans, [&](int64_t first, const SpanTable& table) {
      const auto run = [&](auto takes_momentum) {
        // 1 - beta from the double: 1 - 0.999f is off by 1.3e-5 of itself.
        const AdamWBody<Working, Gradient, decltype(takes_momentum)::value> body = {master + first,
                                                                                    m + first,
                                                                                    v + first,
                                                                                    gradient + first,
                                                                                    advanced(working, first),
                                                                                    state,
                                                                                    static_cast<float>(op.beta1),
                                                                                    static_cast<float>(1.0 - op.beta1),
                                                                                    static_cast<float>(op.beta2),
                                                                                    static_cast<float>(1.0 - op.beta2),
                                                                                    static_cast<float>(op.eps),
                                                                                    op.zero_gradient,
                                                                                    table};
        launch_flat<1>(queue, "adamw", body, table.end[table.count - 1],
                       aligned16(body.master, body.m, body.v) && aligned_for_four(body.gradient) &&
                           aligned_for_four(body.working));
      };
      if constexpr (std::is_same_v<Gradient, float>) {
        if (op.takes_momentum) return run(std::true_type{});
      }
      run(std::false_type{});
    });
  });
}

void sgd_cuda(Exec& exec, const Sgd& op) {
  const StepState* state = static_cast<const StepState*>(op.state.data);
  float* master = op.master.as<float>();
  float* buffer = op.momentum_buffer ? op.momentum_buffer.as<float>() : nullptr;
  CudaQueue queue(exec);
  with_types(op.working, op.gradient, [&](auto* working, auto* gradient) {
    using Working = std::remove_pointer_t<decltype(working)>;
    using Gradient = std::remove_pointer_t<decltype(gradient)>;
    for_tables(op.spans, [&](int64_t first, const SpanTable& table) {
      const SgdBody<Working, Gradient> body = {master + first,
                                               advanced(buffer, first),
                                               gradient + first,
                                               advanced(working, first),
                                               state,
                                               op.momentum,
                                               op.zero_gradient,
                                               table};
      launch_flat<1>(
          queue, "sgd", body, table.end[table.count - 1],
          aligned16(body.master, body.buffer) && aligned_for_four(body.gradient) && aligned_for_four(body.working));
    });
  });
}

}  // namespace thinwire
