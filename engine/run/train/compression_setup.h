// From the rules of a configuration to what one rank codes: coders per site, the messages of its units, its pipeline
// messages.
#pragma once

#include "engine/run/config/run_config.h"
#include "engine/run/train/plan_revisions.h"
#include "engine/run/train/rank_layout.h"
#include "model/activations.h"
#include "parallel/channel/mesh.h"
#include "parallel/rules/message_rules.h"
#include "parallel/sites/ports.h"
#include "parallel/sites/unit_traffic.h"

namespace thinwire {

// The type that a site's messages have where nothing codes them.
DType wire_dtype(const RunConfig& config, Site site);
// Whether the parameter all-gather behind the optimizer is compressed, on a rank of this pipeline stage.
bool compresses_param_sync(const RunConfig& config, int stage);
// That of an embedding that first and last stage share: on both, since both hear one message.
bool compresses_tied_param_sync(const RunConfig& config, int stages);
// The coders of a rank: rules whose stages leave this one out are left out. Sites pp.* and embedding join stages, so
// their rules hold on all ranks, and the plan says which messages are coded.
Mesh::Compressions compressions_of(const RunConfig& config, const RankLayout& layout);
// The ways to code the messages of this layout's sites that adapt chooses from; the same on all ranks. bf16 is one
// where the site's values are longer and its rules may lose something.
SiteWays coding_ways(const RunConfig& config, const MeshShape& mesh);
// Steps after which all sites of this layout are compressed: the longest warm-up of their rules. with_ramps: as they
// stay, behind the longest ramp, too.
int64_t steps_of_warm_up(const RunConfig& config, const MeshShape& mesh, bool with_ramps);
// Those of the rules (of dp.gradient or embedding) that select this unit, before `critical` is decided.
// params: local ones of any tensor rank.
std::vector<UnitRule> rules_of_unit(const std::vector<SiteRule>& rules, const RankLayout& layout,
                                    const ParamList& params, int unit);
// Splits the units' gradients by the rules that they fall under, and says which rule the units' weights fall under.
void select_unit_messages(const RunConfig& config, const RankLayout& layout, const ParamStore& store,
                          std::vector<UnitMemory>& units);
// Tells the sites inside of layers which rules their units fall under.
void use_layer_rules(const RunConfig& config, const RankLayout& layout, Ports& ports);
// Makes the states of all messages that keep any, so that a checkpoint can fill them.
void prepare_states(const RunConfig& config, const RankLayout& layout, const BatchShape& shape,
                    const std::vector<UnitMemory>& units, Ports& ports);

// Which rules pipeline messages fall under in a step of so many micro-batches.
struct PipelineCompression {
  std::vector<PipelineMessages> forward, backward;  // per rule
  MessageKey key(const Message& message) const;
};
PipelineCompression pipeline_compression(const RunConfig& config, const PipelineShape& shape);
// node_costs with the time that a message between stages takes: what the configuration carries (settle_layout's
// measurements, too), so the same on all ranks.
NodeCosts pipeline_costs(const RunConfig& config);
// Of an activation in an evaluation: compressed as in training, but for critical messages, since there is no plan that
// says which they are.
MessageKey evaluation_key(const RunConfig& config, int edge, int stages);

}  // namespace thinwire
