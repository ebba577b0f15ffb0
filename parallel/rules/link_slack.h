// Spends the slack of messages that leave one after the other over one link: how many more bits each may have before
// anything is late.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace thinwire {

// Milliseconds. A message leaves when it is ready and those before it have left.
struct QueuedMessage {
  double ready = 0.0;
  std::vector<double> ms;  // on the link, by choice: the first has the fewest bits. Never empty
  double due = std::numeric_limits<double>::infinity();  // when it is needed, if before the deadline
  std::vector<double> worth;  // by choice: what a millisecond more is worth, relative to other messages; empty: 0
};
struct SpentSlack {
  size_t choice = 0;
  double slack = 0.0;  // how much longer this one may take with all messages at their first choice
};
// Every message must end by `deadline` and when it is due or, where first choices already end later, no later than
// those. Choices are raised one by one: those worth most first; those worth the same in rounds, each message by one a
// round, in the order in which they leave, since the first additional bits remove most of the error, and what leaves
// first has most slack. A message that does not fit keeps its choice. Nothing is decided by a clock.
std::vector<SpentSlack> spend_slack(std::span<const QueuedMessage> messages, double deadline);

}  // namespace thinwire
