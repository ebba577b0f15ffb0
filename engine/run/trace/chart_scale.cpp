// Scales and ticks of chart_scale.h.
#include "engine/run/trace/chart_scale.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/base/core/error.h"
#include "engine/base/core/text.h"
#include "engine/run/trace/console_progress.h"

namespace thinwire {
namespace {

constexpr double kLeastPercent = 0.1;  // smaller differences of losses are not worth a decade of their own
constexpr const char* kWords[] = {"number", "bytes", "decimal_bytes", "scientific", "time", "percent", "loss"};

// So many digits that count, without zeros behind them, with a minus sign that is as wide as a digit.
std::string trimmed(double v, int digits) {
  if (v == 0) return "0";
  const int places = std::max(0, digits - 1 - static_cast<int>(std::floor(std::log10(std::abs(v)) + 1e-12)));
  std::string text = printed("%.*f", std::min(places, 60), v);
  if (text.find('.') != std::string::npos) text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  if (text == "-0") return "0";
  return text.starts_with('-') ? "−" + text.substr(1) : text;
}

// 1234567 -> 1.23M, with `space` in front of the unit: 1.23 M.
std::string short_number(double v, const char* space = "") {
  for (const auto& [limit, unit] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}})
    if (std::abs(v) >= limit * 0.9995) return trimmed(v / limit, 3) + space + unit;
  return trimmed(v, 3) + space;
}

// 1 2 5 of every decade; whole decades where that would be too many.
std::vector<double> log_ticks(double low, double high) {
  const int first = static_cast<int>(std::floor(std::log10(low) + 1e-9)),
            last = static_cast<int>(std::ceil(std::log10(high) - 1e-9));
  const auto inside = [&](int stride, const std::vector<double>& steps) {
    std::vector<double> ticks;
    for (int e = first; e <= last; e += stride)
      for (const double m : steps)
        if (const double t = m * std::pow(10.0, e); t >= low * 0.999 && t <= high * 1.001) ticks.push_back(t);
    return ticks;
  };
  const std::vector<double> fine = inside(1, {1, 2, 5});
  return fine.size() <= 7 ? fine : inside(std::max(1, (last - first) / 6), {1});
}

}  // namespace

const char* format_word(AxisFormat format) {
  return kWords[static_cast<size_t>(format)];
}

AxisFormat format_of_word(const std::string& word) {
  const auto* found = std::find(std::begin(kWords), std::end(kWords), word);
  if (found == std::end(kWords)) throw_bad_data("no format of numbers: " + word);
  return static_cast<AxisFormat>(found - std::begin(kWords));
}

std::string format_axis_value(AxisFormat format, double value) {
  if (!std::isfinite(value)) return "–";
  switch (format) {
    case AxisFormat::kBytes:
      return value == 0.0 ? "0" : format_bytes(value);
    case AxisFormat::kDecimalBytes:
      return short_number(value, " ") + "B";
    case AxisFormat::kScientific:
      return format_scientific(value);
    case AxisFormat::kTime:
      return std::abs(value) < 999.5 ? short_number(value) + " ms" : short_number(value / 1e3) + " s";
    case AxisFormat::kPercent:
      return (value > 0 ? "+" : "") + trimmed(value, std::abs(value) < 10 ? 2 : 3) + " %";
    case AxisFormat::kLoss:
      return printed("%.3f", value);
    case AxisFormat::kNumber:
      break;
  }
  return short_number(value);
}

std::vector<double> nice_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / std::max(wanted, 1);
  if (!(rough > 0) || !std::isfinite(rough)) return {low};
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = power;
  for (const double m : {2.0, 2.5, 5.0, 10.0})
    if (std::abs(m * power - rough) < std::abs(step - rough)) step = m * power;
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9), last = std::floor(high / step + 1e-9);
  // Counted from the first one: where values differ in their last bits alone, first + 1 is first.
  const int more = static_cast<int>(std::min(last - first, 100.0));
  for (int i = 0; i <= more; ++i) ticks.push_back((first + i) * step == 0.0 ? 0.0 : (first + i) * step);
  return ticks;
}

Scale::Scale(std::vector<double> values, double start_at, double end_at, Kind kind, bool zero, double pad)
    : start(start_at), end(end_at) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  if (values.empty()) values = {0.0, 1.0};
  std::sort(values.begin(), values.end());
  low = values.front(), high = values.back();
  if (kind == Kind::kSigned) {
    std::vector<double> sizes;
    for (const double v : values)
      if (v != 0) sizes.push_back(std::abs(v));
    std::sort(sizes.begin(), sizes.end());
    const double usual = sizes.empty() ? 0.0 : std::max(sizes[(sizes.size() - 1) / 2], kLeastPercent);
    if (!sizes.empty() && sizes.back() > 15 * usual) linear = usual;
  }
  log = low > 0 && (kind == Kind::kLog || (kind == Kind::kLogWhereNeeded && high > 20 * low));
  if (log) {
    const double room = high > low * (1 + 1e-12) ? std::pow(high / low, pad) : 1.5;
    low /= room, high *= room;
    return;
  }
  if (zero) low = std::min(low, 0.0), high = std::max(high, 0.0);
  if (linear > 0) {
    const double from = bend(low), to = bend(high), room = pad * (to - from);
    low = std::sinh(from - room) * linear, high = std::sinh(to + room) * linear;
    return;
  }
  double span = high - low;
  if (span <= std::abs(high) * 1e-12) {
    span = high != 0 ? std::abs(high) * 0.2 : 1.0;
    pad = std::max(pad, 0.06);
  }
  if (!zero || high > 0 || low >= 0) high += pad * span;
  if (!zero || low < 0) low -= pad * span;
  if (values.front() >= 0) low = std::max(low, 0.0);
}

double Scale::bend(double v) const {
  return log ? std::log(v) : linear > 0 ? std::asinh(v / linear) : v;
}

double Scale::operator()(double v) const {
  return start + (bend(v) - bend(low)) / (bend(high) - bend(low)) * (end - start);
}

std::vector<double> Scale::ticks(int wanted) const {
  if (log) return log_ticks(low, high);
  if (!(linear > 0)) return nice_ticks(low, high, wanted);
  // Zero, then outwards whatever stands clear of the one before.
  const double top = std::max(std::abs(low), std::abs(high)), clear = std::abs(end - start) / 9;
  std::vector<double> out;
  if (covers(0.0)) out.push_back(0.0);
  for (const double sign : {1.0, -1.0}) {
    double last = (*this)(0.0);
    for (int e = static_cast<int>(std::floor(std::log10(linear))) - 1; e <= std::ceil(std::log10(top)); ++e) {
      for (const double m : {1.0, 2.0, 5.0}) {
        const double v = sign * m * std::pow(10.0, e);
        if (!covers(v) || std::abs((*this)(v)-last) < clear) continue;
        out.push_back(v);
        last = (*this)(v);
      }
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::pair<double, std::string>> Scale::labels(AxisFormat format, int wanted) const {
  std::vector<double> places;
  double unit = 1.0;  // round in KiB, MiB or GiB, whichever is printed
  while (!log && format == AxisFormat::kBytes && high >= 1024.0 * unit) unit *= 1024.0;
  if (unit > 1.0) {
    for (const double tick : nice_ticks(low / unit, high / unit, wanted)) places.push_back(tick * unit);
  } else {
    places = ticks(wanted);
  }
  std::vector<std::pair<double, std::string>> out;
  std::set<std::string> different;
  for (const double v : places) {
    std::string text =
        format == AxisFormat::kPercent ? (v > 0 ? "+" : "") + trimmed(v, 4) + " %" : format_axis_value(format, v);
    different.insert(text);
    out.emplace_back(v, std::move(text));
  }
  // Ticks that lie close together need more digits than the format prints.
  if (format != AxisFormat::kBytes && different.size() < out.size())
    for (auto& [v, text] : out) text = trimmed(v, 5);
  return out;
}

}  // namespace thinwire
