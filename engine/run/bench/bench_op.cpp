// The cases of `bench op`: one op, one shape of a real model, one dtype; proved on sampled outputs, then timed.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/core/cpus.h"
#include "engine/base/core/error.h"
#include "engine/base/core/text.h"
#include "engine/run/bench/bench_op_cases.h"
#include "engine/run/bench/benches.h"
#include "engine/run/bench/op_oracles.h"

namespace thinwire {
namespace {

constexpr ModelShape kModels[] = {
    {"char", 64, 256, 384, 6, 256}, {"124m", 1, 1024, 768, 12, 50304}, {"llama_1b", 1, 1024, 2048, 32, 32000}};
// Attention of a long sequence, all at once (0) and in parts of so many tokens, as layers that take chunks call it.
constexpr ModelShape kLongModel = {"4k", 1, 4096, 128, 4, 0};
constexpr int64_t kParts[] = {0, 1024, 2048};
constexpr ModelShape kLargeLongModel = {"64k", 1, 65536, 2048, 16, 0};
constexpr int64_t kLargeParts[] = {0, 8192};
// What a GPU is asked for at once.
constexpr ModelShape kLargeModels[] = {{"124m_b32", 32, 1024, 768, 12, 50304},
                                       {"llama_1b_b8", 8, 2048, 2048, 32, 128256}};

OpCase matmul_case(Workbench& w, DType t, DType c_type, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
                   bool accumulate) {
  const View a = ta ? w.tensor(t, {k, m}, 1.0f) : w.tensor(t, {m, k}, 1.0f);
  const View b = tb ? w.tensor(t, {n, k}, 1.0f) : w.tensor(t, {k, n}, 1.0f);
  const View c = w.tensor(c_type, {m, n}, 0.0f);
  OpCase o;
  o.dtype = t;
  o.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  o.bytes = static_cast<double>(a.bytes() + b.bytes() + c.bytes());
  o.run = [=, &w] {
    w.ops().matmul(w.exec(), {.a = a, .b = b, .c = c, .trans_a = ta, .trans_b = tb, .accumulate = accumulate});
  };
  o.error = [=, &w] {  // right after the first run: c was zero
    return sampled_error(
        m, n, [&](int64_t r, int64_t q) { return w.at(c, r, q); },
        [&](int64_t r, int64_t q) {
          double sum = 0.0;
          for (int64_t i = 0; i < k; ++i)
            sum += (ta ? w.at(a, i, r) : w.at(a, r, i)) * (tb ? w.at(b, q, i) : w.at(b, i, q));
          return sum;
        });
  };
  o.tolerance = tolerance_of(c_type, static_cast<double>(k)) * 2.0;  // sampled maximum, not the whole matrix's
  return o;
}

// One attention, whole or as layers that take `part` tokens at a time call it: the keys up to theirs part by part, the
// last queries first in the backward pass, sums of a 16-bit type in fp32.
struct AttentionBench {
  Workbench& w;
  int64_t part;  // 0: whole
  AttentionForward fore;
  AttentionBackward back;
  View out_sum, d_sum;  // [part, hidden] and [n, width]; empty in fp32

  template <typename Op>
  Op part_of(Op op, int64_t q) const {
    const int64_t heads = op.shape.heads();
    op.shape.length = op.shape.q_len, op.shape.first_query = q;
    op.shape.q_len = part, op.shape.kv_len = q + part, op.keys_at_once = part;
    op.q_at.offset += q * op.q_at.token;
    op.out = op.out.row_range(q, part), op.lse = op.lse.element_range(q * heads, part * heads);
    return op;
  }
  void forward() const {
    if (part == 0) return w.ops().attention_forward(w.exec(), fore);
    for (int64_t q = 0; q < fore.shape.q_len; q += part) {
      AttentionForward op = part_of(fore, q);
      const View rows = op.out;
      if (out_sum) op.out = out_sum;
      w.ops().attention_forward(w.exec(), op);
      if (out_sum) w.ops().cast(w.exec(), {out_sum, rows});
    }
  }
  void backward() const {
    if (part == 0) return w.ops().attention_backward(w.exec(), back);
    for (int64_t end = back.shape.q_len, q = end - part; q >= 0; q -= part) {
      AttentionBackward op = part_of(back, q);
      op.dout = back.dout.row_range(q, part), op.add_dkv = q + part < end;
      if (d_sum) op.dq = op.dk = op.dv = d_sum;
      w.ops().attention_backward(w.exec(), op);
      if (d_sum) w.ops().cast(w.exec(), {d_sum.row_range(q, part), back.dq.row_range(q, part)});
    }
  }
};

OpCase attention_case(Workbench& w, const ModelShape& s, DType t, bool backward, int64_t part = 0) {
  const int64_t d = s.hidden / s.heads, width = 3 * s.hidden, n = s.batch * s.length;
  const View qkv = w.tensor(t, {n, width}, 1.0f), out = w.tensor(t, {n, s.hidden}, 0.0f),
             dout = w.tensor(t, {n, s.hidden}, 1.0f);
  const View dqkv = w.tensor(t, {n, width}, 0.0f), lse = w.tensor(DType::f32, {s.batch * s.heads, s.length}, 0.0f);
  const AttentionShape shape{s.batch, s.length, s.length, s.heads, 1, d};
  const HeadLayout q{0, s.length * width, width, 3 * d, d}, k{d, s.length * width, width, 3 * d, 0},
      v{2 * d, s.length * width, width, 3 * d, 0};
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  OpCase o;
  o.dtype = t;
  o.flops = (backward ? 10.0 : 4.0) * static_cast<double>(s.batch * s.length * s.length / 2 * s.hidden);
  o.bytes = static_cast<double>(qkv.bytes() + out.bytes());
  AttentionBackward back;
  back.shape = shape, back.scale = scale, back.q = back.k = back.v = qkv, back.q_at = q, back.k_at = k, back.v_at = v;
  back.out = out, back.lse = lse, back.dout = dout, back.dq = back.dk = back.dv = dqkv;
  AttentionBench bench{w, part, {shape, scale, qkv, qkv, qkv, q, k, v, out, lse, {}}, back, {}, {}};
  if (part > 0 && t != DType::f32) {
    bench.out_sum = w.tensor(DType::f32, {part, s.hidden}, 0.0f);
    if (backward) bench.d_sum = w.tensor(DType::f32, {n, width}, 0.0f);
  }
  if (backward) bench.forward();
  o.run = [=] { backward ? bench.backward() : bench.forward(); };
  const View lse_list(lse.data, lse.dtype, {lse.count(), 1});
  const auto probability = [=, &w](int64_t row, int64_t head, int64_t key) {
    const int64_t base = row / s.length * s.length;
    double score = 0.0;
    for (int64_t i = 0; i < d; ++i)
      score += w.at(qkv, row, head * 3 * d + i) * w.at(qkv, base + key, head * 3 * d + d + i);
    const int64_t rows = part > 0 ? part : s.length;  // lse: [heads, rows], one behind the other
    return std::exp(score * scale - w.at(lse_list, (row / rows * s.heads + head) * rows + row % rows, 0));
  };
  o.error = [=, &w] {
    if (!backward) {
      return sampled_error(
          n, s.hidden, [&](int64_t r, int64_t c) { return w.at(out, r, c); },
          [&](int64_t r, int64_t c) {
            double sum = 0.0;
            for (int64_t key = 0; key <= r % s.length; ++key) {
              sum +=
                  probability(r, c / d, key) * w.at(qkv, r / s.length * s.length + key, c / d * 3 * d + 2 * d + c % d);
            }
            return sum;
          });
    }
    // dv of a key near the end of its sequence: a short sum over the queries behind it.
    return sampled_error(
        s.batch, s.hidden,
        [&](int64_t b, int64_t c) { return w.at(dqkv, (b + 1) * s.length - 4, c / d * 3 * d + 2 * d + c % d); },
        [&](int64_t b, int64_t c) {
          double sum = 0.0;
          for (int64_t r = (b + 1) * s.length - 4; r < (b + 1) * s.length; ++r) {
            sum += probability(r, c / d, s.length - 4) * w.at(dout, r, c);
          }
          return sum;
        });
  };
  o.tolerance =
      tolerance_of(t, static_cast<double>(s.length + d)) * 4.0;  // two products in a row, rounded probabilities
  return o;
}

std::vector<NamedCase> all_cases(bool large) {
  std::vector<NamedCase> list;
  const auto add = [&](const std::string& name, std::function<OpCase(Workbench&)> make) {
    list.push_back({name, std::move(make)});
  };
  const auto add_matmul = [&](const std::string& name, DType t, DType c, int64_t m, int64_t n, int64_t k, bool ta,
                              bool tb, bool accumulate = false) {
    add("matmul/" + name, [=](Workbench& w) { return matmul_case(w, t, c, m, n, k, ta, tb, accumulate); });
  };
  if (large) add_matmul("8192", DType::bf16, DType::bf16, 8192, 8192, 8192, false, true);  // what is to be had at all
  const std::span<const ModelShape> models = large ? std::span<const ModelShape>(kLargeModels) : kModels;
  for (DType t : {DType::f32, DType::bf16}) {
    if (large && t == DType::f32) continue;
    for (const ModelShape& s : models) {
      const int64_t n = s.batch * s.length, h = s.hidden;
      const std::string m = s.name;
      add_matmul(m + "/qkv", t, t, n, 3 * h, h, false, true);
      add_matmul(m + "/fc1", t, t, n, 4 * h, h, false, true);
      add_matmul(m + "/fc2", t, t, n, h, 4 * h, false, true);
      add_matmul(m + "/fc1.backward_input", t, t, n, h, 4 * h, false, false);
      add_matmul(m + "/fc1.backward_weight", t, DType::f32, 4 * h, h, n, true, false, true);
      add_matmul(m + "/head", t, t, std::min<int64_t>(n, large ? 4096 : 512), s.vocab, h, false, true);
      add("attention_forward/" + m, [=](Workbench& w) { return attention_case(w, s, t, false); });
      add("attention_backward/" + m, [=](Workbench& w) { return attention_case(w, s, t, true); });
      list_memory_cases(s, t, list);
    }
    const ModelShape& s = large ? kLargeLongModel : kLongModel;
    for (int64_t part : large ? std::span<const int64_t>(kLargeParts) : kParts) {
      const std::string m = std::string(s.name) + (part > 0 ? ".parts_of_" + std::to_string(part) : ".whole");
      add("attention_forward/" + m, [=](Workbench& w) { return attention_case(w, s, t, false, part); });
      add("attention_backward/" + m, [=](Workbench& w) { return attention_case(w, s, t, true, part); });
    }
  }
  return list;
}

// Runs are queued in bunches and waited for, so that the time of a launch hides behind the one before, as in a step.
double ms_of(const std::function<void()>& run, Workbench& w) {
  const int bunch = w.device().memory_total() > 0 ? 10 : 1;
  std::vector<double> ms;
  double total = 0.0;
  while (ms.size() < 5 || (total < 300.0 && ms.size() < 200)) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < bunch; ++i) run();
    w.stream().synchronize();
    const double took = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    ms.push_back(took / bunch);
    total += took;
  }
  return median(ms);
}

}  // namespace

int bench_op(const std::string& filter, const std::string& device, int threads, bool json) {
  if (threads <= 0) threads = usable_cpus();
  bool all_ok = true, any = false;
  std::string names;
  std::vector<NamedCase> cases = all_cases(false);
  if (device != "cpu") {
    const std::vector<NamedCase> large = all_cases(true);
    cases.insert(cases.end(), large.begin(), large.end());
    list_codec_cases(cases);
  }
  for (const NamedCase& named : cases) {
    if (names.find(" " + named.name + ",") == std::string::npos) names += " " + named.name + ",";
    if (named.name.find(filter) == std::string::npos) continue;
    any = true;
    Workbench bench(device, threads);
    const OpCase c = named.make(bench);
    c.run();
    bench.forget();
    const double error = c.error();
    const bool ok = error <= c.tolerance;
    all_ok = all_ok && ok;
    const double ms = ms_of(c.run, bench);
    const std::string command = (device == "cpu" ? "build/bench op " : "build-cuda/bench op ") + named.name +
                                (device == "cpu" ? " --threads " + std::to_string(threads) : " --device " + device);
    const nlohmann::ordered_json line = {{"bench", "op"},
                                         {"op", named.name},
                                         {"dtype", name_of(c.dtype)},
                                         {"device", device},
                                         {"threads", threads},
                                         {"ms", ms},
                                         {"gflops", c.flops / ms / 1e6},
                                         {"gbytes_per_s", c.bytes / ms / 1e6},
                                         {"rel_error", error},
                                         {"tolerance", c.tolerance},
                                         {"ok", ok},
                                         {"command", command}};
    print_line(json ? line.dump()
                    : printed("%-36s %-5s %9.3f ms %8.0f GFLOP/s %7.1f GB/s  error %.1e (%.1e) %s  | %s",
                              named.name.c_str(), std::string(name_of(c.dtype)).c_str(), ms, c.flops / ms / 1e6,
                              c.bytes / ms / 1e6, error, c.tolerance, ok ? "ok" : "FAIL", command.c_str()));
  }
  if (!any)
    throw_usage("bench op: no op's name contains \"" + filter + "\" (known:" + names.substr(0, names.size() - 1) + ")");
  return all_ok ? 0 : 70;
}

}  // namespace thinwire
