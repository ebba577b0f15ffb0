// Queues the gradients of a stage on its link, by plan, layers and codecs, and finds which of them nothing hides.
#include "engine/run/train/gradient_bits.h"

#include <algorithm>
#include <cmath>

#include "engine/base/core/check.h"
#include "engine/base/core/model_units.h"
#include "engine/run/train/compression_setup.h"
#include "engine/run/train/link_traffic.h"
#include "model/model_shard.h"
#include "model/params.h"
#include "parallel/rules/link_slack.h"
#include "parallel/zero/flat_layout.h"

namespace thinwire {
namespace {

// Bytes that a rank sends for a message: its contribution, which is added to *one_way, and with goes_back the sums.
double sent_bytes(const SiteCompression* compression, int64_t count, std::span<const MatrixShape> matrices,
                  bool goes_back, double* one_way) {
  const double plain = 4.0 * static_cast<double>(count);
  double contribution = plain, sums = plain;
  if (compression != nullptr && is_coded(*compression, INT64_MAX, {.matrices = matrices}, count, DType::f32, true)) {
    const SiteCompression& c = compression_at(*compression, INT64_MAX);
    if (c.rounds != nullptr) {
      int64_t numbers = 0;
      for (int r = 0; r < c.rounds->rounds(); ++r) numbers += c.rounds->bound(r, count, 1, matrices);
      contribution = sums = 4.0 * static_cast<double>(numbers);
      goes_back = true;  // all ranks need the sums of all rounds
    } else {
      contribution = static_cast<double>(c.first->wire_bytes(count, DType::f32));
      if (c.sums != nullptr) sums = static_cast<double>(c.sums->wire_bytes(count, DType::f32));
    }
  }
  *one_way += contribution;
  return contribution + (goes_back ? sums : 0.0);
}

struct ReadyUnit {
  int unit = 0;
  double at = 0.0;  // from the start of the step; 1.0 is the forward pass of the average layer
};

// The units of this stage, in the order in which their gradients are complete: in each chunk's last backward pass.
std::vector<ReadyUnit> ready_units(const std::vector<Plan>& plans, const PlanTimes& times, const RankLayout& layout,
                                   const ParamStore& store) {
  const auto stage = static_cast<size_t>(layout.at.pipeline);
  const auto elements = [&](int unit) {
    return static_cast<double>(store.layout().units[static_cast<size_t>(unit)].count);
  };
  std::vector<ReadyUnit> ready;
  for (size_t n = 0; n < plans[stage].nodes.size(); ++n) {
    const PlanNode& node = plans[stage].nodes[n];
    if (!node.last || node.kind == NodeKind::kBackwardInput) continue;
    const LayerRange& layers = layout.shard.chunks[static_cast<size_t>(node.chunk)];
    const double start = times.start[stage][n], end = times.end[stage][n];
    const bool ends_model = layout.shard.last && static_cast<size_t>(node.chunk) + 1 == layout.shard.chunks.size();
    if (ends_model) ready.push_back({head_unit(layout.shard.whole.layers), start});
    double done = 0.0, all = 0.0;
    for (int64_t l = layers.first; l < layers.first + layers.count; ++l)
      all += elements(attention_unit(l)) + elements(mlp_unit(l));
    for (int64_t l = layers.first + layers.count; l-- > layers.first;)
      for (const int unit : {mlp_unit(l), attention_unit(l)})
        ready.push_back({unit, start + (end - start) * (done += elements(unit)) / all});
    if (layout.shard.first && node.chunk == 0)
      for (const int unit : {position_unit(layout.shard.whole.layers), kEmbeddingUnit}) ready.push_back({unit, end});
  }
  std::erase_if(ready, [&](const ReadyUnit& r) {
    const auto u = static_cast<size_t>(r.unit);
    return u >= store.units().size() || store.units()[u].count == 0 || store.units()[u].tied;
  });
  std::ranges::stable_sort(ready, {}, &ReadyUnit::at);
  return ready;
}

// By unit: loss per relative coding error of a gradient's element, in the mean over its elements. Empty: not known.
std::vector<double> weights_of_units(const RunConfig& config) {
  const std::vector<double>& table = config.compression.sensitivities;
  if (table.empty()) return {};
  const auto row = [](const ParamSpec& p) {
    constexpr TensorClass kRows[] = {TensorClass::kEmbedding, TensorClass::kAttention, TensorClass::kMlp};
    return static_cast<size_t>(std::ranges::find(kRows, p.tensor_class) - std::begin(kRows));
  };
  const ParamList params = list_parameters(config.model);
  std::vector<double> class_elements(table.size(), 0.0), unit_elements, weights;
  for (const ParamSpec& p : params)
    if (p.tied_to.empty()) class_elements[row(p)] += static_cast<double>(p.count());
  for (const ParamSpec& p : params) {
    const auto u = static_cast<size_t>(p.unit);
    if (u >= weights.size()) weights.resize(u + 1, 0.0), unit_elements.resize(u + 1, 0.0);
    if (!p.tied_to.empty()) continue;
    weights[u] += table[row(p)] * static_cast<double>(p.count()) / class_elements[row(p)];
    unit_elements[u] += static_cast<double>(p.count());
  }
  for (size_t u = 0; u < weights.size(); ++u) weights[u] /= std::max(1.0, unit_elements[u]);
  return weights;
}

// By choice: how much of the squared error, times `weight`, it takes away per half bit more than the choice before. A
// bit more per element leaves a quarter. Bits are rounded to halves, so that partly filled blocks make no difference.
std::vector<double> worth_of(double weight, std::span<const double> bits) {
  std::vector<double> worth(bits.size(), 0.0);
  const auto halves = [&](size_t choice) { return std::round(2.0 * bits[choice]); };
  for (size_t choice = 1; choice < bits.size(); ++choice) {
    const double more = halves(choice) - halves(choice - 1);
    if (more > 0.0) worth[choice] = weight * (std::exp2(-halves(choice - 1)) - std::exp2(-halves(choice))) / more;
  }
  return worth;
}

}  // namespace

std::vector<GradientBits> gradient_bits(const RunConfig& config, const RankLayout& layout, const ParamStore& store) {
  const std::vector<SiteRule>& rules = config.compression.at(Site::kDpGradient);
  const auto is_critical = [&](const UnitRule& r) {
    return rules[static_cast<size_t>(r.number)].select.micro_batches == MicroBatches::kCritical;
  };
  const bool asked =
      std::ranges::any_of(rules, [](const SiteRule& r) { return r.select.micro_batches == MicroBatches::kCritical; });
  if (!asked || layout.mesh.data == 1) return {};
  const double pass_ms = config.layout.layer_ms / 3.0, share = 1.0 - 1.0 / layout.mesh.data;
  const double ms_per_byte = 8e-6 / config.layout.link_gbps;
  const Mesh::Compressions compressions = compressions_of(config, layout);
  const SiteCompressions& coders = compressions[static_cast<size_t>(Site::kDpGradient)];
  const bool goes_back = layout.where.placement.optimizer == 1;
  const std::vector<Plan> plans = make_plans(layout.pipeline);
  const NodeCosts costs = pipeline_costs(config);
  const PlanTimes times = simulate(plans, layout.pipeline, costs);
  const std::vector<ReadyUnit> units = ready_units(plans, times, layout, store);
  if (units.empty()) return {};
  const std::vector<LinkMessage> traffic =
      link_traffic(config, layout.at.pipeline, plans, times, costs, units.front().at);

  // All tensor ranks choose alike, by what the first one has: where widths do not divide, others have larger matrices.
  ModelShard first = layout.shard;
  first.tensor_rank = 0;
  const ParamList params = list_local_parameters(first);
  const FlatLayout flat = make_flat_layout(params);

  std::vector<GradientBits> bits;
  std::vector<QueuedMessage> queue;
  std::vector<size_t> places;                // of each gradient in the queue
  std::vector<std::vector<double>> lengths;  // of each gradient, by choice: bits of an element, one way
  const std::vector<double> weights = weights_of_units(config);
  auto other = traffic.begin();
  const auto queue_others = [&](double until) {
    for (; other != traffic.end() && other->at <= until; ++other)
      queue.push_back({other->at * pass_ms, {other->bytes * ms_per_byte}, other->due * pass_ms, {}});
  };
  for (const ReadyUnit& ready : units) {
    queue_others(ready.at);
    const Unit& unit = flat.units[static_cast<size_t>(ready.unit)];
    GradientBits each;
    each.unit = ready.unit;
    each.ready_ms = ready.at * pass_ms;
    each.rules = rules_of_unit(rules, layout, params, ready.unit);
    QueuedMessage message;
    message.ready = each.ready_ms;
    lengths.emplace_back();
    // Choice k is without the first k rules for critical gradients.
    for (std::vector<UnitRule> left = each.rules;;) {
      double bytes = 0.0, one_way = 0.0;
      for (const RuleRange& range : rule_ranges(left, unit, params)) {
        const SiteCompression* const compression =
            range.rule < 0 ? nullptr : coders[static_cast<size_t>(range.rule)].get();
        bytes +=
            sent_bytes(compression, range.range.count, matrices_in(range.range, unit, params), goes_back, &one_way);
      }
      message.ms.push_back(share * bytes * ms_per_byte);
      lengths.back().push_back(8.0 * one_way / static_cast<double>(unit.count));
      const auto next = std::ranges::find_if(left, is_critical);
      if (next == left.end()) break;
      left.erase(next);
    }
    if (!weights.empty()) message.worth = worth_of(weights[static_cast<size_t>(ready.unit)], lengths.back());
    bits.push_back(std::move(each));
    places.push_back(queue.size());
    queue.push_back(std::move(message));
  }
  queue_others(times.total);
  const std::vector<SpentSlack> spent = spend_slack(queue, times.total * pass_ms);
  for (size_t i = 0; i < bits.size(); ++i) {
    const SpentSlack& mine = spent[places[i]];
    bits[i].slack_ms = mine.slack;
    bits[i].bits = lengths[i][mine.choice];
    for (size_t left_out = 0; left_out < mine.choice; ++left_out)
      bits[i].rules.erase(std::ranges::find_if(bits[i].rules, is_critical));
  }
  return bits;
}

}  // namespace thinwire
