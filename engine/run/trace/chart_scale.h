// From values to positions on a chart: linear, logarithmic or both; round ticks; short numbers.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace thinwire {

// 12.5k; 1.5 GiB; 1.5 GB; 3.0e-4; 250 ms or 1.2 s; +3.1 %; 2.512. format_word() knows the order.
enum class AxisFormat { kNumber, kBytes, kDecimalBytes, kScientific, kTime, kPercent, kLoss };

// "number", "bytes", "decimal_bytes", "scientific", "time", "percent", "loss"; back again it throws Error(kBadData)
// where there is no such word.
const char* format_word(AxisFormat format);
AxisFormat format_of_word(const std::string& word);

// A dash for what is not finite.
std::string format_axis_value(AxisFormat format, double value);

// Round positions in [low, high], about `wanted` steps of 1, 2, 2.5 or 5 times a power of ten.
std::vector<double> nice_ticks(double low, double high, int wanted);

struct Scale {
  // kLogWhereNeeded: logarithms where the largest of positive values is more than 20 times the smallest. kSigned:
  // logarithms on both sides of a linear middle, where the largest of these percents is more than 15 times the usual.
  enum class Kind { kLinear, kLogWhereNeeded, kLog, kSigned };

  // Covers the finite ones of `values`, and 0 where `zero`; `pad`: room beyond them, as a part of their range.
  Scale(std::vector<double> values, double start, double end, Kind kind, bool zero = false, double pad = 0.06);
  double operator()(double value) const;
  bool covers(double value) const { return low <= value && value <= high; }
  bool bent() const { return log || linear > 0; }
  std::vector<double> ticks(int wanted = 5) const;
  // With what is written beside them: two ticks never read alike.
  std::vector<std::pair<double, std::string>> labels(AxisFormat format, int wanted = 5) const;

  double low = 0, high = 1, start, end;
  double linear = 0;  // of kSigned: the width of its middle; 0: not bent
  bool log = false;

 private:
  double bend(double value) const;
};

}  // namespace thinwire
