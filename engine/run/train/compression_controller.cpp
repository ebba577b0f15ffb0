// Blocks of steps each way in turn, and one comparison; all of it again adapt_interval steps later.
#include "engine/run/train/compression_controller.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace thinwire {
namespace {

using nlohmann::json;

// Plain steps would take so much longer that trying them is a waste.
constexpr double kHopeless = 1.3;
// Medians of six steps, two rounds, tell ways apart that differ by so much; on a noisy machine not those that are
// closer, for which it takes more.
constexpr double kClose = 0.05;

// Student's t at 97.5 %, at least, for so many degrees of freedom.
double student(double freedom) {
  constexpr double kT[] = {12.71, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27};
  return freedom < 1.0 ? kT[0] : freedom < 10.0 ? kT[static_cast<size_t>(freedom) - 1] : 2.23;
}

struct Sample {
  double mean = 0.0, error = 0.0;  // error: the mean's variance
  double freedom = 0.0;
};
Sample sample_of_logs(std::vector<double> values) {
  Sample s;
  for (double& v : values) v = std::log(std::max(v, 1e-3));
  for (const double v : values) s.mean += v / static_cast<double>(values.size());
  s.freedom = static_cast<double>(values.size()) - 1.0;
  for (const double v : values) s.error += (v - s.mean) * (v - s.mean);
  s.error = s.freedom > 0.0 ? s.error / s.freedom / static_cast<double>(values.size()) : 1.0;
  return s;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

CompressionController::CompressionController(bool enabled, int variants, int64_t begin, int64_t again, Mesh* mesh,
                                             Control& control, PlanRevisions& revisions, std::string origin)
    : enabled_(enabled && mesh != nullptr),
      begin_(begin),
      again_(again),
      mesh_(mesh),
      control_(&control),
      revisions_(&revisions),
      origin_(std::move(origin)),
      measured_at_(origin_),
      ways_{Way::kCoded} {
  for (int v = 1; v < variants; ++v) ways_.push_back(static_cast<Way>(static_cast<int64_t>(Way::kPlain) + v));
  ways_.push_back(Way::kPlain);
  tried_ = ways_;
}

CompressionController::Way CompressionController::way_now() const {
  return decided_ ? way_ : tried_[static_cast<size_t>((place_ - round_began_) / kBlock)];
}

void CompressionController::before(int64_t update) {
  if (mesh_ == nullptr || (!enabled_ && !revisions_->replays())) return;
  const Way way = revisions_->way_at(update);
  mesh_->clock().off.fill(way == Way::kPlain);
  mesh_->clock().variant = std::max(0, static_cast<int>(static_cast<int64_t>(way) - static_cast<int64_t>(Way::kPlain)));
}

// Of this rank's sends while all ranks send: the second of two sums, long enough to see through a shaper's burst.
double CompressionController::measure_bytes_per_ms() {
  constexpr int64_t kCount = 256 << 10;
  std::vector<double> values(static_cast<size_t>(kCount), 1.0);
  HostStream stream;
  double ms = 0.0;
  for (int round = 0; round < 2; ++round) {
    control_->barrier();
    const auto start = std::chrono::steady_clock::now();
    control_->sum(View(values.data(), DType::f64, {kCount}), stream).wait(stream);
    ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
  const double ranks = control_->size();
  const double slowest = static_cast<double>(control_->agree_max(static_cast<int64_t>(ms * 1e3) + 1)) * 1e-3;
  return 2.0 * (ranks - 1.0) / ranks * static_cast<double>(kCount) * sizeof(double) / slowest;
}

std::string CompressionController::after(double step_ms, int64_t step, int64_t logical_bytes) {
  if (!enabled_ || revisions_->replays() || step <= begin_) return "";
  if (!decided_ && warm_ < kWarmUp) {
    ++warm_;
    return "";
  }
  std::string line;
  if (!decided_) {
    line = look(step_ms, step, logical_bytes);
    if (decided_) ++decisions_, kept_ = 0;
  } else if (again_ > 0 && ++kept_ >= again_) {
    try_all();
  }
  if (const Way next = way_now(); !line.empty() || next != revisions_->way_at(step + 1))
    revisions_->add({.after = step, .way = next, .partition = {}, .why = line.empty() ? "trial" : line});
  return line;
}

std::string CompressionController::look(double step_ms, int64_t step, int64_t logical_bytes) {
  const int64_t since = place_;
  const Way was = way_now();
  ++place_;
  // All ranks compare the slowest rank's times: equal numbers, equal decisions.
  const double ms = static_cast<double>(control_->agree_max(static_cast<int64_t>(step_ms * 1e3))) * 1e-3;
  if (since % kBlock > 0) ms_[was].push_back(ms);  // the first of a block still sees another way
  if (since == kBlock - 1) {
    const double plain_wire = static_cast<double>(control_->agree_max(logical_bytes)) / measure_bytes_per_ms();
    if (plain_wire > kHopeless * median_of(Way::kCoded)) tried_.pop_back();
    if (tried_.size() == 1) {
      decided_ = true, way_ = Way::kCoded;
      char text[200];
      std::snprintf(
          text, sizeof text,
          "compression stays on: compressed steps take %.1f ms, the plain wire alone would take about %.1f ms",
          median_of(Way::kCoded), plain_wire);
      return text;
    }
  }
  if (since + 1 - round_began_ < kBlock * static_cast<int64_t>(tried_.size())) return "";
  ++round_, round_began_ = since + 1;
  if (round_ < kRounds) return "";
  leave_out_the_slow();
  return tried_.size() > 1 && round_ < kMostRounds ? "" : decide(step);
}

double CompressionController::median_of(Way way) const {
  return median(ms_.at(way));
}

// The lower end of the 95 % interval of how much longer steps take this way, as a share: Welch's, of their logarithms.
double CompressionController::least_excess(Way way, Way best) const {
  const Sample a = sample_of_logs(ms_.at(way)), b = sample_of_logs(ms_.at(best));
  const double error = a.error + b.error;
  const double freedom =
      error > 0.0 ? error * error / (a.error * a.error / a.freedom + b.error * b.error / b.freedom) : 1e9;
  return std::expm1(a.mean - b.mean - student(freedom) * std::sqrt(error));
}

void CompressionController::try_all() {
  decided_ = false;
  place_ = round_began_ = 0, round_ = 0;
  tried_ = ways_;
  ms_.clear();
}

void CompressionController::leave_out_the_slow() {
  const Way best =
      *std::min_element(tried_.begin(), tried_.end(), [&](Way a, Way b) { return median_of(a) < median_of(b); });
  const double close = (1.0 + kClose * std::sqrt(static_cast<double>(kRounds) / round_)) * median_of(best);
  std::erase_if(tried_, [&](Way way) { return median_of(way) > close && least_excess(way, best) > 0.0; });
}

std::string CompressionController::decide(int64_t step) {
  constexpr const char* kNames[] = {"compressed", "plain", "lightly compressed"};
  constexpr const char* kVerdicts[] = {"stays on", "off", "light"};
  const auto word = [](Way way) { return static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(way), 2)); };
  std::string times;
  double least = 0.0;
  Way fastest = Way::kCoded;
  for (const Way way : ways_) {
    if (ms_.count(way) == 0) continue;
    const double ms = median_of(way);
    // What was left out was measured in other minutes.
    const bool tried = std::find(tried_.begin(), tried_.end(), way) != tried_.end();
    if (tried && (least == 0.0 || ms <= least)) least = ms, fastest = way;
    char text[80];
    std::snprintf(text, sizeof text, "%s%s steps take %.1f ms", times.empty() ? "" : ", ", kNames[word(way)], ms);
    times += text;
  }
  if (decisions_ == 0 || std::find(tried_.begin(), tried_.end(), way_) == tried_.end()) way_ = fastest;
  decided_ = true;
  return "plan revision after step " + std::to_string(step) + ": compression " + kVerdicts[word(way_)] + " (" + times +
         ")";
}

std::string CompressionController::state() const {
  json ms = json::array();
  for (const auto& [way, values] : ms_) ms.push_back({way, values});
  return json{{"measured_at", measured_at_},
              {"decided", decided_},
              {"way", way_},
              {"place", place_},
              {"round", round_},
              {"round_began", round_began_},
              {"tried", tried_},
              {"ms", std::move(ms)},
              {"decisions", decisions_},
              {"kept", kept_}}
      .dump();
}

void CompressionController::visit(StateVisitor& visitor) {
  if (!enabled_ || revisions_->replays()) return;
  const std::string before = state();
  std::string now = before;
  visitor.text("revision/trials", now);
  if (now == before) return;
  const json stored = json::parse(now);
  stored.at("measured_at").get_to(measured_at_);
  stored.at("decided").get_to(decided_);
  stored.at("way").get_to(way_);
  stored.at("place").get_to(place_);
  stored.at("round").get_to(round_);
  stored.at("round_began").get_to(round_began_);
  stored.at("tried").get_to(tried_);
  decisions_ = stored.value("decisions", int64_t{decided_});
  kept_ = stored.value("kept", int64_t{0});
  ms_.clear();
  for (const json& pair : stored.at("ms")) ms_[pair.at(0).get<Way>()] = pair.at(1).get<std::vector<double>>();
}

std::string CompressionController::resume(int64_t updates) {
  if (!enabled_ || revisions_->replays() || measured_at_ == origin_) return "";
  measured_at_ = origin_;
  way_ = Way::kCoded, decisions_ = kept_ = 0;
  try_all();
  const std::string line =
      "what was measured of compression elsewhere is dropped: ranks, hosts or rules are others now";
  if (revisions_->way_at(updates + 1) != Way::kCoded)
    revisions_->add({.after = updates, .way = Way::kCoded, .partition = {}, .why = line});
  return line;
}

}  // namespace thinwire
