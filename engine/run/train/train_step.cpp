// The story of a step: forward and backward of every micro-batch, gradients reduced as they finish, one agreed
// decision, optimizer step.
#include "engine/run/train/train_step.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "optim/lr_schedule.h"
#include "optim/optimizer.h"

namespace thinwire {
namespace {

double rate_of_step(const OptimConfig& optim, const TrainProgress& progress) {
  return learning_rate(optim,
                       optim.by_samples ? progress.consumed_samples - progress.skipped_samples : progress.updates);
}

}  // namespace

TrainStep::TrainStep(Replica& replica) : replica_(replica), graphs_(replica), unit_steps_(replica.store()) {
  const Plan plan = make_plan(replica.layout().pipeline, replica.layout().at.pipeline);
  for (int slots : plan.slots) {
    mail_.emplace_back(static_cast<size_t>(slots));
    work_of_.emplace_back(static_cast<size_t>(slots), -1);
  }
}

StepOutcome TrainStep::run(int micro_batches, const std::function<Batch()>& next_micro, TrainProgress& progress,
                           LossScaler& scaler, StepTimer& timer) {
  Replica& r = replica_;
  prepare(micro_batches);
  const Call call{micro_batches, next_micro, progress, timer};
  TrafficCounts between;
  take_control_time(r, between);  // what ranks waited for each other between the steps is no part of this one
  StepOutcome outcome;
  const int64_t consumed = progress.consumed_samples;
  outcome.lr = rate_of_step(r.config().optim, progress);
  outcome.loss_scale = scaler.scale();
  const float scale = static_cast<float>(outcome.loss_scale);
  r.write(r.buffers().dlogits_scale, &scale, sizeof scale);
  if (r.mesh() != nullptr) {
    CompressionClock& clock = r.mesh()->clock();
    clock.step = progress.updates, ++clock.pass;
    clock.loss_scale = scale, clock.train = true;
  }
  if (r.momentum() != nullptr) r.momentum()->begin(r.exec(), progress.updates, outcome.loss_scale);
  if (r.counts_tokens()) count_tokens(call);
  const double sums[kSumCount] = {};
  r.write(r.buffers().sums, sums, sizeof sums);
  r.traffic().begin(uses_);
  r.store().begin_gradients();

  for (const PlanNode& node : plan_.nodes) {
    const auto from = StepTimer::Clock::now();
    execute(node, call, outcome);
    if (node_sink_) node_sink_(node, from, StepTimer::Clock::now());
  }
  ++progress.step;
  if (outcome.skipped) {
    ++progress.skipped;
    progress.skipped_samples += progress.consumed_samples - consumed;
    if (!outcome.spike.skip) ++progress.skipped_in_a_row;
  } else {
    ++progress.updates;
    progress.skipped_in_a_row = 0;
    r.optimizer().moment_steps() = r.optimizer().moment_steps().after(r.summed());
    if (r.mesh() != nullptr) r.mesh()->clock().step = progress.updates;  // an evaluation's, too
  }
  if (!outcome.spike.skip) scaler.update(outcome.skipped);  // which a spike says nothing to
  return outcome;
}

StepOutcome TrainStep::leave_out(int micro_batches, const std::function<Batch()>& next_micro, TrainProgress& progress,
                                 const LossScaler& scaler, StepTimer& timer) {
  prepare(micro_batches);
  StepOutcome outcome;
  outcome.lr = rate_of_step(replica_.config().optim, progress);
  outcome.loss_scale = scaler.scale();
  outcome.loss = outcome.grad_norm = std::numeric_limits<double>::quiet_NaN();
  outcome.skipped = outcome.listed = true;
  const int64_t consumed = progress.consumed_samples;
  const Call call{micro_batches, next_micro, progress, timer};
  for (int micro = 0; micro < micro_batches; ++micro) {
    read_batches(micro, call);
    batches_.clear();  // one at a time: nobody has planned memory for all of them
  }
  ++progress.step, ++progress.skipped;
  progress.skipped_samples += progress.consumed_samples - consumed;
  return outcome;
}

// The plan depends on the number of micro-batches alone, which changes with the batch ramp.
void TrainStep::prepare(int micro_batches) {
  batches_.clear();
  batches_read_ = 0;
  work_ = {};
  if (planned_micro_batches_ == micro_batches) return;
  PipelineShape shape = replica_.layout().pipeline;
  shape.micro_batches = micro_batches;
  plan_ = make_plan(shape, replica_.layout().at.pipeline);
  uses_ = replica_.uses_of(plan_);
  compression_ = pipeline_compression(replica_.config(), shape);
  planned_micro_batches_ = micro_batches;
  TW_CHECK(plan_.weight_halves <= replica_.weight_halves() && plan_.slots.size() == mail_.size());
  for (size_t c = 0; c < mail_.size(); ++c)
    TW_CHECK(plan_.slots[c] <= static_cast<int>(mail_[c].size()), "more slots than a full batch needs");
}

void TrainStep::execute(const PlanNode& node, const Call& call, StepOutcome& outcome) {
  StepTimer& timer = call.timer;
  switch (node.kind) {
    case NodeKind::kForward:
      return forward(node, call);
    case NodeKind::kBackward:
    case NodeKind::kBackwardInput:
    case NodeKind::kBackwardWeight: {
      const auto t = timer.measure(StepPart::kBackward);
      return backward(node);
    }
    case NodeKind::kExchange:
      return exchange(node);
    case NodeKind::kReduce: {
      const auto t = timer.measure(StepPart::kBackward);
      return replica_.traffic().finish_reductions();
    }
    case NodeKind::kControl: {
      const auto t = timer.measure(StepPart::kOptimizer);
      return control(outcome);
    }
    case NodeKind::kOptimizer: {
      const auto t = timer.measure(StepPart::kOptimizer);
      return step_weights(outcome);
    }
    case NodeKind::kGather: {
      const auto t = timer.measure(StepPart::kOptimizer);
      if (!outcome.skipped) return step_and_gather();
      return replica_.traffic().forget_gathered();  // the next step gathers as behind any other
    }
  }
}

void TrainStep::read_batches(int last, const Call& call) {
  const auto t = call.timer.measure(StepPart::kData);
  const RankLayout& layout = replica_.layout();
  const int64_t dp = layout.data_size();
  for (; batches_read_ <= last; ++batches_read_) {
    const Batch& batch = batches_[batches_read_] = call.next_micro();
    call.progress.consumed_samples += batch.rows * dp;
    call.progress.consumed_tokens += batch.rows * replica_.config().data.seq_length * dp;
    if (layout.shard.cut.whole()) continue;
    const AttentionPairs work =
        attention_pairs(batch, layout.shard.cut, layout.shard.whole.window, layout.shard.exchanges_heads());
    work_.busiest += work.busiest, work_.total += work.total;
  }
}

// Gradients are divided by the tokens that count in the whole step, so these are known before the first of them.
void TrainStep::count_tokens(const Call& call) {
  Replica& r = replica_;
  read_batches(call.micro_batches - 1, call);
  step_tokens_ = 0.0;
  for (const auto& [micro, batch] : batches_) step_tokens_ += counted_tokens(batch);
  const View total = r.buffers().sums.element_range(kSumLoss, 1);
  r.write(total, &step_tokens_, sizeof step_tokens_);
  r.ports().control.sum(total, r.stream()).wait(r.stream());
  r.read(total, &step_tokens_);
  step_tokens_ /= static_cast<double>(r.layout().copies() * r.layout().mesh.context);  // batches are whole sequences
}

void TrainStep::forward(const PlanNode& node, const Call& call) {
  Replica& r = replica_;
  Stage& stage = r.stage(node.chunk);
  const int64_t dp = r.layout().data_size();
  read_batches(node.micro, call);
  const auto t = call.timer.measure(StepPart::kForward);
  Mail& m = mail(node.chunk, node.slot);
  m.activation_in.wait(r.stream());
  m.activation_out.wait(r.stream());
  const Batch& batch = batches_.at(node.micro);
  const double tokens =
      r.counts_tokens() ? step_tokens_ : counted_tokens(batch) * static_cast<double>(call.micro_batches * dp);
  const MicroBatch micro = r.upload(batch, tokens, true, node.chunk, node.slot);
  if (node.chunk == r.chunks() - 1) batches_.erase(node.micro);
  r.traffic().set_last(false);
  stage.occupy(micro, node.slot);
  graphs_.run(StepGraphs::kForward, node.chunk, node.slot, node.micro == 0,
              [&] { stage.queue_forward(r.exec(), node.slot); });
  r.traffic().set_node_end();
}

void TrainStep::backward(const PlanNode& node) {
  Replica& r = replica_;
  Stage& stage = r.stage(node.chunk);
  Mail& m = mail(node.chunk, node.slot);
  int& work = work_of_.at(static_cast<size_t>(node.chunk)).at(static_cast<size_t>(node.slot));
  r.traffic().set_last(node.last);
  if (node.kind == NodeKind::kBackwardWeight) {
    stage.backward_weight(r.exec(), r.weight_work(work));
    work = -1;
  } else {
    m.gradient_in.wait(r.stream());
    m.gradient_out.wait(r.stream());
    if (node.kind == NodeKind::kBackward) {
      graphs_.run(StepGraphs::kBackward, node.chunk, node.slot, node.micro == 0,
                  [&] { stage.queue_backward(r.exec(), node.slot); });
      stage.vacate(node.slot);
    } else {
      for (work = 0; work < r.weight_halves() && r.weight_work(work).chunk_slot >= 0;) ++work;
      TW_CHECK(work < r.weight_halves(), "more weight halves outstanding than planned");
      stage.backward_input(r.exec(), node.slot, r.weight_work(work));
    }
  }
  r.traffic().set_node_end();
}

void TrainStep::exchange(const PlanNode& node) {
  Replica& r = replica_;
  r.ports().pp.begin_exchange(r.stream());
  for (const Message& message : node.messages) {
    Mail& m = mail(message.chunk, message.slot);
    Stage& stage = r.stage(message.chunk);
    PpBoundary& pp = r.ports().pp;
    const MessageKey key = compression_.key(message);
    if (message.forward) {
      if (message.send)
        m.activation_out = pp.send_forward(stage.output(message.slot), r.stream(), key);
      else
        m.activation_in = pp.receive_forward(stage.input(message.slot), r.stream(), key);
    } else if (message.send) {
      m.gradient_out = pp.send_backward(stage.input_gradient(message.slot), r.stream(), key);
    } else {
      m.gradient_in = pp.receive_backward(stage.output_gradient(message.slot), r.stream(), key);
    }
  }
  r.ports().pp.end_exchange(r.stream());
}

// All ranks decide the same: loss, squared norm and wishes are summed first, and everything below follows from those
// sums alone.
void TrainStep::control(StepOutcome& outcome) {
  Replica& r = replica_;
  const OptimConfig& optim = r.config().optim;
  // Counters are complete, and states may be settled, only when the last messages have left.
  for (auto& chunk : mail_) {
    for (Mail& m : chunk) m.activation_out.wait(r.stream()), m.gradient_out.wait(r.stream());
  }
  if (gradient_sink_) gradient_sink_();
  const View sums = r.buffers().sums;
  if (!r.reports_loss()) r.zero(sums.element_range(kSumLoss, 1));
  const StepWishes wishes = wishes_ ? wishes_() : StepWishes();
  const double mine[] = {wishes.stop ? 1.0 : 0.0, wishes.save ? 1.0 : 0.0, 0.0, work_.busiest, work_.total};
  r.write(sums.element_range(kSumStop, 5), mine, sizeof mine);
  graphs_.run(StepGraphs::kNorms, 0, 0, true, [&] {
    for (const View& gradient : r.counted_gradients())
      r.exec().ops.sum_squares(r.exec(), {gradient, sums.element_range(kSumNorm, 1)});
    // Adds nothing but what is not finite: a step is skipped for any rank's.
    for (const View& gradient : r.copied_gradients())
      r.exec().ops.sum_squares(r.exec(), {gradient, sums.element_range(kSumNorm, 1), 0.0});
  });
  take_counters(r, outcome);  // nothing is under way here, so they are complete
  r.ports().control.sum(sums, r.stream()).wait(r.stream());
  double total[kSumCount];
  r.read(sums, total);
  take_control_time(r, outcome);
  add_findings(r, outcome);
  r.exec().state->check_faults(r.stream());
  outcome.read_totals(total);
  outcome.loss = total[kSumLoss];
  outcome.grad_norm = std::sqrt(total[kSumNorm]) / outcome.loss_scale;
  if (total[kSumWork] > 0.0)
    outcome.attention_imbalance = total[kSumBusiest] * r.layout().mesh.context / total[kSumWork];
  outcome.stop = total[kSumStop] > 0.0;
  outcome.save = total[kSumSave] > 0.0;
  // A codec may have made something finite of what was not (law 8): whoever packed it says so here.
  const bool coded_non_finite = total[kSumNonFinite] > 0.0;
  outcome.skipped = coded_non_finite || !std::isfinite(outcome.grad_norm) || !std::isfinite(outcome.loss);
  if (outcome.skipped) {
    outcome.non_finite = !std::isfinite(outcome.grad_norm) ? first_non_finite()
                         : coded_non_finite                ? "a coded message"
                                                           : "loss";
    return;
  }
  if (spike_guard_ != nullptr) outcome.spike = spike_guard_->judge(outcome.loss);
  outcome.skipped = outcome.spike.skip;
  if (outcome.skipped) return;
  const Summed summed = r.summed();
  const MomentSteps seen = r.optimizer().moment_steps().after(summed);
  StepState state;
  state.lr = static_cast<float>(outcome.lr);
  state.bias_correction1 = static_cast<float>(1.0 - std::pow(optim.beta1, static_cast<double>(seen.m)));
  state.bias_correction2 = static_cast<float>(1.0 - std::pow(optim.beta2, static_cast<double>(seen.v)));
  const double clip = summed == Summed::kMomentum ? 1.0 : clip_coefficient(outcome.grad_norm, optim.clip);
  state.grad_scale = static_cast<float>(clip / outcome.loss_scale);
  state.loss_scale = static_cast<float>(outcome.loss_scale);
  state.weight_decay = static_cast<float>(optim.weight_decay);
  r.write(r.buffers().state, &state, sizeof state);
}

void TrainStep::step_weights(const StepOutcome& outcome) {
  Replica& r = replica_;
  if (r.mesh() != nullptr) r.mesh()->settle_states(!outcome.skipped);
  if (outcome.skipped) {
    for (const View& memory : r.store().gradient_memory()) r.zero(memory);  // a skipped step leaves no trace
    return;
  }
  if (unit_steps_.has_local())
    graphs_.run(StepGraphs::kUpdate, 0, 0, true, [&] { unit_steps_.local([&](size_t piece) { step_piece(piece); }); });
}

// Reads each gradient once and leaves zero what is added to.
void TrainStep::step_piece(size_t piece) {
  Replica& r = replica_;
  r.optimizer().apply_piece(r.exec(), r.buffers().state, piece, r.summed());
}

// Steps the weights unit by unit and starts the parameter all-gather of each at once: those that the next forward pass
// needs first travel while others are stepped, the last ones during that pass.
void TrainStep::step_and_gather() {
  if (replica_.mesh() != nullptr) replica_.mesh()->begin_parameter_gathers();
  unit_steps_.begin();
  replica_.traffic().start_param_sync(
      [&](int unit) { unit_steps_.unit(unit, [&](size_t piece) { step_piece(piece); }); });
  TW_CHECK(unit_steps_.complete(), "a piece was not updated");
  replica_.store().bump_version();
}

// The first tensor, in the order of the model, in which some rank found a value that is not finite.
std::string TrainStep::first_non_finite() {
  Replica& r = replica_;
  const View norm = r.buffers().sums.element_range(kSumNorm, 1);
  constexpr int64_t kNone = int64_t{1} << 40;
  int64_t found = kNone;
  std::string name = "sum of gradients";  // every tensor is finite, their squares together are not
  for (const OwnedPiece& piece : r.store().owned()) {
    const Unit& unit = r.store().layout().units[static_cast<size_t>(piece.unit)];
    const int64_t first = unit.first + piece.range.first, end = first + piece.range.count;
    for (size_t i = 0; i < r.store().params().size(); ++i) {
      const ParamSpec& p = r.store().params()[i];
      const Segment& s = r.store().layout().by_param[i];
      const int64_t a = std::max(first, s.offset), b = std::min(end, s.offset + s.count);
      if (a >= b || static_cast<int64_t>(p.id) >= found) continue;
      r.zero(norm);
      r.exec().ops.sum_squares(r.exec(), {piece.gradient.element_range(a - first, b - a), norm});
      double value = 0.0;
      r.read(norm, &value);
      if (!std::isfinite(value)) found = p.id, name = p.name;
    }
  }
  const int64_t least = -r.ports().control.agree_max(-found);
  if (least == kNone) return name;
  const int64_t holder = r.ports().control.agree_max(found == least ? r.ports().control.rank() : -1);
  return r.ports().control.share(name, static_cast<int>(holder));
}

}  // namespace thinwire
