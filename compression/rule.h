// Rules as plain data: what a site does with its messages, as configured. Parsed by the configuration, resolved per
// message by parallel/rules.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "compression/compression_state.h"
#include "compression/site.h"
#include "engine/base/core/param_spec.h"

namespace thinwire {

// The value of a codec's parameter, and values by the names that they have in a rule.
using CodecValue = std::variant<std::string, int64_t, double, bool>;
using CodecValues = std::map<std::string, CodecValue>;

// A parameter's values, each from a number of updates on: ascending, the first from 0.
using Ramp = std::vector<std::pair<int64_t, CodecValue>>;

// A codec as configured: a row of the table (codec_table.h), values of its parameters, and what any codec may have.
struct CodecSpec {
  std::string codec = "identity";
  CodecValues parameters = {};             // what is left out is as the row says
  bool hadamard = false;                   // transform in front: blocks of 32, orthonormal
  bool checksum = false;                   // CRC-32C behind every payload
  std::map<std::string, Ramp> ramps = {};  // parameters that change over the run; `parameters` has what they begin with
  CodecValue& operator[](const std::string& name) { return parameters[name]; }
  const std::string& text(const std::string& name) const { return std::get<std::string>(parameters.at(name)); }
  int64_t integer(const std::string& name) const { return std::get<int64_t>(parameters.at(name)); }
  double real(const std::string& name) const { return std::get<double>(parameters.at(name)); }
  bool flag(const std::string& name) const { return std::get<bool>(parameters.at(name)); }
  bool operator==(const CodecSpec&) const = default;
};

enum class ResidualKind : uint8_t { kNone, kErrorFeedback, kLazy, kEma, kValueDifference };

enum class ResidualDtype : uint8_t { kFp32, kBf16, kInt8 };

struct ResidualSpec {
  ResidualKind kind = ResidualKind::kNone;
  ResidualDtype dtype = ResidualDtype::kFp32;  // error_feedback, lazy: what is kept in; rounded stochastically
  double beta = 0.8;                           // ema: e' = beta e + (1 - beta) (x - decoded)
  int64_t reset_every = 0;                     // ema: steps between resets to zero; 0: never
  OnSkip on_skip = OnSkip::kRestore;
  bool operator==(const ResidualSpec&) const = default;
};

enum class MicroBatches : uint8_t { kAll, kEpilogue, kCritical };
enum class RuleAlgorithm : uint8_t { kDirect, kRing, kTwoLevel };

struct SelectSpec {
  std::vector<int> stages;                  // pipeline stages, ascending (pipeline sites: of the sender); empty: all
  std::vector<int> layers;                  // block numbers from 0; empty: all, embedding and head too
  std::vector<TensorClass> tensor_classes;  // empty: all
  MicroBatches micro_batches = MicroBatches::kAll;  // pipeline sites
  bool operator==(const SelectSpec&) const = default;
};

// How some of a site's messages are compressed.
struct SiteRule {
  CodecSpec codec;             // first (or only) compression: of what ranks contribute; two_level: inside a node
  CodecSpec sum_codec;         // second compression: of sums on their way back (all-reduce), between nodes (two_level)
  bool has_sum_codec = false;  // false: like the first, but without a residual
  ResidualSpec residual, sum_residual;
  SelectSpec select;
  int64_t min_bytes = 0;
  int64_t warmup_steps = 0;
  RuleAlgorithm algorithm = RuleAlgorithm::kDirect;
  bool operator==(const SiteRule&) const = default;
};

// All of a run's rules, as resolved: a preset's, overridden key by key by what the configuration says of a site.
struct CompressionConfig {
  std::string preset = "none";
  // In their order: a message falls under the first rule that selects it. What none selects is sent as it is.
  std::map<Site, std::vector<SiteRule>> rules;
  std::string revisions;  // a file of plan revisions to replay; empty: none
  bool adapt = false;     // measure while training which way is fastest: coded, lightly coded or plain
  // Loss per relative coding error of all gradients of a class: embedding, attention, mlp, the rest; only their ratios
  // count. Empty: every byte weighs alike.
  std::vector<double> sensitivities;
  bool sends_momentum = false;  // dp.gradient carries the optimizer's momentum instead of the gradient (1-bit Adam)
  const std::vector<SiteRule>& at(Site site) const {
    static const std::vector<SiteRule> none;
    const auto it = rules.find(site);
    return it == rules.end() ? none : it->second;
  }
  bool operator==(const CompressionConfig&) const = default;
};

}  // namespace thinwire
