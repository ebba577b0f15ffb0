// The cases of `bench codec`: a codec at a size, proved and timed in turns with memcpy; a codec's fidelity on eight
// data sets.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "compression/codec_table.h"
#include "compression/coder.h"
#include "compression/data_kinds.h"
#include "engine/base/core/error.h"
#include "engine/base/core/text.h"
#include "engine/run/bench/bench_codec_data.h"
#include "engine/run/bench/bench_codec_peers.h"
#include "engine/run/bench/benches.h"
#include "engine/run/bench/codec_oracles.h"

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;
constexpr int64_t kSizes[] = {64 << 10, 1 << 20, 64 << 20};
constexpr int64_t kRows = 1024, kCols = 1920;  // of low_rank's one size
constexpr int64_t kValues = 1 << 20;           // per synthetic data set
constexpr int64_t kTrainedSteps = 60;
constexpr int kMessages = 8;              // that error feedback gets to show what it keeps
constexpr double kBlockSeconds = 1.5e-3;  // calls timed in one go
constexpr double kCaseSeconds = 0.7;

enum class Way { kCodec, kCoder, kRounds };

struct Subject {
  std::string name;
  CodecSpec spec;
  ResidualSpec residual;
  Way way = Way::kCodec;
  MadeCodec made;
};

// ---- one message after another through a subject -------------------------------------------------------------------
class Line {
 public:
  Line(const Subject& subject, int64_t count, std::span<const MatrixShape> matrices)
      : subject_(subject), count_(count), matrices_(matrices.begin(), matrices.end()) {
    msg_.seed = 42, msg_.slot = 7, msg_.matrices = matrices_;
    if (subject.way == Way::kCoder) coder_.emplace(subject.made.codec, subject.spec, subject.residual);
    if (subject.way == Way::kRounds) {
      state_ = subject.made.rounds->make_state(count, matrices_);
      for (int r = 0; r < subject.made.rounds->rounds(); ++r)
        rounds_.emplace_back(static_cast<size_t>(subject.made.rounds->bound(r, count, 1, matrices_)) * sizeof(float));
    } else {
      state_ = coder_ ? coder_->make_state(count, matrices_) : subject.made.codec->make_state(count, matrices_);
      formula_ = coder_ ? coder_->wire_bytes(count, DType::f32) : subject.made.codec->wire_bytes(count, DType::f32);
      payload_.resize(formula_);
    }
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void next_step() { ++msg_.step; }
  size_t bytes() const { return bytes_; }
  std::span<const std::byte> payload() const { return {payload_.data(), payload_.size() > 0 ? bytes_ : 0}; }
  bool flagged() const { return flagged_; }
  // Whether the payload has the length that the formula gives (framed codecs: at most that).
  bool formula_holds() const {
    const bool low_rank = subject_.spec.codec == "low_rank" && subject_.spec.integer("sides") == 2;
    if (low_rank && bytes_ != low_rank_bytes()) return false;
    if (subject_.way == Way::kRounds) return rounds_within_;
    return subject_.made.codec->traits().framed ? bytes_ <= formula_ : bytes_ == formula_;
  }

  // x [count] fp32 stays unchanged. Rounds: with the reductions of a group of one, which are copies.
  void encode(const float* x) {
    const View in(const_cast<float*>(x), DType::f32, {count_});
    if (subject_.way == Way::kRounds) return encode_rounds(in);
    if (coder_) {
      bytes_ = coder_->pack(msg_, in, {}, payload_, state_.get(), stats_);
      flagged_ = stats_.non_finite > 0;
    } else {
      const Encoded e = subject_.made.codec->encode(msg_, in, payload_, state_.get());
      bytes_ = e.bytes, flagged_ = e.non_finite;
    }
    if (state_) state_->commit();
  }
  void decode(float* y) {
    const View out(y, DType::f32, {count_});
    if (subject_.way == Way::kRounds) return subject_.made.rounds->result(msg_, 0, out, false, *state_);
    if (!coder_) return subject_.made.codec->decode(msg_, payload(), out, false);
    const Share share{payload(), {}, 0};
    coder_->absorb(msg_, {&share, 1}, out, false, stats_);
  }

 private:
  void encode_rounds(const View& in) {
    const RoundCodec& codec = *subject_.made.rounds;
    if (started_) state_->commit();  // the message before: its result has been read
    started_ = true;
    bytes_ = 0;
    for (int r = 0; r < codec.rounds(); ++r) {
      const Round round = codec.round(r, msg_, count_, *state_);
      rounds_within_ = rounds_within_ && round.count <= codec.bound(r, count_, 1, matrices_);
      const View payload(rounds_[static_cast<size_t>(r)].data(), round.dtype, {round.count});
      const bool finite = codec.pack(r, msg_, in, payload, *state_);
      if (r == 0) flagged_ = !finite;
      codec.absorb(r, msg_, payload, 0, *state_);
      bytes_ += payload.bytes();
    }
  }
  // By hand: both factors of every matrix that shrinks, and the rest.
  size_t low_rank_bytes() const {
    int64_t sent = count_;
    for (const MatrixShape& m : matrices_) {
      const int64_t rank = std::min({subject_.spec.integer("rank"), m.rows, m.cols}), thin = rank * (m.rows + m.cols);
      if (subject_.spec.real("min_compression_rate") * static_cast<double>(thin) < static_cast<double>(m.rows * m.cols))
        sent += thin - m.rows * m.cols;
    }
    return static_cast<size_t>(4 * sent);
  }

  const Subject& subject_;
  int64_t count_;
  std::vector<MatrixShape> matrices_;
  Msg msg_;
  std::optional<Coder> coder_;
  std::unique_ptr<CompressionState> state_;
  CompressionStats stats_;
  std::vector<std::byte> payload_;
  std::vector<std::vector<std::byte>> rounds_;
  size_t bytes_ = 0, formula_ = 0;
  bool flagged_ = false, rounds_within_ = true, started_ = false;
};

// ---- the list ------------------------------------------------------------------------------------------------------
// Every case of the table of codecs, by all its ways; then what Coders add.
std::vector<Subject> all_subjects() {
  std::vector<Subject> list;
  const auto add = [&](const CodecSpec& spec, Way way, ResidualKind residual = ResidualKind::kNone) {
    Subject s;
    s.spec = spec;
    s.residual.kind = residual;
    s.way = way;
    s.made = make_codec(spec);
    s.name = way == Way::kRounds  ? s.made.rounds->name()
             : way == Way::kCoder ? Coder(s.made.codec, spec, s.residual).name()
                                  : s.made.codec->name();
    if (way == Way::kCoder && residual == ResidualKind::kNone && !spec.hadamard) s.name = "coder of " + s.name;
    list.push_back(std::move(s));
  };
  for (const CodecRow& row : codec_table()) {
    bool exchanged = false;  // cases have a codec beside the rounds, which has the same name
    for (const CodecValues& values : row.cases) {
      const CodecSpec spec = codec_spec(row.name, values);
      const MadeCodec made = make_codec(spec);
      exchanged = exchanged || made.codec != nullptr;
      if (made.codec != nullptr) add(spec, Way::kCodec);
      if (made.rounds == nullptr) continue;
      add(spec, Way::kRounds);
      if (exchanged) list.back().name += " in rounds";
    }
  }
  const CodecSpec eight = codec_spec("block_int", {{"bits", 8}, {"block", 128}});
  const CodecSpec four = codec_spec("block_int", {{"bits", 4}, {"block", 32}});
  CodecSpec spread = four;
  spread.hadamard = true;
  add(eight, Way::kCoder);
  add(spread, Way::kCoder);
  add(four, Way::kCoder, ResidualKind::kErrorFeedback);
  add(spread, Way::kCoder, ResidualKind::kErrorFeedback);
  return list;
}

std::string command_of(const std::string& name) {
  return "build/bench codec '" + name + "'";
}

// ---- speed ---------------------------------------------------------------------------------------------------------
double seconds(const std::function<void()>& call, int64_t times) {
  const auto start = Clock::now();
  for (int64_t i = 0; i < times; ++i) call();
  return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(times);
}

// Seconds per call of each, in turns: samples[which][round].
std::vector<std::vector<double>> in_turns(const std::vector<std::function<void()>>& calls) {
  std::vector<int64_t> times;
  double round = 0.0;
  for (const auto& call : calls) {
    call();
    const double once = seconds(call, 1);
    times.push_back(static_cast<int64_t>(std::clamp(kBlockSeconds / std::max(once, 1e-8), 1.0, 20000.0)));
    round += once * static_cast<double>(times.back());
  }
  const int rounds = static_cast<int>(std::clamp(kCaseSeconds / round, 3.0, 25.0)) | 1;
  std::vector<std::vector<double>> samples(calls.size());
  for (int r = 0; r < rounds; ++r)
    for (size_t i = 0; i < calls.size(); ++i) samples[i].push_back(seconds(calls[i], times[i]));
  return samples;
}
// A ratio per round: both sides of a round meet the same speed of the machine.
double median_ratio(const std::vector<double>& over, const std::vector<double>& under) {
  std::vector<double> ratios;
  for (size_t i = 0; i < over.size(); ++i) ratios.push_back(over[i] / under[i]);
  return median(ratios);
}

std::unique_ptr<CodecPeer> peer_of(const CodecSpec& spec, int64_t count) {
  if (spec.codec == "zfp") return make_libzfp_peer(spec.real("rate"), count);
  if (spec.codec == "mpc" || spec.codec == "entropy") return make_zstd_peer(1, count);
  if (spec.codec == "low_rank" && spec.integer("sides") == 2)
    return make_products_peer(kRows, kCols, spec.integer("rank"));
  return nullptr;
}

// The first message, and with a residual the second: its input is x plus what the first one lost.
CodecVerdict proof_of(const Subject& subject, Line& line, const std::vector<float>& x, std::vector<float>& y) {
  std::vector<double> sent(x.begin(), x.end());
  CodedMessage m{subject.spec, subject.spec.hadamard, sent, y, {}, kRows, kCols};
  line.encode(x.data());
  line.decode(y.data());
  if (subject.residual.kind != ResidualKind::kNone) {
    for (size_t i = 0; i < x.size(); ++i) sent[i] += sent[i] - y[i];
    line.encode(x.data());
    line.decode(y.data());
  }
  m.payload = line.payload();
  CodecVerdict verdict = prove(m);
  if (!line.formula_holds()) verdict = {INFINITY, "the byte formula"};
  if (line.flagged()) verdict = {INFINITY, "finite input without a flag"};
  return verdict;
}

bool time_case(const Subject& subject, int64_t count, const std::string& name, bool json) {
  std::vector<float> x = make_data(DataKind::kGaussian, std::min(count, 2 * kValues));
  x.resize(static_cast<size_t>(count));  // longer ones: the same numbers again and again
  for (size_t i = static_cast<size_t>(2 * kValues); i < x.size(); ++i) x[i] = x[i - static_cast<size_t>(2 * kValues)];
  std::vector<float> y(x.size());
  const MatrixShape whole = subject.spec.codec == "low_rank" ? MatrixShape{0, kRows, kCols} : MatrixShape{0, 1, count};
  Line line(subject, count, {&whole, 1});
  const CodecVerdict verdict = proof_of(subject, line, x, y);

  const auto peer = peer_of(subject.spec, count);
  std::span<const std::byte> theirs;
  std::vector<std::function<void()>> calls = {[&] { std::memcpy(y.data(), x.data(), x.size() * sizeof(float)); },
                                              [&] { line.encode(x.data()); }, [&] { line.decode(y.data()); }};
  if (peer) {
    calls.emplace_back([&] { theirs = peer->encode(x); });
    calls.emplace_back([&] { peer->decode(theirs, y); });
  }
  const auto samples = in_turns(calls);
  const double input = 4e-9 * static_cast<double>(count);
  const auto rate = [&](size_t which) { return input / median(samples[which]); };
  const double bits = 8.0 * static_cast<double>(line.bytes()) / static_cast<double>(count);
  Json l = {{"bench", "codec"},
            {"case", name},
            {"codec", subject.name},
            {"input_bytes", 4 * count},
            {"wire_bytes", line.bytes()},
            {"bits_per_value", bits},
            {"threads", 1},
            {"memcpy_gbytes_per_s", rate(0)},
            {"encode_gbytes_per_s", rate(1)},
            {"decode_gbytes_per_s", rate(2)},
            {"encode_over_memcpy", median_ratio(samples[0], samples[1])},
            {"decode_over_memcpy", median_ratio(samples[0], samples[2])}};
  if (peer) {
    l["peer"] = {{"name", peer->name()},
                 {"encode_gbytes_per_s", rate(3)},
                 {"decode_gbytes_per_s", rate(4)},
                 {"encode_over_peer", median_ratio(samples[3], samples[1])},
                 {"decode_over_peer", median_ratio(samples[4], samples[2])}};
    if (peer->has_payload())
      l["peer"]["bits_per_value"] = 8.0 * static_cast<double>(theirs.size()) / static_cast<double>(count);
  }
  l["oracle"] = verdict.oracle;
  l["worst_of_allowed"] = std::isfinite(verdict.worst) ? Json(verdict.worst) : Json("infinite");
  l["ok"] = verdict.holds();
  l["command"] = command_of(name);
  std::string text =
      printed("%-62s encode %7.2f GB/s (%5.2f memcpy)  decode %7.2f GB/s (%5.2f memcpy)  %7.4f bits", name.c_str(),
              rate(1), l["encode_over_memcpy"].get<double>(), rate(2), l["decode_over_memcpy"].get<double>(), bits);
  if (peer)
    text += printed("  %s %.2f, %.2f GB/s (ours %.2fx, %.2fx)", peer->name().c_str(), rate(3), rate(4),
                    l["peer"]["encode_over_peer"].get<double>(), l["peer"]["decode_over_peer"].get<double>());
  text += printed("  worst %.3f of allowed (%s) %s  | %s", verdict.worst, verdict.oracle.c_str(),
                  verdict.holds() ? "ok" : "FAIL", command_of(name).c_str());
  print_line(json ? l.dump() : text);
  return verdict.holds();
}

// ---- fidelity ------------------------------------------------------------------------------------------------------
std::vector<DataSet> data_sets(bool json) {
  std::vector<DataSet> sets;
  for (DataKind kind : kDataKinds)
    sets.push_back({name_of(kind), make_data(kind, kValues), {{0, 1024, kValues / 1024}}});
  TrainedData trained = train_for_data(kTrainedSteps);
  const Json note = {{"bench", "codec"},         {"case", "trained data"},           {"parameters", trained.parameters},
                     {"updates", trained.steps}, {"first_loss", trained.first_loss}, {"last_loss", trained.last_loss}};
  print_line(json ? note.dump()
                  : printed("gradients, activations, weights: %lld parameters, %lld steps, loss %.3f to %.3f",
                            static_cast<long long>(trained.parameters), static_cast<long long>(trained.steps),
                            trained.first_loss, trained.last_loss));
  for (DataSet& set : trained.sets) sets.push_back(std::move(set));
  return sets;
}

void print_fidelity(const std::string& name, const Json& bits, const Json& snr, int messages, bool ok, bool json) {
  const Json l = {{"bench", "codec"},     {"case", name}, {"bits_per_value", bits},     {"snr_db", snr},
                  {"messages", messages}, {"ok", ok},     {"command", command_of(name)}};
  std::string text = printed("%-62s", name.c_str());
  for (const auto& [set, db] : snr.items())
    text += "  " + set + " " + (db.is_number() ? printed("%.1f dB", db.get<double>()) : db.get<std::string>()) +
            printed(" (%.3f)", bits.at(set).get<double>());
  text += printed(" %s  | %s", ok ? "ok" : "FAIL", command_of(name).c_str());
  print_line(json ? l.dump() : text);
}

Json decibels(double db) {
  return std::isfinite(db) ? Json(db) : Json("exact");
}

// With a residual: of the sum of several messages with the same input, as an optimizer would add them up.
bool fidelity_case(const Subject& subject, const std::vector<DataSet>& sets, const std::string& name, bool json) {
  const int messages = subject.residual.kind == ResidualKind::kNone ? 1 : kMessages;
  Json bits, snr;
  bool ok = true;
  for (const DataSet& set : sets) {
    Line line(subject, static_cast<int64_t>(set.values.size()), set.matrices);
    std::vector<float> y(set.values.size()), sum(set.values.size()), whole = set.values;
    for (int i = 0; i < messages; ++i) {
      line.encode(set.values.data());
      line.decode(y.data());
      for (size_t e = 0; e < y.size(); ++e) sum[e] += y[e];
      line.next_step();
    }
    for (float& v : whole) v *= static_cast<float>(messages);
    const double db = snr_db(whole, sum);
    ok = ok && line.formula_holds() && !line.flagged() &&
         (subject.way == Way::kRounds || !subject.made.codec->traits().lossless || std::isinf(db));
    bits[set.name] = 8.0 * static_cast<double>(line.bytes()) / static_cast<double>(set.values.size());
    snr[set.name] = decibels(db);
  }
  print_fidelity(name, bits, snr, messages, ok, json);
  return ok;
}

void zstd_fidelity(int level, const std::vector<DataSet>& sets, const std::string& name, bool json) {
  Json bits, snr;
  for (const DataSet& set : sets) {
    const auto count = static_cast<int64_t>(set.values.size());
    const auto peer = make_zstd_peer(level, count);
    if (!peer) return;
    bits[set.name] = 8.0 * static_cast<double>(peer->encode(set.values).size()) / static_cast<double>(count);
    snr[set.name] = "exact";
  }
  print_fidelity(name, bits, snr, 1, true, json);
}

}  // namespace

int bench_codec(const std::vector<std::string>& filters, bool json) {
  bool all_ok = true, any = false;
  const auto wanted = [&](const std::string& name) {
    const bool yes = std::all_of(filters.begin(), filters.end(),
                                 [&](const std::string& f) { return name.find(f) != std::string::npos; });
    any = any || yes;
    return yes;
  };
  const std::vector<Subject> subjects = all_subjects();
  for (const Subject& s : subjects) {
    if (s.spec.codec == "low_rank") {
      const std::string name = s.name + "/" + std::to_string(kRows) + "x" + std::to_string(kCols);
      if (wanted(name)) all_ok = time_case(s, kRows * kCols, name, json) && all_ok;
      continue;
    }
    for (int64_t bytes : kSizes) {
      const std::string name = s.name + "/" + std::to_string(bytes);
      if (wanted(name)) all_ok = time_case(s, bytes / 4, name, json) && all_ok;
    }
  }
  std::vector<DataSet> sets;  // made for the first that needs it
  for (const Subject& s : subjects) {
    const std::string name = s.name + "/snr";
    if (!wanted(name)) continue;
    if (sets.empty()) sets = data_sets(json);
    all_ok = fidelity_case(s, sets, name, json) && all_ok;
  }
  for (int level : {1, 3}) {
    const std::string name = "zstd(level=" + std::to_string(level) + ")/snr";
    if (!wanted(name)) continue;
    if (sets.empty()) sets = data_sets(json);
    zstd_fidelity(level, sets, name, json);
  }
  if (!any) {
    std::string names, asked;
    for (const Subject& s : subjects) names += (names.empty() ? "" : ", ") + s.name;
    for (const std::string& f : filters) asked += (asked.empty() ? "\"" : " and \"") + f + "\"";
    throw_usage("bench codec: no case's name contains " + asked + " (cases are CODEC/BYTES and CODEC/snr of " + names +
                ")");
  }
  return all_ok ? 0 : 70;
}

}  // namespace thinwire
