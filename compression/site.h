// The places where bytes leave a rank, as a vocabulary: the names are also the keys of the `compression` object in a
// config.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace thinwire {

// kControl (norms, losses, overflow flags, tokens) is never coded.
enum class Site : uint8_t {
  kTpForward,
  kTpBackward,
  kPpForward,
  kPpBackward,
  kDpGradient,
  kZeroParameter,
  kEmbedding,
  kSequence,
  kOuter,
  kControl
};

inline constexpr std::array<std::string_view, 10> kSiteNames = {
    "tp.forward",     "tp.backward", "pp.forward", "pp.backward", "dp.gradient",
    "zero.parameter", "embedding",   "sequence",   "outer",       "control"};

constexpr std::string_view name_of(Site site) {
  return kSiteNames[static_cast<size_t>(site)];
}

}  // namespace thinwire
