// What low rank's tests share: ranks that sum, saved states, PowerSGD in double, a boundary of a pipeline.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compression/codecs/low_rank.h"
#include "tests/codecs/codec_laws.h"
#include "tests/support/worst.h"

namespace thinwire::test {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Shapes = std::vector<MatrixShape>;

inline CodecSpec spec_of(int64_t rank, int64_t sides = 2, double rate = 1.0) {
  return {"low_rank", {{"rank", rank}, {"sides", sides}, {"min_compression_rate", rate}}};
}

// The length of a payload, exactly; for sides 1 of its longer kind.
inline size_t low_rank_wire_bytes(const CodecSpec& spec, int64_t count, std::span<const MatrixShape> matrices) {
  const LowRankLayout layout(spec, count, matrices);
  const int64_t factors =
      spec.integer("sides") == 2 ? layout.p_count + layout.q_count : std::max(layout.p_count, layout.q_count);
  return static_cast<size_t>(factors + layout.raw_count) * sizeof(float);
}

inline Msg msg_of(const Shapes& shapes, int threads = 1) {
  Msg msg;
  msg.seed = 42;
  msg.slot = 7;
  msg.threads = threads;
  msg.matrices = shapes;
  return msg;
}

inline View view_of(const Floats& x) {
  return View(const_cast<float*>(x.data()), DType::f32, {static_cast<int64_t>(x.size())});
}

inline Floats gaussian(int64_t n, unsigned seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  Floats x(static_cast<size_t>(n));
  for (float& v : x) v = static_cast<float>(normal(rng));
  return x;
}

inline double norm(const Floats& x) {
  return std::sqrt(square_sum(x));
}

inline bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// ---- state as a checkpoint sees it

struct Saved final : StateVisitor {
  std::map<std::string, Floats> tensors;
  std::map<std::string, int64_t> integers;
  bool loading = false;
  void tensor(const GlobalSlice& s) override {
    float* at = s.local.as<float>();
    if (loading)
      std::copy(tensors.at(s.name).begin(), tensors.at(s.name).end(), at);
    else
      tensors[s.name] = Floats(at, at + s.local.count());
  }
  void integer(const std::string& name, int64_t& value) override {
    if (loading)
      value = integers.at(name);
    else
      integers[name] = value;
  }
  void real(const std::string&, double&) override { FAIL(); }
  void text(const std::string&, std::string&) override { FAIL(); }
  bool operator==(const Saved& other) const { return tensors == other.tensors && integers == other.integers; }
};

inline Saved saved(CompressionState& state) {
  Saved saved;
  state.visit(saved, "x/");
  return saved;
}

inline void load(CompressionState& state, Saved saved) {
  saved.loading = true;
  state.visit(saved, "x/");
}

// ---- ranks that sum

class Group {
 public:
  Group(const CodecSpec& spec, int ranks, int64_t count, Shapes shapes)
      : codec(make_codec(spec).rounds), count_(count), shapes_(std::move(shapes)) {
    for (int w = 0; w < ranks; ++w) states.push_back(codec->make_state(count, shapes_));
  }
  // One message. x[w] becomes rank w's error if `errors`. Returns the decoded sum, the same on all ranks.
  Floats sum(std::vector<Floats>& x, bool errors = false, Msg msg = {}) {
    const Msg filled = msg_of(shapes_, msg.threads);
    msg.seed = filled.seed, msg.slot = filled.slot, msg.matrices = filled.matrices;
    finite.assign(x.size(), true);
    elements = 0;
    for (int r = 0; r < codec->rounds(); ++r) {
      Floats total;
      for (size_t w = 0; w < x.size(); ++w) {
        msg.rank = static_cast<int>(w), msg.ranks = static_cast<int>(x.size());
        const Round round = codec->round(r, msg, count_, *states[w]);
        EXPECT_EQ(round.dtype, DType::f32);
        EXPECT_LE(round.count, codec->bound(r, count_, msg.ranks, shapes_));
        Floats payload(static_cast<size_t>(round.count));
        finite[w] = codec->pack(r, msg, view_of(x[w]), view_of(payload), *states[w]) && finite[w];
        if (w == 0) {
          total = payload;
          elements += round.count;
          continue;
        }
        EXPECT_EQ(total.size(), payload.size());
        for (size_t e = 0; e < total.size(); ++e) total[e] += payload[e];
      }
      payloads = r == 0 ? std::vector<Floats>{total} : std::vector<Floats>{payloads[0], total};
      for (auto& state : states) codec->absorb(r, msg, view_of(total), 0, *state);
    }
    Floats decoded(static_cast<size_t>(count_)), again = decoded;
    codec->result(msg, 0, view_of(decoded), false, *states[0]);
    for (auto& state : states) {
      codec->result(msg, 0, view_of(again), false, *state);
      EXPECT_TRUE(same_bits(again, decoded)) << "replicas differ";
    }
    for (size_t w = 0; errors && w < x.size(); ++w) codec->own_error(msg, view_of(x[w]), *states[w]);
    return decoded;
  }
  void commit() {
    for (auto& state : states) state->commit();
  }

  std::shared_ptr<const RoundCodec> codec;
  std::vector<std::unique_ptr<CompressionState>> states;
  std::vector<Floats> payloads;  // reduced, per round
  std::vector<bool> finite;      // what pack said, per rank
  int64_t elements = 0;          // of all rounds' payloads

 private:
  int64_t count_;
  Shapes shapes_;
};

// ---- PowerSGD in double: matrices as rows of columns, Gram-Schmidt twice

struct Oracle {
  int64_t n = 0, m = 0, r = 0;
  double condition = 1.0;  // of what was orthonormalised: largest column over the least that stood out
  // a [len, r], column by column.
  void orthonormalize(Doubles& a, int64_t len) {
    double largest = 0.0, least = std::numeric_limits<double>::infinity();
    for (int64_t c = 0; c < r; ++c) {
      const auto at = [&](int64_t i, int64_t k) -> double& { return a[static_cast<size_t>(i * r + k)]; };
      double before = 0.0, after = 0.0;
      for (int64_t i = 0; i < len; ++i) before += at(i, c) * at(i, c);
      for (int64_t k = 0; k < 2 * c; ++k) {
        double d = 0.0;
        for (int64_t i = 0; i < len; ++i) d += at(i, k % c) * at(i, c);
        for (int64_t i = 0; i < len; ++i) at(i, c) -= d * at(i, k % c);
      }
      for (int64_t i = 0; i < len; ++i) after += at(i, c) * at(i, c);
      for (int64_t i = 0; i < len; ++i) at(i, c) /= std::sqrt(after);
      largest = std::max(largest, std::sqrt(before)), least = std::min(least, std::sqrt(after));
    }
    condition = std::max(condition, largest / least);
  }
  Doubles times(const Doubles& x, const Doubles& q) const {
    Doubles p(static_cast<size_t>(n * r));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j)
        for (int64_t c = 0; c < r; ++c)
          p[static_cast<size_t>(i * r + c)] += x[static_cast<size_t>(i * m + j)] * q[static_cast<size_t>(j * r + c)];
    return p;
  }
  Doubles transposed_times(const Doubles& x, const Doubles& p) const {
    Doubles q(static_cast<size_t>(m * r));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j)
        for (int64_t c = 0; c < r; ++c)
          q[static_cast<size_t>(j * r + c)] += x[static_cast<size_t>(i * m + j)] * p[static_cast<size_t>(i * r + c)];
    return q;
  }
  Doubles product(const Doubles& p, const Doubles& q) const {
    Doubles out(static_cast<size_t>(n * m));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j)
        for (int64_t c = 0; c < r; ++c)
          out[static_cast<size_t>(i * m + j)] += p[static_cast<size_t>(i * r + c)] * q[static_cast<size_t>(j * r + c)];
    return out;
  }
  // warm: our factor, r vectors one behind the other.
  Doubles factor(const float* warm, int64_t len) const {
    Doubles f(static_cast<size_t>(len * r));
    for (int64_t c = 0; c < r; ++c)
      for (int64_t i = 0; i < len; ++i) f[static_cast<size_t>(i * r + c)] = warm[c * len + i];
    return f;
  }
};

inline double relative_distance(const Floats& a, const Doubles& b, double scale) {
  double s = 0.0;
  for (size_t i = 0; i < a.size(); ++i) s += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(s) / scale;
}

// One boundary of a pipeline: gradients with a part in common (of rank 12, more than the codec's 3) and noise.
struct Boundary {
  static constexpr int64_t kRows = 32, kCols = 24;
  Floats common = Floats(static_cast<size_t>(kRows * kCols));
  Boundary() {
    const Floats u = gaussian(kRows * 12, 1), v = gaussian(kCols * 12, 2);
    for (int64_t c = 0; c < 12; ++c)
      for (int64_t i = 0; i < kRows; ++i)
        for (int64_t j = 0; j < kCols; ++j)
          common[static_cast<size_t>(i * kCols + j)] += u[static_cast<size_t>(c * kRows + i)] *
                                                        v[static_cast<size_t>(c * kCols + j)] /
                                                        static_cast<float>((1 + c) * (1 + c));
  }
  Floats gradient(int k) const {
    Floats g = gaussian(kRows * kCols, static_cast<unsigned>(1000 + k));
    for (size_t e = 0; e < g.size(); ++e) g[e] = common[e] + 0.3f * g[e];
    return g;
  }
};

struct Sent {
  std::vector<Floats> g, decoded, error;  // per message
};

inline Sent send(int messages, bool lazy) {
  const Boundary boundary;
  const Shapes shapes = {{0, Boundary::kRows, Boundary::kCols}};
  const auto codec = make_codec(spec_of(3)).codec;
  const int64_t count = Boundary::kRows * Boundary::kCols;
  const auto state = codec->make_state(count, shapes);
  Sent sent;
  Floats e(static_cast<size_t>(count));
  for (int k = 0; k < messages; ++k) {
    Floats x = boundary.gradient(k), y(x.size());
    sent.g.push_back(x);
    for (size_t i = 0; i < x.size(); ++i) x[i] += e[i];
    Bytes payload(codec->wire_bytes(count, DType::f32));
    payload.resize(codec->encode(msg_of(shapes), view_of(x), payload, state.get()).bytes);
    codec->decode(msg_of(shapes), payload, view_of(y), false);
    state->commit();
    sent.decoded.push_back(y);
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] - y[i];
    if (lazy) e = y;
    sent.error.push_back(y);
  }
  return sent;
}

// |sum (g - decoded)| / |sum g|, and whether it is the last error.
inline double bias(const Sent& sent, bool check_identity) {
  Doubles missing(sent.g[0].size()), total = missing;
  double largest = 0.0;
  for (size_t k = 0; k < sent.g.size(); ++k) {
    for (size_t i = 0; i < missing.size(); ++i) {
      missing[i] += static_cast<double>(sent.g[k][i]) - sent.decoded[k][i];
      total[i] += sent.g[k][i];
      largest = std::max(
          {largest, std::fabs(static_cast<double>(sent.g[k][i])), std::fabs(static_cast<double>(sent.error[k][i]))});
    }
  }
  double off = 0.0, square = 0.0, all = 0.0;
  for (size_t i = 0; i < missing.size(); ++i) {
    off = worse(off, std::fabs(missing[i] - sent.error.back()[i]));
    square += missing[i] * missing[i], all += total[i] * total[i];
  }
  // Per message two roundings: g + e and x - decoded, each of numbers of at most twice the largest.
  if (check_identity) {
    EXPECT_LE(off, static_cast<double>(sent.g.size()) * 2.0 * 0x1p-24 * 2.0 * largest);
  }
  return std::sqrt(square / all);
}

}  // namespace thinwire::test
