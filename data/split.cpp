// Parsing and rounding of the split weights.
#include "data/split.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/base/core/error.h"

namespace thinwire {
namespace {

// numpy's pairwise summation of contiguous doubles: plain below 8 terms, eight accumulators up to 128, halves above.
double numpy_sum(std::span<const double> a) {
  const size_t n = a.size();
  if (n < 8) {
    double sum = 0.0;
    for (double x : a) sum += x;
    return sum;
  }
  if (n <= 128) {
    double r[8];
    for (size_t j = 0; j < 8; ++j) r[j] = a[j];
    size_t i = 8;
    for (; i + 8 <= n; i += 8)
      for (size_t j = 0; j < 8; ++j) r[j] += a[i + j];
    double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; ++i) sum += a[i];
    return sum;
  }
  size_t half = n / 2;
  half -= half % 8;
  return numpy_sum(a.first(half)) + numpy_sum(a.subspan(half));
}

bool is_separator(char c) {
  return c == ',' || c == '/' || c == ' ' || c == '\t';
}

// Three weights that can be normalised, or what is wrong with the text.
std::string read_split(const std::string& text, std::vector<double>& weights) {
  const std::string form = " (train, valid, test), such as \"969, 30, 1\"";
  const char* at = text.data();
  const char* const end = at + text.size();
  double sum = 0.0;
  while (at != end) {
    if (is_separator(*at)) {
      ++at;
      continue;
    }
    double value = 0.0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || (next != end && !is_separator(*next)) || !(value >= 0.0))
      return "is not a list of up to three shares" + form;
    weights.push_back(value);
    sum += value;
    at = next;
  }
  if (weights.empty() || weights.size() > 3)
    return "has " + std::to_string(weights.size()) + " shares; give one, or up to three" + form;
  if (!(sum > 0.0) || !std::isfinite(sum)) return "needs a positive share and a finite sum; give up to three" + form;
  weights.resize(3, 0.0);
  return "";
}

}  // namespace

std::string split_fault(const std::string& text) {
  std::vector<double> weights;
  return read_split(text, weights);
}

const char* name_of(Split split) {
  switch (split) {
    case Split::kTrain:
      return "train";
    case Split::kValid:
      return "valid";
    case Split::kTest:
      return "test";
  }
  return "unknown";
}

std::vector<double> normalize_weights(std::span<const double> weights, const std::string& what) {
  for (double w : weights)
    if (!std::isfinite(w) || w < 0.0)
      throw_bad_config(what + ": weight " + std::to_string(w) + " must be a finite number that is not negative");
  const double sum = numpy_sum(weights);
  if (!(sum > 0.0) || !std::isfinite(sum))
    throw_bad_config(what + ": the weights sum to " + std::to_string(sum) + "; at least one must be positive");
  std::vector<double> normalized(weights.begin(), weights.end());
  for (double& w : normalized) w /= sum;
  return normalized;
}

SplitFractions parse_split(const std::string& text) {
  std::vector<double> weights;
  if (const std::string fault = read_split(text, weights); !fault.empty())
    throw_bad_config("split: \"" + text + "\" " + fault);
  weights = normalize_weights(weights, "split: \"" + text + "\"");
  SplitFractions fractions;
  double from = 0.0;
  for (size_t i = 0; i < 3; ++i) {
    const double to = from + weights[i];
    if (to > from) fractions.part[i] = {from, to};
    from = to;
  }
  return fractions;
}

SplitFractions whole_file(Split split) {
  SplitFractions fractions;
  fractions.part[static_cast<size_t>(split)] = {0.0, 1.0};
  return fractions;
}

std::optional<SequenceRange> split_range(const SplitFractions& fractions, Split split, int64_t n) {
  const auto& part = fractions.part[static_cast<size_t>(split)];
  if (!part) return std::nullopt;
  const auto edge = [n](double fraction) {
    return static_cast<int64_t>(std::nearbyint(fraction * static_cast<double>(n)));
  };
  return SequenceRange{edge((*part)[0]), std::min(n, edge((*part)[1]))};
}

}  // namespace thinwire
