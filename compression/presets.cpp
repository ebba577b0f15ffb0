// The list of presets, and the search for the one that a name means.
#include "compression/presets.h"

#include <algorithm>

#include "compression/preset_rules.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

using Expansion = PresetRules (*)(const PresetContext&);

struct Entry {
  Preset preset;
  Expansion expand;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> list = {
      {{"none", "No rules: every site sends what it has."}, expand_none},
      {{"identity", "Codec identity at every site: the same bytes as none, by way of channels."}, expand_identity},
      {{"bf16_wire", "Everything travels as bf16 and is summed in fp32."}, expand_bf16_wire},
      {{"optimus_cc",
        "Optimus-CC: low-rank gradients between stages in the epilogue with lazy errors, fused embedding "
        "synchronisation, low-rank data-parallel gradients on the early stages."},
       expand_optimus_cc},
      {{"optimus_cc_cb", "Optimus-CC's first rung: compressed back-propagation alone."}, expand_optimus_cc_cb},
      {{"optimus_cc_cb_fe", "Compressed back-propagation and fused embedding synchronisation."},
       expand_optimus_cc_cb_fe},
      {{"optimus_cc_cb_fe_sc", "All three: the same as optimus_cc."}, expand_optimus_cc},
      {{"optimus_cc_cb_no_lep", "Compressed back-propagation without lazy error propagation."},
       expand_optimus_cc_cb_no_lep},
      {{"optimus_cc_emb", "optimus_cc with the embedding's synchronisation coded, too."}, expand_optimus_cc_emb},
      {{"naive_zfp", "ZFP at one low rate on every site, reductions on a ring."}, expand_naive_zfp},
      {{"naive_mpc", "Lossless MPC on every site."}, expand_naive_mpc},
      {{"mzhybrid", "MPC on model-parallel traffic, ZFP on data-parallel gradients."}, expand_mzhybrid},
      {{"zhybrid", "ZFP at a mild rate on model-parallel traffic and weights, at a hard rate on gradients."},
       expand_zhybrid},
      {{"zeropp", "ZeRO++: 8-bit weights, a secondary copy in the node, 4-bit gradients in two levels."},
       expand_zeropp},
      {{"zero_topo", "Weights over pairs, gradients over nodes, optimizer state over all, quantised collectives."},
       expand_zero_topo},
      {{"loco", "LoCo: 4-bit gradients with a moving average of the error, in two levels."}, expand_loco},
      {{"sdp4bit", "SDP4Bit: 4-bit differences of weights, 8-bit and 4-bit gradients behind a Hadamard transform."},
       expand_sdp4bit},
      {{"tagc", "TAGC: the fifth of the gradient that is largest, summed over an index agreed first."}, expand_tagc},
      {{"one_bit_adam", "1-bit Adam: signs of the momentum, with error feedback on both ways."}, expand_one_bit_adam},
      {{"powersgd", "PowerSGD: rank 4, one factor a step, with error feedback."}, expand_powersgd},
      {{"thinwire",
        "Our own bundle: entropy-coded gradients at 2.6 bits and differences of weights at 2.3, 8-bit activations."},
       expand_thinwire},
  };
  return list;
}

// Edits from one word to the other (insert, delete, replace).
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t best = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = row[j];
      row[j] = best;
    }
  }
  return row[b.size()];
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> list = [] {
    std::vector<Preset> all;
    for (const Entry& e : entries()) all.push_back(e.preset);
    return all;
  }();
  return list;
}

PresetRules expand_preset(const std::string& name, const PresetContext& context) {
  const Entry* nearest = &entries().front();
  for (const Entry& e : entries()) {
    if (e.preset.name == name) return e.expand(context);
    if (distance(name, e.preset.name) < distance(name, nearest->preset.name)) nearest = &e;
  }
  throw_bad_config("there is no compression preset \"" + name + "\" (nearest: " + nearest->preset.name +
                   "; docs/presets.md lists all)");
}

}  // namespace thinwire
