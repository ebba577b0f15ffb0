// Every verb and algorithm, plain and compressed, on 2 to 33 ranks with shuffled completions: what each rank sends to
// whom, in which order, and the bits that come out must be those of the committed table.
//
// A row of golden/routes/collectives.txt: kind, verb, then four hashes over all group sizes: of the messages to each
// peer (bytes and contents, by tag), of the order of (peer, bytes) on each rank, of the results, of the bytes counted.
// THINWIRE_ROUTE_ROWS=FILE writes a row per group size there instead (to find out which one differs), and FILE.table.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

#include "tests/comm/coded_codecs.h"
#include "tests/comm/real_codecs.h"

namespace thinwire::route_golden_test {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}
uint64_t mix(uint64_t hash, const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ p[i]) * 0x100000001B3u;
  return mix(hash, bytes);
}

struct Hashes {
  uint64_t wire = 0, order = 0, result = 0, bytes = 0;
  void add(const Hashes& other) {
    wire = mix(wire, other.wire), order = mix(order, other.order);
    result = mix(result, other.result), bytes = mix(bytes, other.bytes);
  }
};

class Recorder : public Between {
 public:
  using Between::Between;
  bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    uint64_t& stream = streams_[{peer, tag & 1}];
    stream = mix(stream, data, bytes);
    order_ = mix(mix(order_, static_cast<uint64_t>(peer)), bytes);
    return Between::post_send(data, bytes, peer, tag, token);
  }
  // What was sent since the last call.
  Hashes take() {
    Hashes hashes;
    for (const auto& [to, hash] : streams_)
      hashes.wire = mix(mix(hashes.wire, static_cast<uint64_t>(to.first * 2 + to.second)), hash);
    hashes.order = order_;
    streams_.clear(), order_ = 0;
    return hashes;
  }

 private:
  std::map<std::pair<int, int>, uint64_t> streams_;
  uint64_t order_ = 0;
};

struct Shape {
  int n = 0, nodes = 0, local = 0;
  int64_t count = 0;
  DType dtype = DType::f32;
  std::vector<int64_t> bounds;
  std::vector<int> on;
  CommTuning tuning;
};

Shape shape_of(int n, uint64_t seed) {
  std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(n));
  Shape s;
  s.n = n;
  s.local = n;
  for (int l = n / 2; l > 1; --l)
    if (n % l == 0 && s.local == n) s.local = l;
  s.nodes = n / s.local;
  for (int r = 0; r < n; ++r) s.on.push_back(s.nodes > 1 ? r / s.local : r < n - 1 ? 0 : 1);  // a prime: uneven
  s.count = 500 + static_cast<int64_t>(random() % 6000);
  const DType types[] = {DType::f32, DType::bf16, DType::f16};
  s.dtype = types[random() % 3];
  s.bounds = ragged_bounds(random, s.count, n);
  s.tuning.chunk_bytes = 256 << random() % 4;
  return s;
}

using Rows = std::map<std::string, Hashes>;  // by "kind verb"

// One rank's part: runs verbs, and keeps what each sent and gave.
class Bench {
 public:
  Bench(const Shape& shape, std::string kind, Recorder& recorder, Progress& progress, const CommTuning& tuning)
      : s(shape), rank(progress, shape.n, tuning, shape.on), recorder_(recorder), kind_(std::move(kind)) {}

  template <typename Body>
  void verb(const std::string& name, Buffer& result, const Body& body) {
    rank.counters = {};
    body();
    Hashes hashes = recorder_.take();
    hashes.result = mix(0, result.bytes().data(), result.bytes().size());
    hashes.bytes = mix(mix(0, static_cast<uint64_t>(rank.counters.wire_bytes)),
                       static_cast<uint64_t>(rank.counters.logical_bytes));
    rows[kind_ + " " + name].add(hashes);
  }
  Buffer data(DType dtype, int64_t count, uint64_t seed) const {
    Buffer buffer(dtype, count);
    buffer.fill(seed, rank.group.rank());
    return buffer;
  }
  Bounds bounds() { return bounds_in(rank.group, s.bounds); }
  int64_t first() const { return s.bounds[static_cast<size_t>(rank.group.rank())]; }
  int64_t mine() const { return s.bounds[static_cast<size_t>(rank.group.rank()) + 1] - first(); }

  const Shape& s;
  CodedRank rank;
  Rows rows;

 private:
  Recorder& recorder_;
  std::string kind_;
};

void run_plain(Bench& b, Algorithm algorithm, int n) {
  Communicator& group = b.rank.group;
  HostStream& stream = b.rank.stream;
  const Shape& s = b.s;
  const int me = group.rank();
  const auto all_reduce = [&](const char* name, DType dtype, int64_t count, ReduceKind kind) {
    Buffer data = b.data(dtype, count, 1);
    b.verb(name, data, [&] { group.all_reduce(data.view(), kind, stream).wait(stream); });
  };
  all_reduce("all_reduce", s.dtype, s.count, ReduceKind::kSum);
  all_reduce("all_reduce_max", DType::f64, s.count, ReduceKind::kMax);
  for (const bool wide : {false, true}) {
    Buffer whole = b.data(s.dtype, s.count, 2), out = b.data(wide ? DType::f32 : s.dtype, b.mine(), 3);
    b.verb(wide ? "reduce_scatter_wide" : "reduce_scatter", out,
           [&] { group.reduce_scatter(whole.view(), s.bounds, out.view(), wide, stream).wait(stream); });
  }
  for (const bool inside : {false, true}) {
    Buffer part = b.data(s.dtype, b.mine(), 4), whole(s.dtype, s.count);
    const View place = whole.view().element_range(b.first(), b.mine());
    if (inside && place.bytes() > 0) std::memcpy(place.data, part.bytes().data(), place.bytes());
    b.verb(inside ? "all_gather_inside" : "all_gather", whole,
           [&] { group.all_gather(inside ? place : part.view(), whole.view(), s.bounds, stream).wait(stream); });
  }
  if (algorithm != Algorithm::kDirect) return;
  // What has one algorithm.
  all_reduce("small_sum", DType::f64, 5, ReduceKind::kSum);
  all_reduce("small_max", DType::f64, 3, ReduceKind::kMax);
  all_reduce("small_or", DType::i32, 2, ReduceKind::kOr);
  {
    // Part r of mine has (7 me + 11 r) % 90 elements.
    std::vector<int64_t> from_bounds = {0}, to_bounds = {0};
    for (int r = 0; r < n; ++r) {
      from_bounds.push_back(from_bounds.back() + (7 * me + 11 * r) % 90);
      to_bounds.push_back(to_bounds.back() + (7 * r + 11 * me) % 90);
    }
    Buffer from = b.data(s.dtype, from_bounds.back(), 5), to(s.dtype, to_bounds.back());
    b.verb("all_to_all", to,
           [&] { group.all_to_all(from.view(), from_bounds, to.view(), to_bounds, stream).wait(stream); });
  }
  Buffer data = b.data(s.dtype, s.count, 6);
  b.verb("broadcast", data, [&] { group.broadcast(data.view(), (n - 1) / 2, stream).wait(stream); });
  b.verb("barrier", data, [&] { group.barrier().wait(stream); });
  Buffer got(s.dtype, s.count);
  b.verb("message", got, [&] {
    Ticket in = group.receive(got.view(), (me + n - 1) % n, stream),
           out = group.send(data.view(), (me + 1) % n, stream);
    in.wait(stream), out.wait(stream);
  });
}

// first: of contributions and gathers, sums: of sums on their way back and between nodes; either may be nullptr.
void run_coded(Bench& b, const Coder* first, const Coder* sums, bool levels) {
  CodedRank& rank = b.rank;
  const Shape& s = b.s;
  const int me = rank.me(), n = s.n;
  const auto state_of = [&](const Coder* coder, int64_t count) {
    return coder != nullptr ? coder->make_state(count, {}) : nullptr;
  };
  const auto reduce_scatter = [&](const std::string& name, auto task) {
    const auto state = state_of(first, s.count), second = state_of(sums, s.count);
    for (int step = 0; step < 2; ++step) {
      Buffer whole = b.data(s.dtype, s.count, 10 + static_cast<uint64_t>(step)), out = b.data(DType::f32, b.mine(), 3);
      b.verb(name, out, [&] {
        rank.run(task(rank.call(first, state.get(), step), rank.call(sums, second.get(), step), whole.view(),
                      b.bounds(), out.view(), step == 1));
      });
      if (state) state->commit();
      if (second) second->commit();
    }
  };
  const auto all_reduce = [&](const std::string& name, auto task) {
    const auto state = state_of(first, s.count), second = state_of(sums, s.count);
    for (int step = 0; step < 2; ++step) {
      Buffer data = b.data(s.dtype, s.count, 20 + static_cast<uint64_t>(step));
      b.verb(name, data, [&] {
        rank.run(task(rank.call(first, state.get(), step), rank.call(sums, second.get(), step), data.view()));
      });
      if (state) state->commit();
      if (second) second->commit();
    }
  };
  const auto all_gather = [&](const std::string& name, auto task) {
    const auto state = state_of(first, s.count);
    for (int step = 0; step < 2; ++step) {
      Buffer part = b.data(step == 0 ? DType::f32 : s.dtype, b.mine(), 30 + static_cast<uint64_t>(step));
      Buffer whole(s.dtype, s.count);
      whole.fill(99, 0);  // a reference that all share
      b.verb(name, whole,
             [&] { rank.run(task(rank.call(first, state.get(), step), part.view(), whole.view(), b.bounds())); });
      if (state) state->commit();
    }
  };
  const auto lane = [&] { return rank.group.lane(); };
  all_gather("all_gather", [&](CodedCall call, View mine, View whole, Bounds bounds) {
    return coded_all_gather(lane(), call, mine, whole, std::move(bounds));
  });
  if (levels)
    all_gather("two_level_all_gather", [&](CodedCall call, View mine, View whole, Bounds bounds) {
      return coded_all_gather(lane(), call, mine, whole, std::move(bounds), Algorithm::kTwoLevel);
    });
  if (first != nullptr && first->value_difference()) return;
  reduce_scatter("reduce_scatter", [&](CodedCall call, CodedCall, View whole, Bounds bounds, View out, bool add) {
    return coded_reduce_scatter(lane(), call, whole, std::move(bounds), out, add);
  });
  reduce_scatter("ring_reduce_scatter", [&](CodedCall call, CodedCall, View whole, Bounds bounds, View out, bool add) {
    return coded_reduce_scatter(lane(), call, whole, std::move(bounds), out, add, Algorithm::kRing);
  });
  all_reduce("all_reduce",
             [&](CodedCall call, CodedCall back, View data) { return coded_all_reduce(lane(), call, back, data); });
  all_reduce("ring_all_reduce", [&](CodedCall call, CodedCall back, View data) {
    return coded_all_reduce(lane(), call, back, data, Algorithm::kRing);
  });
  if (levels) {
    reduce_scatter("two_level_reduce_scatter", [&](CodedCall call, CodedCall outer, View whole, Bounds bounds, View out,
                                                   bool add) {
      return coded_reduce_scatter(lane(), call, whole, std::move(bounds), out, add, Algorithm::kTwoLevel, outer);
    });
    all_reduce("two_level_all_reduce", [&](CodedCall call, CodedCall back, View data) {
      return coded_all_reduce(lane(), call, back, data, Algorithm::kTwoLevel, back);
    });
  }
  {
    // With a state everybody has the same cuts.
    Buffer from = b.data(s.dtype, s.count, 40), to(s.dtype, n * b.mine());
    Bounds cuts(rank.group.pool(), n + 1);
    for (int r = 0; r <= n; ++r) cuts[r] = r * b.mine();
    const auto state = state_of(first, s.count);
    b.verb("all_to_all", to, [&] {
      rank.run(
          coded_all_to_all(lane(), rank.call(first, state.get()), from.view(), b.bounds(), to.view(), std::move(cuts)));
    });
  }
  Buffer data = b.data(s.dtype, s.count, 50), got(s.dtype, s.count);
  const auto state = state_of(first, s.count);
  const int next = (me + 1) % n, previous = (me + n - 1) % n;
  b.verb("message", got, [&] {
    CodedCall in = rank.call(first), out = rank.call(first, state.get());
    in.msg.rank = previous;
    if (state) out.packing = &rank.group.packing(1);
    Ticket arriving =
        rank.group.start(coded_receive(rank.group.lane_from(previous), in, got.view(), previous), "in", 1);
    Ticket leaving = rank.group.start(coded_send(rank.group.lane_to(next), out, data.view(), next), "out", 1);
    arriving.wait(rank.stream), leaving.wait(rank.stream);
  });
}

struct Kind {
  std::string name;
  std::shared_ptr<const Coder> first, sums;
};

std::vector<Kind> kinds() {
  const auto real = [](const char* codec, const std::function<void(CodecSpec&)>& set,
                       ResidualKind residual = ResidualKind::kNone) {
    return RealCodec{real_spec(codec, set)}.coder(residual);
  };
  const auto nothing = [](CodecSpec&) {};
  const auto identity = coder_of(make_codec({}).codec);
  const auto cast = real("cast", [](CodecSpec& s) { s["format"] = "bf16"; });
  const auto feedback = real(
      "block_int", [](CodecSpec& s) { s["bits"] = 4, s["block"] = 32; }, ResidualKind::kErrorFeedback);
  const auto ecsq = real("ecsq", [](CodecSpec& s) { s["rate"] = 2.5; });
  const auto entropy = real("entropy", nothing);
  const auto top = real(
      "top_k", [](CodecSpec& s) { s["density"] = 0.1; }, ResidualKind::kErrorFeedback);
  const auto difference = real(
      "block_int", [](CodecSpec& s) { s["block"] = 64; }, ResidualKind::kValueDifference);
  const auto mpc = real("mpc", nothing);
  // Draws: the same on all ranks, and by rank.
  const auto random =
      real("random_k", [](CodecSpec& s) { s["density"] = 0.25, s["block"] = 256, s["rounding"] = "stochastic"; });
  const auto dither =
      real("block_int", [](CodecSpec& s) { s["bits"] = 4, s["block"] = 64, s["rounding"] = "stochastic"; });
  return {{"none", nullptr, nullptr},   {"identity", identity, identity},
          {"cast", cast, cast},         {"feedback", feedback, cast},
          {"ecsq", ecsq, ecsq},         {"entropy", entropy, cast},
          {"top_k", top, nullptr},      {"difference", difference, nullptr},
          {"lossless", mpc, entropy},   {"back", nullptr, feedback},
          {"random_k", random, random}, {"dither", dither, dither}};
}

std::string text_of(const std::string& name, const Hashes& h) {
  std::ostringstream out;
  out << name << std::hex << " " << h.wire << " " << h.order << " " << h.result << " " << h.bytes;
  return out.str();
}

void run_case(int n, const std::string& kind, const std::function<void(Bench&)>& body, const CommTuning& tuning,
              std::map<std::string, std::map<int, Hashes>>& all) {
  const Shape s = shape_of(n, 5);
  std::vector<Rows> rows(static_cast<size_t>(n));
  run_local_ranks(
      n,
      [&](Transport& transport) {
        Recorder recorder(transport);
        Progress progress(recorder, {.thread = false, .spin_us = 0});
        Bench bench(s, kind, recorder, progress, tuning);
        body(bench);
        rows[static_cast<size_t>(transport.rank())] = bench.rows;
      },
      static_cast<uint64_t>(n) + 1);
  for (const Rows& of_rank : rows)
    for (const auto& [name, hashes] : of_rank) all[name][n].add(hashes);
}

TEST(RouteGolden, SendsAndSumsWhatTheTableSays) {
  std::map<std::string, std::map<int, Hashes>> all;
  for (const int n : {2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 33}) {
    const std::pair<const char*, Algorithm> algorithms[] = {
        {"plain-direct", Algorithm::kDirect}, {"plain-ring", Algorithm::kRing}, {"plain-levels", Algorithm::kTwoLevel}};
    for (const auto& [name, algorithm] : algorithms) {
      if (n > 12 && algorithm == Algorithm::kRing && n != 33) continue;
      CommTuning tuning = shape_of(n, 5).tuning;
      tuning.all_reduce = tuning.reduce_scatter = tuning.all_gather = algorithm;
      tuning.small_bytes = 64;
      const Algorithm which = algorithm;
      run_case(
          n, name, [&](Bench& b) { run_plain(b, which, n); }, tuning, all);
    }
  }
  for (const Kind& kind : kinds()) {
    for (const int n : {2, 3, 4, 6, 9, 16}) {
      const Shape s = shape_of(n, 5);
      run_case(
          n, kind.name, [&](Bench& b) { run_coded(b, kind.first.get(), kind.sums.get(), s.nodes > 1); }, s.tuning, all);
    }
  }
  const auto folded = [](const std::map<int, Hashes>& sizes) {
    Hashes sum;
    for (const auto& [n, hashes] : sizes) sum.add(hashes);
    return sum;
  };
  if (const char* file = std::getenv("THINWIRE_ROUTE_ROWS")) {
    std::ofstream out(file), table(std::string(file) + ".table");
    for (const auto& [name, sizes] : all) {
      table << text_of(name, folded(sizes)) << "\n";
      for (const auto& [n, hashes] : sizes) out << text_of(name + " " + std::to_string(n), hashes) << "\n";
    }
    return;
  }
  std::ifstream in(GOLDEN_ROUTES);
  std::map<std::string, std::string> table;
  for (std::string line; std::getline(in, line);) {
    const size_t end = line.find(' ', line.find(' ') + 1);
    if (line.empty() || line[0] == '#') continue;
    table[line.substr(0, end)] = line;
  }
  EXPECT_EQ(table.size(), all.size());
  for (const auto& [name, sizes] : all) {
    EXPECT_EQ(text_of(name, folded(sizes)), table[name]);
  }
}

}  // namespace
}  // namespace thinwire::route_golden_test
