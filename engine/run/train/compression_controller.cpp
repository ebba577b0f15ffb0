// Trials of a site: rounds with a block of steps per way, and the comparison; and their state in checkpoints.
#include "engine/run/train/compression_controller.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/core/error.h"
#include "engine/base/core/text.h"

namespace thinwire {
namespace {

using nlohmann::json;

// A way is not tried where its bytes alone would take this many times as long as a step of way kCoded.
constexpr double kHopeless = 1.3;
// Ways closer than this share stay in the trials: on a noisy machine medians of six steps, two rounds, do not tell them
// apart. With more rounds the share is smaller.
constexpr double kClose = 0.05;

// Student's t at 97.5 % for so many degrees of freedom, rounded up.
double student(double freedom) {
  constexpr double kT[] = {12.71, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27};
  return freedom < 1.0 ? kT[0] : freedom < 10.0 ? kT[static_cast<size_t>(freedom) - 1] : 2.23;
}

struct Sample {
  double mean = 0.0, error = 0.0;  // error: variance of the mean
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

CompressionController::CompressionController(bool enabled, SiteWays ways, int64_t begin, int64_t again, Mesh* mesh,
                                             Control& control, PlanRevisions& revisions, std::string origin)
    : enabled_(enabled && mesh != nullptr && !ways.empty()),
      begin_(begin),
      again_(again),
      mesh_(mesh),
      control_(&control),
      revisions_(&revisions),
      origin_(std::move(origin)),
      measured_at_(origin_),
      sites_(ways.begin(), ways.end()) {
  begin_trials(0);
}

void CompressionController::begin_trials(size_t site) {
  site_ = site;
  place_ = round_began_ = kept_ = 0, round_ = 0;
  tried_ = decided() ? std::vector<Way>() : sites_[site].second;
  ms_.clear();
}

CompressionController::Way CompressionController::trial() const {
  return tried_[static_cast<size_t>((place_ - round_began_) / kBlock)];
}

void CompressionController::before(int64_t update) {
  if (mesh_ != nullptr && (enabled_ || revisions_->replays())) mesh_->clock().ways = revisions_->ways_at(update);
}

// A rank's rate of sending while all ranks do, by the time of the slowest: of the second of two sums, since the first
// uses up the burst that a traffic shaper lets through.
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

std::string CompressionController::after(double step_ms, int64_t step, const SiteBytes& logical_bytes) {
  if (!enabled_ || revisions_->replays() || step <= begin_) return "";
  if (!decided() && warm_ < kWarmUp) {
    ++warm_;
    return "";
  }
  std::string line;
  std::optional<Site> asked;
  if (!decided()) {
    asked = sites_[site_].first;
    line = look(step_ms, step, logical_bytes[static_cast<size_t>(*asked)]);
    if (!line.empty()) begin_trials(site_ + 1);
  } else if (again_ > 0 && ++kept_ >= again_) {
    begin_trials(0);
  }
  const CodingWays before = revisions_->ways_at(step + 1);
  for (size_t s = 0; s < sites_.size(); ++s) {
    const Site site = sites_[s].first;
    const bool told = site == asked && !line.empty();
    const Way next = s == site_ ? trial() : way_of(site);
    if (told || next != before[static_cast<size_t>(site)])
      revisions_->add({.after = step, .site = site, .way = next, .partition = {}, .why = told ? line : "trial"});
  }
  return line;
}

std::string CompressionController::look(double step_ms, int64_t step, int64_t logical_bytes) {
  const int64_t at = place_;
  const Way way = trial();
  ++place_;
  // Every rank takes the slowest rank's time: equal numbers give equal decisions.
  const double ms = static_cast<double>(control_->agree_max(static_cast<int64_t>(step_ms * 1e3))) * 1e-3;
  if (at % kBlock > 0) ms_[way].push_back(ms);  // a block's first step still has messages of the way before
  if (at == kBlock - 1) {
    leave_out_the_hopeless(logical_bytes);
    if (tried_.size() == 1) return decide(step);
  }
  if (place_ - round_began_ < kBlock * static_cast<int64_t>(tried_.size())) return "";
  ++round_, round_began_ = place_;
  if (round_ < kRounds) return "";
  leave_out_the_slow();
  return tried_.size() > 1 && round_ < kMostRounds ? "" : decide(step);
}

double CompressionController::median_of(Way way) const {
  return median(ms_.at(way));
}

// How much longer steps take this way, at least, as a share: the lower end of Welch's 95 % interval, of logarithms.
double CompressionController::least_excess(Way way, Way best) const {
  const Sample a = sample_of_logs(ms_.at(way)), b = sample_of_logs(ms_.at(best));
  const double error = a.error + b.error;
  const double freedom =
      error > 0.0 ? error * error / (a.error * a.error / a.freedom + b.error * b.error / b.freedom) : 1e9;
  return std::expm1(a.mean - b.mean - student(freedom) * std::sqrt(error));
}

void CompressionController::leave_out_the_hopeless(int64_t logical_bytes) {
  const double plain_ms = static_cast<double>(control_->agree_max(logical_bytes)) / measure_bytes_per_ms();
  std::erase_if(tried_, [&](Way way) {
    const double share = way == Way::kPlain ? 1.0 : way == Way::kBf16 ? 0.5 : 0.0;  // of plain bytes, in fp32
    return share * plain_ms > kHopeless * median_of(Way::kCoded);
  });
}

void CompressionController::leave_out_the_slow() {
  const Way best =
      *std::min_element(tried_.begin(), tried_.end(), [&](Way a, Way b) { return median_of(a) < median_of(b); });
  const double close = (1.0 + kClose * std::sqrt(static_cast<double>(kRounds) / round_)) * median_of(best);
  std::erase_if(tried_, [&](Way way) { return median_of(way) > close && least_excess(way, best) > 0.0; });
}

std::string CompressionController::decide(int64_t step) {
  const Site site = sites_[site_].first;
  Way& way = way_of(site);
  const Way before = way;
  const auto is_tried = [&](Way each) { return std::find(tried_.begin(), tried_.end(), each) != tried_.end(); };
  // If the present way was dropped, it was slower or hopeless: all that are left are faster.
  std::vector<Way> faster = tried_;
  if (is_tried(before)) std::erase_if(faster, [&](Way each) { return least_excess(before, each) <= 0.0; });
  const auto is_faster = [&](Way each) { return std::find(faster.begin(), faster.end(), each) != faster.end(); };
  if (!faster.empty())
    way = *std::min_element(faster.begin(), faster.end(), [&](Way a, Way b) { return median_of(a) < median_of(b); });
  if (way == Way::kPlain && is_faster(Way::kBf16) && least_excess(Way::kBf16, way) <= 0.0) way = Way::kBf16;
  std::string times;
  for (const Way each : sites_[site_].second) {
    times += ms_.count(each) == 0 ? printed(", %s: the wire alone would take longer", name_of(each))
                                  : printed(", %s steps take %.1f ms", name_of(each), median_of(each));
  }
  const double longer = ms_.count(before) > 0 ? least_excess(before, way) : 0.0;
  std::string verdict = name_of(way);
  if (way == before)
    verdict +=
        tried_.size() == 1 ? " stays, the others are slower" : " stays, whether others are faster cannot be told";
  else
    verdict += printed(" instead of %s, which ", name_of(before)) +
               (longer > 0.0 ? printed("takes at least %.1f %% longer", 100.0 * longer) : "is slower");
  return "plan revision after step " + std::to_string(step) + ": " + std::string(name_of(site)) + " " + verdict +
         " at 95 % confidence (" + times.substr(2) + ")";
}

std::string CompressionController::state() const {
  json ms = json::array();
  for (const auto& [way, values] : ms_) ms.push_back({way, values});
  return json{
      {"measured_at", measured_at_}, {"site", site_},   {"ways", ways_},       {"place", place_}, {"round", round_},
      {"round_began", round_began_}, {"tried", tried_}, {"ms", std::move(ms)}, {"kept", kept_}}
      .dump();
}

void CompressionController::visit(StateVisitor& visitor) {
  if (!enabled_ || revisions_->replays()) return;
  const std::string before = state();
  std::string now = before;
  visitor.text("revision/trials", now);
  if (now == before) return;
  measured_at_.clear();
  try {
    const json stored = json::parse(now);
    if (!stored.contains("site")) return;  // of a version that decided on all sites together
    std::string measured_at;
    stored.at("measured_at").get_to(measured_at);
    stored.at("site").get_to(site_);
    stored.at("ways").get_to(ways_);
    stored.at("place").get_to(place_);
    stored.at("round").get_to(round_);
    stored.at("round_began").get_to(round_began_);
    stored.at("tried").get_to(tried_);
    stored.at("kept").get_to(kept_);
    ms_.clear();
    for (const json& pair : stored.at("ms")) ms_[pair.at(0).get<Way>()] = pair.at(1).get<std::vector<double>>();
    const int64_t block = (place_ - round_began_) / kBlock;
    const bool possible = decided() || (place_ >= round_began_ && block < static_cast<int64_t>(tried_.size()));
    if (site_ <= sites_.size() && possible) measured_at_ = measured_at;  // otherwise resume() starts anew
  } catch (const json::exception& e) {
    throw_bad_data(std::string("revision/trials of the checkpoint: ") + e.what());
  }
}

std::string CompressionController::resume(int64_t updates) {
  if (revisions_->replays() || (enabled_ && measured_at_ == origin_)) return "";
  measured_at_ = origin_;
  ways_ = {};
  begin_trials(0);
  const std::string line =
      enabled_ ? "what was measured of compression elsewhere is dropped: ranks, hosts or rules are others now"
               : "compression.adapt decides nothing any more: all sites are coded as their rules say";
  const bool changes = revisions_->ways_at(updates + 1) != CodingWays{};
  if (changes) revisions_->add({.after = updates, .site = {}, .way = Way::kCoded, .partition = {}, .why = line});
  return enabled_ || changes ? line : "";
}

}  // namespace thinwire
