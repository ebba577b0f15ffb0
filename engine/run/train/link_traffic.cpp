// Two rehearsed steps, listened to: the second with what the first has left under way.
#include "engine/run/train/link_traffic.h"

#include <algorithm>
#include <limits>

#include "engine/base/core/check.h"
#include "engine/base/ops/op_watch.h"
#include "engine/run/train/step_rehearsal.h"
#include "parallel/rules/message_rules.h"

namespace thinwire {
namespace {

// Where a step is: a node, counted over both steps, and the FLOPs of it that are done.
struct StepMoment {
  int64_t node = 0;
  double flops = 0.0;
};
struct HeardSend {
  Site site = Site::kControl;
  double bytes = 0.0;
  int number = -1;  // among the sends between stages of its node; -1: it is none
  StepMoment issued, waited{std::numeric_limits<int64_t>::max(), 0.0};
};

class LinkListener final : public RehearsalWatch, public OpWatcher {
 public:
  void listen_to(const SitePrices& prices) { prices_ = &prices; }

  Ticket issued(const OperationNote& note) override;
  void end(Exec&, const char*, double flops, double) override { now_.flops += flops; }
  void node_is_over() {
    flops_of_nodes_.push_back(now_.flops);
    now_ = {now_.node + 1, 0.0};
    sends_ = 0;
  }
  void counts_anew() { counted_.fill(0); }

  const std::vector<HeardSend>& messages() const { return messages_; }
  double flops_of(int64_t node) const {
    return node < static_cast<int64_t>(flops_of_nodes_.size()) ? flops_of_nodes_[static_cast<size_t>(node)] : 0.0;
  }

 private:
  const SitePrices* prices_ = nullptr;
  std::array<int64_t, kSiteNames.size()> counted_{};
  std::vector<HeardSend> messages_;
  std::vector<double> flops_of_nodes_;
  StepMoment now_;
  int sends_ = 0;
};

Ticket LinkListener::issued(const OperationNote& note) {
  HeardSend sent;
  sent.site = static_cast<Site>(note.label.number);
  sent.issued = now_;
  for (size_t site = 0; site < counted_.size(); ++site) {
    const int64_t more = (*prices_)[site].bytes - counted_[site];
    counted_[site] += more;
    if (static_cast<Site>(site) != Site::kDpGradient) sent.bytes += static_cast<double>(more);
    // A receive hands on what tensor ranks gather, and is no send between stages.
    const bool own = more > 0 && static_cast<Site>(site) == sent.site;
    if (own && (sent.site == Site::kPpForward || sent.site == Site::kPpBackward)) sent.number = sends_++;
  }
  messages_.push_back(sent);
  return Ticket(std::make_shared<WatchedTicket>([this, n = messages_.size() - 1] { messages_[n].waited = now_; }));
}

// Of the n-th message that a node sends.
const Message& sent_message(const PlanNode& node, int n) {
  for (const Message& m : node.messages)
    if (m.send && n-- == 0) return m;
  TW_CHECK(false, "the rehearsal has sent a message more than its plan");
  return node.messages.front();
}

}  // namespace

std::vector<LinkMessage> link_traffic(const RunConfig& config, int stage, const std::vector<Plan>& plans,
                                      const PlanTimes& times, const NodeCosts& costs, double from) {
  RunConfig rehearsed = config;
  // The rehearsed gradients have the fewest bits: what they have is what is asked here.
  for (SiteRule& rule : rehearsed.compression.rules[Site::kDpGradient]) rule.select.micro_batches = MicroBatches::kAll;
  const RankLayout layout = layout_of(rehearsed, first_rank_of_stage(rehearsed, stage));
  LinkListener listener;
  const WatchedTable table = make_watched_table(rehearsal_ops());
  StepRehearsal rehearsal(rehearsed, layout, &listener);
  listener.listen_to(rehearsal.prices());
  Replica& replica = rehearsal.replica();
  replica.use_exec(make_watched_exec(table, replica.device(), replica.exec(), listener));
  rehearsal.take_steps(
      layout.pipeline.micro_batches, 2,
      [&](const PlanNode&, StepTimer::Clock::time_point, StepTimer::Clock::time_point) { listener.node_is_over(); },
      [&](int, const SitePrices&) { listener.counts_anew(); });

  const std::vector<PlanNode>& nodes = plans[static_cast<size_t>(stage)].nodes;
  const auto count = static_cast<int64_t>(nodes.size());
  const auto closes = [&](int64_t n) { return n >= count || nodes[static_cast<size_t>(n)].kind > NodeKind::kExchange; };
  const auto time_of = [&](const StepMoment& place) {
    const int64_t n = place.node - count;
    if (n < 0) return 0.0;
    if (closes(n)) return std::numeric_limits<double>::infinity();
    const auto s = static_cast<size_t>(stage), i = static_cast<size_t>(n);
    const double all = listener.flops_of(place.node), share = all > 0.0 ? place.flops / all : 0.0;
    return times.start[s][i] + (times.end[s][i] - times.start[s][i]) * share;
  };
  const std::vector<double> slack[] = {message_slack(plans, layout.pipeline, costs, false),
                                       message_slack(plans, layout.pipeline, costs, true)};
  std::vector<LinkMessage> traffic;
  for (const HeardSend& sent : listener.messages()) {
    const int64_t n = sent.issued.node - count;
    if (sent.bytes <= 0.0 || (n >= 0 && closes(n))) continue;  // what closes the step is sent behind the gradients
    LinkMessage message{sent.site, sent.bytes, time_of(sent.issued), time_of(sent.waited)};
    if (n >= 0 && sent.number >= 0) {
      const Message& m = sent_message(nodes[static_cast<size_t>(n)], sent.number);
      const auto number = static_cast<size_t>(m.edge * layout.pipeline.micro_batches + m.micro);
      message.due = message.at + costs.transfer + slack[m.forward ? 1 : 0][number];
    }
    if (message.due > from) traffic.push_back(message);
  }
  std::ranges::stable_sort(traffic, {}, &LinkMessage::at);
  return traffic;
}

}  // namespace thinwire
