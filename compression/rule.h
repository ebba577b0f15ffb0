// Rules as plain data: what a site does with its messages, as configured. Parsed by the configuration, resolved per
// message by parallel/rules.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compression/coding_state.h"
#include "compression/site.h"
#include "engine/base/core/param_spec.h"

namespace thinwire {

// Parameters of a codec; each codec reads its own and make_codec refuses values that it cannot have. The names are also
// the keys in a rule.
struct CodecSpec {
  std::string codec = "identity";
  // cast: bf16 | fp16 | e4m3 | e5m2.   mx: mxfp8_e4m3 | mxfp8_e5m2 | mxfp6_e2m3 | mxfp6_e3m2 | mxfp4 | nvfp4.
  // top_k and its kin: the dtype of values that travel, fp32 | bf16 | fp16
  std::string format;
  int64_t bits = 8;                   // block_int: 8 | 6 | 4 | 2
  int64_t block = 0;                  // elements per scale; 0: the codec's default
  std::string scale = "fp16";         // block_int: fp32 | fp16 | bf16 | e8m0
  bool asymmetric = false;            // block_int: (min, max) instead of max|x|
  std::string rounding = "nearest";   // block_int: nearest (ties to even) | stochastic
  double rate = 8.0;                  // zfp, ecsq: bits per value
  bool light = false;                 // ecsq: adapt may send lloyd_max of the next whole number of bits instead
  int64_t dimension = 1;              // mpc: stride of its predictor, 1-32
  int64_t rank = 4;                   // low_rank
  int64_t sides = 2;                  // low_rank: 2 classic (P, then Q), 1 alternating
  double min_compression_rate = 1.0;  // low_rank: matrices that do not shrink by this much travel raw
  double density = 0.01;              // top_k, random_k, sketch: share of elements kept
  int64_t keep = 64;                  // chunked_top_k: elements kept of each chunk of `block`
  double ratio = 2.0;                 // sketch: message over table
  bool compact = true;                // sketch: packed union instead of a table
  bool hadamard = false;              // transform in front: blocks of 32, orthonormal
  bool checksum = false;              // CRC-32C behind every payload
  bool operator==(const CodecSpec&) const = default;
};

enum class ResidualKind : uint8_t { kNone, kErrorFeedback, kLazy, kEma, kValueDifference };

struct ResidualSpec {
  ResidualKind kind = ResidualKind::kNone;
  double beta = 0.8;        // ema: e' = beta e + (1 - beta) (x - decoded)
  int64_t reset_every = 0;  // ema: steps between resets to zero; 0: never
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

// One site's rule. A site without one has codec identity.
struct SiteRule {
  CodecSpec codec;             // first (or only) coding: of what ranks contribute; two_level: inside a node
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
  std::map<Site, SiteRule> rules;  // sites that are not in it are sent as they are
  bool adapt = false;              // measure while training which way is fastest: coded, lightly coded or plain
  bool sends_momentum = false;     // dp.gradient carries the optimizer's momentum instead of the gradient (1-bit Adam)
  const SiteRule* rule(Site site) const {  // nullptr: none
    const auto it = rules.find(site);
    return it == rules.end() ? nullptr : &it->second;
  }
  bool operator==(const CompressionConfig&) const = default;
};

}  // namespace thinwire
