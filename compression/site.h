// Sites: the places where bytes leave a rank. Their names are also keys of a config's `compression` object.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace thinwire {

// kControl (norms, losses, overflow flags, tokens) is never coded. Numbers index kSiteNames.
enum class Site : uint8_t {
  kTpForward,
  kTpBackward,
  kPpForward,
  kPpBackward,
  kDpGradient,
  kZeroParameter,
  kEmbedding,
  kSequenceForward,
  kOuter,
  kControl,
  kSequenceBackward
};

inline constexpr std::array<std::string_view, 11> kSiteNames = {
    "tp.forward", "tp.backward",      "pp.forward", "pp.backward", "dp.gradient",      "zero.parameter",
    "embedding",  "sequence.forward", "outer",      "control",     "sequence.backward"};

struct SiteTraits {
  bool gradients;  // values are multiplied by the loss scale
  bool identical;  // all groups must receive the same bits, with stochastic rounding too
};

constexpr SiteTraits traits_of(Site site) {
  switch (site) {
    case Site::kTpBackward:
    case Site::kPpBackward:
    case Site::kSequenceBackward:
    case Site::kDpGradient:
      return {.gradients = true, .identical = false};
    case Site::kZeroParameter:
      return {.gradients = false, .identical = true};
    case Site::kEmbedding:
      return {.gradients = true, .identical = true};
    default:
      return {.gradients = false, .identical = false};
  }
}

constexpr std::string_view name_of(Site site) {
  return kSiteNames[static_cast<size_t>(site)];
}

}  // namespace thinwire
