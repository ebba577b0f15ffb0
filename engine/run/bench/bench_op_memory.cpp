// Cases of `bench op` that move memory: a plain copy as the measure, norms, activations, losses, embedding, optimizer.
#include <cmath>

#include "engine/run/bench/bench_op_cases.h"
#include "engine/run/bench/op_oracles.h"

namespace thinwire {
namespace {

double bytes_of(std::initializer_list<View> views) {
  double total = 0.0;
  for (const View& v : views) total += static_cast<double>(v.bytes());
  return total;
}

// Sums of `terms` numbers stand in an output.
OpCase make_case(DType t, double bytes, double terms, std::function<void()> run, std::function<double()> error) {
  OpCase o;
  o.dtype = t, o.bytes = bytes;
  o.run = std::move(run), o.error = std::move(error);
  o.tolerance = tolerance_of(t, terms);
  return o;
}

// The same, proved on samples of `result`; oracle(row, column) is what shall stand there.
OpCase make_case(Workbench& w, DType t, double bytes, double terms, View result, std::function<void()> run,
                 std::function<double(int64_t, int64_t)> oracle) {
  const auto error = [=, &w, oracle = std::move(oracle)] {
    return sampled_error(
        result.rows(), result.cols(), [&](int64_t r, int64_t c) { return w.at(result, r, c); }, oracle);
  };
  return make_case(t, bytes, terms, std::move(run), error);
}

OpCase copy_case(Workbench& w, DType t, int64_t n, int64_t cols) {
  const View x = w.tensor(t, {n, cols}, 1.0f), y = w.tensor(t, {n, cols}, 0.0f);
  const auto run = [=, &w] { w.device().copy(y.data, x.data, x.bytes(), w.stream()).wait(w.stream()); };
  return make_case(w, t, bytes_of({x, y}), 1.0, y, run, [=, &w](int64_t r, int64_t c) { return w.at(x, r, c); });
}

OpCase norm_forward_case(Workbench& w, DType t, int64_t n, int64_t h) {
  const View x = w.tensor(t, {n, h}, 1.0f), y = w.tensor(t, {n, h}, 0.0f), weight = w.tensor(t, {h}, 1.0f),
             bias = w.tensor(t, {h}, 1.0f), mean = w.tensor(DType::f32, {n}, 0.0f),
             rstd = w.tensor(DType::f32, {n}, 0.0f);
  const NormForward op = {.x = x, .weight = weight, .bias = bias, .y = y, .mean = mean, .rstd = rstd};
  return make_case(
      w, t, bytes_of({x, y}), static_cast<double>(h), y, [=, &w] { w.ops().norm_forward(w.exec(), op); },
      [=, &w](int64_t r, int64_t c) {
        const auto row =
            oracle::row_statistics(h, NormKind::kLayerNorm, 1e-5, [&](int64_t i) { return w.at(x, r, i); });
        return (w.at(x, r, c) - row.mean) * row.rstd * w.at(weight, 0, c) + w.at(bias, 0, c);
      });
}

OpCase norm_backward_case(Workbench& w, DType t, int64_t n, int64_t h) {
  const View x = w.tensor(t, {n, h}, 1.0f), y = w.tensor(t, {n, h}, 0.0f), dy = w.tensor(t, {n, h}, 1.0f),
             residual = w.tensor(t, {n, h}, 1.0f), dx = w.tensor(t, {n, h}, 0.0f), weight = w.tensor(t, {h}, 1.0f),
             bias = w.tensor(t, {h}, 1.0f), mean = w.tensor(DType::f32, {n}, 0.0f),
             rstd = w.tensor(DType::f32, {n}, 0.0f), dweight = w.tensor(DType::f32, {h}, 0.0f),
             dbias = w.tensor(DType::f32, {h}, 0.0f);
  w.ops().norm_forward(w.exec(), {.x = x, .weight = weight, .bias = bias, .y = y, .mean = mean, .rstd = rstd});
  const NormBackward op = {.dy = dy,
                           .x = x,
                           .weight = weight,
                           .mean = mean,
                           .rstd = rstd,
                           .residual = residual,
                           .dx = dx,
                           .dweight = dweight,
                           .dbias = dbias};
  return make_case(
      w, t, bytes_of({x, dy, residual, dx}), static_cast<double>(h), dx,
      [=, &w] { w.ops().norm_backward(w.exec(), op); },
      [=, &w](int64_t r, int64_t c) {
        const double m = w.at(mean, 0, r), s = w.at(rstd, 0, r);
        double g = 0.0, gx = 0.0;
        for (int64_t i = 0; i < h; ++i) {
          const double d = w.at(dy, r, i) * w.at(weight, 0, i);
          g += d, gx += d * (w.at(x, r, i) - m) * s;
        }
        const double d = w.at(dy, r, c) * w.at(weight, 0, c), width = static_cast<double>(h);
        return w.at(residual, r, c) + s * (d - g / width - (w.at(x, r, c) - m) * s * gx / width);
      });
}

OpCase add_norm_case(Workbench& w, DType t, int64_t n, int64_t h) {
  const View x = w.tensor(t, {n, h}, 1.0f), branch = w.tensor(t, {n, h}, 1.0f), sum = w.tensor(t, {n, h}, 0.0f),
             y = w.tensor(t, {n, h}, 0.0f), weight = w.tensor(t, {h}, 1.0f), rstd = w.tensor(DType::f32, {n}, 0.0f);
  const NormForward op = {
      .kind = NormKind::kRmsNorm, .x = x, .branch = branch, .sum = sum, .weight = weight, .y = y, .rstd = rstd};
  return make_case(
      w, t, bytes_of({x, branch, sum, y}), static_cast<double>(h), y, [=, &w] { w.ops().norm_forward(w.exec(), op); },
      [=, &w](int64_t r, int64_t c) {
        const auto at = [&](int64_t i) { return w.at(sum, r, i); };
        return at(c) * oracle::row_statistics(h, NormKind::kRmsNorm, 1e-5, at).rstd * w.at(weight, 0, c);
      });
}

OpCase gelu_forward_case(Workbench& w, DType t, int64_t n, int64_t f) {
  const View x = w.tensor(t, {n, f}, 1.0f), y = w.tensor(t, {n, f}, 0.0f);
  const GeluForward op = {GeluKind::kTanh, x, y};
  return make_case(
      w, t, bytes_of({x, y}), 8.0, y, [=, &w] { w.ops().gelu_forward(w.exec(), op); },
      [=, &w](int64_t r, int64_t c) { return oracle::gelu(GeluKind::kTanh, w.at(x, r, c)).y; });
}

OpCase gelu_backward_case(Workbench& w, DType t, int64_t n, int64_t f) {
  const View x = w.tensor(t, {n, f}, 1.0f), dy = w.tensor(t, {n, f}, 1.0f), dx = w.tensor(t, {n, f}, 0.0f);
  const GeluBackward op = {GeluKind::kTanh, x, dy, dx};
  return make_case(
      w, t, bytes_of({x, dy, dx}), 8.0, dx, [=, &w] { w.ops().gelu_backward(w.exec(), op); },
      [=, &w](int64_t r, int64_t c) { return w.at(dy, r, c) * oracle::gelu(GeluKind::kTanh, w.at(x, r, c)).slope; });
}

OpCase swiglu_case(Workbench& w, DType t, int64_t n, int64_t f, bool backward) {
  const View x = w.tensor(t, {n, 2 * f}, 1.0f), y = w.tensor(t, {n, f}, backward ? 1.0f : 0.0f),
             dx = w.tensor(t, {backward ? n : 1, 2 * f}, 0.0f);
  if (!backward) {
    return make_case(
        w, t, bytes_of({x, y}), 8.0, y,
        [=, &w] {
          w.ops().swiglu_forward(w.exec(), {x, y});
        },
        [=, &w](int64_t r, int64_t c) { return w.at(x, r, c) * oracle::sigmoid(w.at(x, r, c)) * w.at(x, r, f + c); });
  }
  return make_case(
      w, t, bytes_of({x, y, dx}), 8.0, dx,
      [=, &w] {
        w.ops().swiglu_backward(w.exec(), {x, y, dx});
      },
      [=, &w](int64_t r, int64_t c) {
        const double g = w.at(x, r, c % f), s = oracle::sigmoid(g), dy = w.at(y, r, c % f);
        return c < f ? dy * w.at(x, r, f + c) * s * (1.0 + g * (1.0 - s)) : dy * g * s;
      });
}

OpCase rotary_case(Workbench& w, DType t, const ModelShape& s) {
  const int64_t n = s.batch * s.length, d = s.hidden / s.heads;
  const View data = w.tensor(t, {n, s.hidden}, 1.0f), cosines = w.tensor(DType::f32, {s.length, d / 2}, 0.0f),
             sines = w.tensor(DType::f32, {s.length, d / 2}, 0.0f);
  std::vector<float> c(static_cast<size_t>(cosines.count())), z(c.size());
  for (int64_t p = 0; p < s.length; ++p) {
    for (int64_t i = 0; i < d / 2; ++i) {
      const double angle =
          static_cast<double>(p) * std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(d));
      c[static_cast<size_t>(p * (d / 2) + i)] = static_cast<float>(std::cos(angle));
      z[static_cast<size_t>(p * (d / 2) + i)] = static_cast<float>(std::sin(angle));
    }
  }
  w.write(cosines, c.data()), w.write(sines, z.data());
  const View before = w.tensor(t, {n, s.hidden}, 0.0f);
  w.ops().cast(w.exec(), {data, before});
  const Rotary op = {.data = data,
                     .layout = {0, s.length * s.hidden, s.hidden, d, 0},
                     .batch = s.batch,
                     .length = s.length,
                     .groups = s.heads,
                     .heads_per_group = 1,
                     .rot_dim = d,
                     .cos = cosines,
                     .sin = sines};
  return make_case(
      w, t, 2.0 * bytes_of({data}), 2.0, data, [=, &w] { w.ops().rotary(w.exec(), op); },
      [=, &w](int64_t r, int64_t q) {
        const int64_t i = q % d, pair = i % (d / 2), p = r % s.length, head = q - i;
        const double a = w.at(before, r, head + pair), b = w.at(before, r, head + pair + d / 2);
        const double cosine = w.at(cosines, p, pair), sine = w.at(sines, p, pair);
        return i < d / 2 ? a * cosine - b * sine : b * cosine + a * sine;
      });
}

OpCase cross_entropy_case(Workbench& w, DType t, int64_t n, int64_t vocab) {
  const View logits = w.tensor(t, {n, vocab}, 1.0f), before = w.tensor(t, {n, vocab}, 0.0f),
             targets = w.integers(n, vocab), weight = w.tensor(DType::f32, {n}, 0.0f),
             loss = w.tensor(DType::f32, {n}, 0.0f), scale = w.tensor(DType::f32, {1}, 0.0f);
  w.ops().cast(w.exec(), {logits, before});
  w.ops().fill_constant(w.exec(), {weight, 1.0f});
  w.ops().fill_constant(w.exec(), {scale, 1.0f});
  const CrossEntropy op = {.logits = logits,
                           .targets = targets,
                           .row_weight = weight,
                           .loss = loss,
                           .dlogits_scale = scale,
                           .valid_cols = vocab};
  return make_case(
      w, t, 2.0 * bytes_of({logits}), static_cast<double>(vocab), loss,
      [=, &w] { w.ops().cross_entropy(w.exec(), op); },
      [=, &w](int64_t, int64_t row) {
        const auto at = [&](int64_t c) { return w.at(before, row, c); };
        return oracle::softmax_row(vocab, at).loss(at(static_cast<int64_t>(w.at(targets, 0, row))));
      });
}

OpCase bias_gradient_case(Workbench& w, DType t, int64_t n, int64_t f) {
  const View dy = w.tensor(t, {n, f}, 1.0f), dbias = w.tensor(DType::f32, {f}, 0.0f);
  return make_case(
      w, t, bytes_of({dy}), static_cast<double>(n), dbias,
      [=, &w] {
        w.ops().bias_gradient(w.exec(), {dy, dbias});
      },
      [=, &w](int64_t, int64_t c) {
        double sum = 0.0;
        for (int64_t r = 0; r < n; ++r) sum += w.at(dy, r, c);
        return sum;
      });
}

OpCase embedding_case(Workbench& w, DType t, const ModelShape& s, bool backward) {
  const int64_t n = s.batch * s.length;
  const View tokens = w.integers(n, s.vocab), x = w.tensor(t, {n, s.hidden}, backward ? 1.0f : 0.0f);
  const View table =
      backward ? w.tensor(DType::f32, {s.vocab, s.hidden}, 0.0f) : w.tensor(t, {s.vocab, s.hidden}, 1.0f);
  const auto row_of = [=, &w](int64_t token) { return static_cast<int64_t>(w.at(tokens, 0, token)); };
  if (!backward) {
    const EmbeddingForward op = {.tokens = tokens, .table = table, .x = x, .length = s.length};
    return make_case(
        w, t, 2.0 * bytes_of({x}), 1.0, x, [=, &w] { w.ops().embedding_forward(w.exec(), op); },
        [=, &w](int64_t r, int64_t c) { return w.at(table, row_of(r), c); });
  }
  const EmbeddingBackward op = {.tokens = tokens, .dx = x, .dtable = table, .length = s.length};
  // Rows that occur are read and written in fp32.
  return make_case(
      t, bytes_of({x}) + 2.0 * static_cast<double>(std::min(n, s.vocab) * s.hidden) * 4.0, static_cast<double>(n),
      [=, &w] { w.ops().embedding_backward(w.exec(), op); },
      [=, &w] {
        return sampled_error(
            n, s.hidden, [&](int64_t r, int64_t c) { return w.at(table, row_of(r), c); },
            [&](int64_t r, int64_t c) {
              double sum = 0.0;
              for (int64_t i = 0; i < n; ++i) sum += row_of(i) == row_of(r) ? w.at(x, i, c) : 0.0;
              return sum;
            });
      });
}

OpCase adamw_case(Workbench& w, DType t, int64_t n) {
  const View master = w.tensor(DType::f32, {n}, 1.0f), m = w.tensor(DType::f32, {n}, 0.0f),
             v = w.tensor(DType::f32, {n}, 0.0f), gradient = w.tensor(DType::f32, {n}, 1.0f),
             state = w.tensor(DType::u8, {static_cast<int64_t>(sizeof(StepState))}, 0.0f),
             before = w.tensor(DType::f32, {n}, 0.0f);
  const View working = t == DType::f32 ? View{} : w.tensor(t, {n}, 0.0f);
  w.ops().cast(w.exec(), {master, before});
  StepState now;
  now.lr = 1e-3f, now.bias_correction1 = 0.1f, now.bias_correction2 = 1e-3f, now.weight_decay = 0.1f;
  w.write(state, &now);
  const auto spans = std::make_shared<std::vector<DecaySpan>>(1, DecaySpan{0, n, 1.0f});
  return make_case(
      w, DType::f32, 7.0 * bytes_of({master}) + (working ? bytes_of({working}) : 0.0), 8.0, master,
      [=, &w] {
        w.ops().adamw(w.exec(), {.master = master,
                                 .m = m,
                                 .v = v,
                                 .gradient = gradient,
                                 .working = working,
                                 .state = state,
                                 .spans = *spans});
      },
      [=, &w](int64_t, int64_t c) {
        const double g = w.at(gradient, 0, c), p = w.at(before, 0, c);
        return p - 1e-3 * (g / (std::abs(g) + 1e-8) + 0.1 * p);
      });
}

OpCase sum_squares_case(Workbench& w, int64_t n) {
  const View x = w.tensor(DType::f32, {n}, 1.0f), out = w.tensor(DType::f64, {1}, 0.0f);
  return make_case(
      DType::f32, bytes_of({x}), 1.0,
      [=, &w] {
        w.ops().sum_squares(w.exec(), {x, out});
      },
      [=, &w] {
        double sum = 0.0;
        for (int64_t i = 0; i < n; ++i) sum += std::pow(w.at(x, 0, i), 2);
        return std::abs(w.at(out, 0, 0) - sum) / sum;
      });
}

}  // namespace

void list_memory_cases(const ModelShape& s, DType t, std::vector<NamedCase>& list) {
  const int64_t n = s.batch * s.length, h = s.hidden, f = 4 * h;
  const auto add = [&](const char* op, std::function<OpCase(Workbench&)> make) {
    list.push_back({std::string(op) + "/" + s.name, std::move(make)});
  };
  add("gelu_forward", [=](Workbench& w) { return gelu_forward_case(w, t, n, f); });
  add("norm_forward", [=](Workbench& w) { return norm_forward_case(w, t, n, h); });
  add("copy", [=](Workbench& w) { return copy_case(w, t, n, f); });
  add("add_rms_norm", [=](Workbench& w) { return add_norm_case(w, t, n, h); });
  add("norm_backward", [=](Workbench& w) { return norm_backward_case(w, t, n, h); });
  add("gelu_backward", [=](Workbench& w) { return gelu_backward_case(w, t, n, f); });
  add("swiglu_forward", [=](Workbench& w) { return swiglu_case(w, t, n, f, false); });
  add("swiglu_backward", [=](Workbench& w) { return swiglu_case(w, t, n, f, true); });
  add("rotary", [=](Workbench& w) { return rotary_case(w, t, s); });
  add("cross_entropy", [=](Workbench& w) { return cross_entropy_case(w, t, std::min<int64_t>(n, 4096), s.vocab); });
  add("bias_gradient", [=](Workbench& w) { return bias_gradient_case(w, t, n, f); });
  add("embedding_forward", [=](Workbench& w) { return embedding_case(w, t, s, false); });
  add("embedding_backward", [=](Workbench& w) { return embedding_case(w, t, s, true); });
  const int64_t parameters = std::min<int64_t>(12 * h * h * (s.batch > 1 ? 8 : 1), int64_t{64} << 20);
  add("adamw", [=](Workbench& w) { return adamw_case(w, t, parameters); });
  add("sum_squares", [=](Workbench& w) { return sum_squares_case(w, parameters); });
}

}  // namespace thinwire
