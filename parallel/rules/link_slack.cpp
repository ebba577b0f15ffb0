// Total float of a queue on one link, and its greedy use.
#include "parallel/rules/link_slack.h"

#include <algorithm>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

double time_of(const QueuedMessage& message, size_t choice) {
  TW_CHECK(choice < message.ms.size(), "a message has ", message.ms.size(), " choices");
  return message.ms[choice];
}

// How much longer message `at` may take: whatever is ready before it or with it, and all behind that, still fits.
double slack_of(std::span<const QueuedMessage> messages, std::span<const SpentSlack> choices, size_t at,
                double deadline) {
  double rest = 0.0, latest = 0.0;
  for (size_t i = messages.size(); i-- > 0;) {
    rest += time_of(messages[i], choices[i].choice);
    if (i <= at) latest = std::max(latest, messages[i].ready + rest);
  }
  return deadline - latest;
}

}  // namespace

double queue_end(std::span<const QueuedMessage> messages, std::span<const SpentSlack> choices) {
  double end = 0.0;
  for (size_t i = 0; i < messages.size(); ++i)
    end = std::max(end, messages[i].ready) + time_of(messages[i], choices.empty() ? 0 : choices[i].choice);
  return end;
}

std::vector<SpentSlack> spend_slack(std::span<const QueuedMessage> messages, double deadline) {
  std::vector<SpentSlack> spent(messages.size());
  deadline = std::max(deadline, queue_end(messages));
  for (size_t i = 0; i < messages.size(); ++i) spent[i].slack = slack_of(messages, spent, i, deadline);
  // Sums of durations round: what is equal on paper must not fall on either side of the limit.
  const double rounding = 1e-9 * deadline;
  for (size_t choice = 1;; ++choice) {
    bool more = false;
    for (size_t i = 0; i < messages.size(); ++i) {
      if (spent[i].choice + 1 != choice || choice >= messages[i].ms.size()) continue;
      more = true;
      const double longer = messages[i].ms[choice] - messages[i].ms[choice - 1];
      if (longer <= slack_of(messages, spent, i, deadline) + (longer > 0.0 ? -rounding : rounding))
        spent[i].choice = choice;
    }
    if (!more) return spent;
  }
}

}  // namespace thinwire
