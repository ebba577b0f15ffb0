// Walks sites, units and edges and asks the rules about each.
#include "engine/run/train/compression_setup.h"

#include <algorithm>

#include "compression/codec_table.h"
#include "engine/base/core/model_units.h"
#include "engine/run/config/rule_check.h"
#include "engine/run/train/gradient_bits.h"

namespace thinwire {

DType wire_dtype(const RunConfig& config, Site site) {
  const bool wide = site == Site::kDpGradient || site == Site::kEmbedding || site == Site::kControl;
  return wide ? DType::f32 : config.model.dtype;
}

bool compresses_param_sync(const RunConfig& config, int stage) {
  return std::ranges::any_of(config.compression.at(Site::kZeroParameter), [&](const SiteRule& rule) {
    return rule.codec.codec != "identity" && selects_stage(rule.select, stage);
  });
}

bool compresses_tied_param_sync(const RunConfig& config, int stages) {
  return compresses_param_sync(config, 0) && compresses_param_sync(config, stages - 1);
}

Mesh::Compressions compressions_of(const RunConfig& config, const RankLayout& layout) {
  Mesh::Compressions compressions;
  for (const auto& [site, rules] : config.compression.rules) {
    const bool joins_stages = site == Site::kPpForward || site == Site::kPpBackward || site == Site::kEmbedding;
    for (const SiteRule& rule : rules) {
      const bool here = joins_stages || selects_stage(rule.select, layout.at.pipeline);
      compressions[static_cast<size_t>(site)].push_back(here ? make_site_compression(site, rule) : nullptr);
    }
  }
  return compressions;
}

namespace {

// Calls visit(compression) for every rule of this layout that codes.
template <typename Visit>
void each_compression(const RunConfig& config, const MeshShape& mesh, const Visit& visit) {
  const RuleContext context{.stages = mesh.pipeline, .data = mesh.data, .tensor = mesh.tensor, .context = mesh.context};
  for (const auto& [site, rules] : config.compression.rules) {
    if (!absent(site, context).empty()) continue;
    for (const SiteRule& rule : rules)
      if (const auto compression = make_site_compression(site, rule); compression != nullptr) visit(*compression);
  }
}

}  // namespace

int64_t steps_of_warm_up(const RunConfig& config, const MeshShape& mesh, bool with_ramps) {
  int64_t longest = 0;
  each_compression(config, mesh, [&](const SiteCompression& c) {
    longest = std::max({longest, c.rule.warmup_steps, with_ramps && !c.later.empty() ? c.later.back().first : 0});
  });
  return longest;
}

SiteWays coding_ways(const RunConfig& config, const MeshShape& mesh) {
  struct Has {
    bool light = false, bf16 = true;
  };
  std::map<Site, Has> sites;
  each_compression(config, mesh, [&](const SiteCompression& c) {
    const bool wide = wire_dtype(config, c.site) == DType::f32;
    const SiteCompression& last = compression_at(c, INT64_MAX);
    Has& has = sites[c.site];
    has.light = has.light || last.light != nullptr;
    has.bf16 = has.bf16 && wide && last.bf16 != nullptr;
  });
  SiteWays ways;
  for (const auto& [site, has] : sites) {
    ways[site] = {CodingWay::kCoded};
    if (has.light) ways[site].push_back(CodingWay::kLight);
    if (has.bf16) ways[site].push_back(CodingWay::kBf16);
    ways[site].push_back(CodingWay::kPlain);
  }
  return ways;
}

namespace {

// What this rank's forward begins with, and its backward ends with.
bool is_awaited(const RankLayout& layout, int unit) {
  if (unit == attention_unit(layout.shard.chunks.front().first)) return true;
  return layout.shard.first && (unit == kEmbeddingUnit || unit == position_unit(layout.shard.whole.layers));
}

// Whether the length of a payload goes by the matrices in the message.
bool codes_matrices(const CodecSpec& spec) {
  const MadeCodec made = make_codec(spec);
  return made.rounds != nullptr && made.rounds->traits().matrices;
}

}  // namespace

std::vector<UnitRule> rules_of_unit(const std::vector<SiteRule>& rules, const RankLayout& layout,
                                    const ParamList& params, int unit) {
  std::vector<UnitRule> found =
      unit_rules(rules, layout.at.pipeline, unit, static_cast<int>(layout.shard.whole.layers));
  const int64_t tensor_ranks = layout.mesh.tensor;
  if (tensor_ranks == 1) return found;
  const bool uneven = std::ranges::any_of(params, [&](const ParamSpec& p) {
    return p.unit == unit && p.is_sharded() && p.room() * tensor_ranks != p.count();
  });
  const auto mixes = [&](const CodecSpec& spec) {
    return !codes_within(spec, kQuantum) || (uneven && codes_matrices(spec));
  };
  for (UnitRule& each : found) {
    const SiteRule& rule = rules[static_cast<size_t>(each.number)];
    each.skip_replicated = mixes(rule.codec) || mixes(rule.sum_codec);
  }
  return found;
}

void select_unit_messages(const RunConfig& config, const RankLayout& layout, const ParamStore& store,
                          std::vector<UnitMemory>& units) {
  const std::vector<SiteRule>&gradient = config.compression.at(Site::kDpGradient),
        &embedding = config.compression.at(Site::kEmbedding), &parameter = config.compression.at(Site::kZeroParameter);
  const int layers = static_cast<int>(layout.shard.whole.layers), stage = layout.at.pipeline;
  const std::vector<GradientBits> chosen = gradient_bits(config, layout, store);
  for (size_t u = 0; u < units.size(); ++u) {
    UnitMemory& unit = units[u];
    if (unit.count == 0) continue;
    const int number = static_cast<int>(u);
    const std::vector<SiteRule>& rules = unit.tied ? embedding : gradient;
    std::vector<UnitRule> mine = rules_of_unit(rules, layout, store.params(), number);
    if (const auto found = std::ranges::find(chosen, number, &GradientBits::unit); found != chosen.end())
      mine = found->rules;
    unit.pieces = split_unit(mine, number, unit.shard, store.layout().units[u], store.params());
    if (!rules.empty() || !parameter.empty()) {
      const Unit& place = store.layout().units[u];
      unit.padding = padding_in({0, place.count}, place);
      unit.weights_padding = padding_in(unit.shard.weights, place);
    }
    MessageKey& weights = unit.weights_key;
    weights.rule = first_unit_rule(parameter, stage, number, layers);
    // A tied embedding is one message of two stages: alike on both.
    const int last = layout.mesh.pipeline - 1;
    if (unit.tied && first_unit_rule(parameter, 0, number, layers) != first_unit_rule(parameter, last, number, layers))
      weights.rule = kNoRule;
    weights.awaited = unit.tied || is_awaited(layout, number);
    for (UnitPiece& piece : unit.pieces) piece.awaited = weights.awaited;
  }
}

void use_layer_rules(const RunConfig& config, const RankLayout& layout, Ports& ports) {
  const int layers = static_cast<int>(layout.shard.whole.layers);
  const auto rules = [&](Site site) {
    std::vector<int> of_units;
    for (int u = 0; u <= position_unit(layers); ++u)
      of_units.push_back(first_unit_rule(config.compression.at(site), layout.at.pipeline, u, layers));
    return of_units;
  };
  ports.tp.use_rules(rules(Site::kTpForward), rules(Site::kTpBackward));
  ports.sequence.use_rules(rules(Site::kSequenceForward), rules(Site::kSequenceBackward));
}

namespace {

// body(edge, forward) for each boundary message that this rank sends.
template <typename Body>
void for_sent_edges(const RankLayout& layout, const Body& body) {
  const int stages = layout.pipeline.stages, last = stages * layout.pipeline.chunks - 1;
  for (int chunk = 0; stages > 1 && chunk < layout.pipeline.chunks; ++chunk) {
    const int edge = chunk * stages + layout.at.pipeline;  // below this virtual stage
    if (edge < last) body(edge, true);
    if (edge > 0) body(edge - 1, false);
  }
}

}  // namespace

void prepare_states(const RunConfig& config, const RankLayout& layout, const BatchShape& shape,
                    const std::vector<UnitMemory>& units, Ports& ports) {
  for (const UnitMemory& unit : units) {
    if (unit.count == 0) continue;
    unit.tied ? ports.embedding.prepare(unit.pieces) : ports.dp.prepare(unit.pieces);
  }
  const int64_t rows = layout.shard.part_rows(shape.tokens()), cols = layout.shard.whole.hidden;
  for_sent_edges(layout, [&](int edge, bool forward) {
    const size_t rules = config.compression.at(forward ? Site::kPpForward : Site::kPpBackward).size();
    for (size_t r = 0; r < rules; ++r) ports.pp.prepare(edge, static_cast<int>(r), forward, rows, cols);
  });
}

namespace {

// Elements of a message between stages.
int64_t message_elements(const RunConfig& config, const RankLayout& layout) {
  int64_t rows = layout.shard.part_rows(config.data.micro_batch * config.data.seq_length);
  if (layout.sends_parts) rows = (rows + layout.mesh.tensor - 1) / layout.mesh.tensor;
  return rows * config.model.hidden;
}

// How long it takes, in forward passes of the average layer. Where the configuration does not say
// how fast link and layers are: a tenth of a stage's forward.
double message_time(const RunConfig& config, const RankLayout& layout) {
  const LayoutConfig& l = config.layout;
  const int virtual_stages = layout.pipeline.stages * layout.pipeline.chunks;
  const bool layers_timed = l.costs_given || l.partition == PartitionMethod::kTime;
  if (l.link_gbps <= 0.0 || !layers_timed || l.layer_ms <= 0.0)
    return 0.1 * static_cast<double>(config.model.layers) / virtual_stages;
  const double bytes =
      static_cast<double>(message_elements(config, layout)) * static_cast<double>(size_of(config.model.dtype));
  constexpr double kPasses = 3.0;  // layer_ms is forward and backward
  return bytes * 8e-6 / l.link_gbps / (l.layer_ms / kPasses);
}

// Bytes of a message between stages under this rule, over those that it has as it is.
double coded_share(const RunConfig& config, Site site, const SiteRule& rule) {
  const std::shared_ptr<SiteCompression> compression = make_site_compression(site, rule);
  const Coder* const coder = compression == nullptr ? nullptr : compression_at(*compression, INT64_MAX).first.get();
  if (coder == nullptr) return 1.0;
  const int64_t count = message_elements(config, layout_of(config, 0));
  const MatrixShape matrix{0, count / config.model.hidden, config.model.hidden};
  Msg msg;
  msg.matrices = {&matrix, 1};
  return static_cast<double>(coder->message_bytes(msg, count, config.model.dtype)) /
         (static_cast<double>(count) * static_cast<double>(size_of(config.model.dtype)));
}

// Of each rule: which messages it codes. What a critical one leaves falls under the next that is for the same stages.
std::vector<PipelineMessages> messages_of_rules(const RunConfig& config, Site site, const PipelineShape& shape,
                                                const NodeCosts& costs) {
  std::vector<PipelineMessages> messages;
  const std::vector<SiteRule>& rules = config.compression.at(site);
  for (auto rule = rules.begin(); rule != rules.end(); ++rule) {
    const auto behind = std::find_if(rule + 1, rules.end(), [&](const SiteRule& r) {
      return r.select.micro_batches != MicroBatches::kEpilogue &&
             (r.select.stages.empty() || r.select.stages == rule->select.stages);
    });
    const double share = behind == rules.end() ? 1.0 : coded_share(config, site, *behind);
    messages.emplace_back(rule->select, site == Site::kPpForward, shape, costs, share * costs.transfer);
  }
  return messages;
}

}  // namespace

NodeCosts pipeline_costs(const RunConfig& config) {
  NodeCosts costs = node_costs(config);
  costs.transfer = message_time(config, layout_of(config, 0));
  return costs;
}

PipelineCompression pipeline_compression(const RunConfig& config, const PipelineShape& shape) {
  PipelineCompression compression;
  if (shape.stages == 1) return compression;
  const NodeCosts costs = pipeline_costs(config);
  compression.forward = messages_of_rules(config, Site::kPpForward, shape, costs);
  compression.backward = messages_of_rules(config, Site::kPpBackward, shape, costs);
  return compression;
}

MessageKey PipelineCompression::key(const Message& message) const {
  const std::vector<PipelineMessages>& rules = message.forward ? forward : backward;
  const auto found =
      std::ranges::find_if(rules, [&](const PipelineMessages& r) { return r.coded(message.edge, message.micro); });
  return {static_cast<uint32_t>(message.edge),
          found == rules.end() ? kNoRule : static_cast<int>(found - rules.begin())};
}

MessageKey evaluation_key(const RunConfig& config, int edge, int stages) {
  const std::vector<SiteRule>& rules = config.compression.at(Site::kPpForward);
  const auto found = std::ranges::find_if(rules, [&](const SiteRule& rule) {
    return rule.select.micro_batches == MicroBatches::kAll && selects_stage(rule.select, edge % stages);
  });
  return {static_cast<uint32_t>(edge), found == rules.end() ? kNoRule : static_cast<int>(found - rules.begin())};
}

}  // namespace thinwire
