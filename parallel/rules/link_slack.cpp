// How much longer each message of a link's queue may take, and which get more bits for it: greedily.
#include "parallel/rules/link_slack.h"

#include <algorithm>
#include <utility>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

double time_of(const QueuedMessage& message, size_t choice) {
  TW_CHECK(choice < message.ms.size(), "a message has ", message.ms.size(), " choices");
  return message.ms[choice];
}

// When each message ends. choices: empty: the first of each.
std::vector<double> ends_of(std::span<const QueuedMessage> messages, std::span<const SpentSlack> choices) {
  std::vector<double> ends;
  double end = 0.0;
  for (size_t i = 0; i < messages.size(); ++i) {
    end = std::max(end, messages[i].ready) + time_of(messages[i], choices.empty() ? 0 : choices[i].choice);
    ends.push_back(end);
  }
  return ends;
}

// How much longer message `at` may take, for it and all after it to end within their limits.
double slack_of(std::span<const QueuedMessage> messages, std::span<const SpentSlack> choices, size_t at,
                std::span<const double> limits) {
  double end = ends_of(messages.first(at + 1), choices).back(), slack = limits[at] - end;
  for (size_t i = at + 1; i < messages.size(); ++i) {
    end += time_of(messages[i], choices[i].choice);  // no pause: a longer message before it fills that first
    slack = std::min(slack, limits[i] - end);
  }
  return slack;
}

}  // namespace

std::vector<SpentSlack> spend_slack(std::span<const QueuedMessage> messages, double deadline) {
  std::vector<SpentSlack> spent(messages.size());
  std::vector<double> limits = ends_of(messages, {});
  if (!limits.empty()) deadline = std::max(deadline, limits.back());
  for (size_t i = 0; i < messages.size(); ++i) limits[i] = std::max(limits[i], std::min(messages[i].due, deadline));
  for (size_t i = 0; i < messages.size(); ++i) spent[i].slack = slack_of(messages, spent, i, limits);
  // Sums of durations round. So that rounding decides nothing, a message that would take all of its slack does not fit,
  // and one that would take no longer does.
  const double rounding = 1e-9 * deadline;
  // Of equal worth the one raised the fewest times: none gets all before another gets any.
  const auto worth = [&](size_t i) {
    const size_t next = spent[i].choice + 1;
    return std::pair(messages[i].worth.empty() ? 0.0 : messages[i].worth[next], -static_cast<int>(next));
  };
  std::vector<size_t> open;
  for (size_t i = 0; i < messages.size(); ++i)
    if (messages[i].ms.size() > 1) open.push_back(i);
  while (!open.empty()) {
    const auto best = std::ranges::max_element(open, {}, worth);  // the first of equal ones
    const size_t i = *best, next = spent[i].choice + 1;
    const double longer = messages[i].ms[next] - messages[i].ms[next - 1];
    const double margin = longer > 0.0 ? -rounding : rounding;
    const bool fits = longer <= slack_of(messages, spent, i, limits) + margin;
    if (fits) spent[i].choice = next;
    if (!fits || next + 1 == messages[i].ms.size()) open.erase(best);
  }
  return spent;
}

}  // namespace thinwire
