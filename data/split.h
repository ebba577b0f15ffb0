// Which sequences of a file train, validate and test: Megatron's reading of "969, 30, 1".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace thinwire {

enum class Split : uint8_t { kTrain = 0, kValid = 1, kTest = 2 };
const char* name_of(Split split);

// Weights divided by their sum; the sum is numpy's (pairwise from eight terms on), because the last bit moves
// boundaries. Throws Error(kBadConfig), with `what` as the key, if one is negative or not finite or the sum is zero.
std::vector<double> normalize_weights(std::span<const double> weights, const std::string& what);

// The parts of [0, 1] that the splits take; nothing for a split of weight zero.
struct SplitFractions {
  std::array<std::optional<std::array<double, 2>>, 3> part;
};

// One to three weights separated by commas, slashes or blanks; missing ones are zero. Throws Error(kBadConfig).
SplitFractions parse_split(const std::string& text);

// What is wrong with the text, in words that stand behind it; empty where parse_split() takes it.
std::string split_fault(const std::string& text);

// All of a file for one split, as with separate train / valid / test files.
SplitFractions whole_file(Split split);

// Sequences [first, last) of a file of n sequences; halves round to the even neighbour. It may be empty: a positive
// weight on too few sequences. Nothing for an absent split.
struct SequenceRange {
  int64_t first = 0, last = 0;
  int64_t count() const { return last - first; }
};
std::optional<SequenceRange> split_range(const SplitFractions& fractions, Split split, int64_t n);

}  // namespace thinwire
