// Spending what hides messages: those that leave one behind the other over one link, and how many more bits each of
// them may have before anything is later.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace thinwire {

// Milliseconds. What leaves is ready first and waits for what left before it.
struct QueuedMessage {
  double ready = 0.0;
  std::vector<double> ms;  // on the link, by choice: the first has the fewest bits. Never empty
  double due = std::numeric_limits<double>::infinity();  // when somebody needs it, if that is before the deadline
  std::vector<double> worth;  // by choice: what a millisecond more of it is worth, beside other messages; empty: 0
};
struct SpentSlack {
  size_t choice = 0;
  double slack = 0.0;  // with all messages at their first choice: by how much this one may take longer
};
// The queue must be over by `deadline`, and each message when it is due, or, where even first choices are later than
// that, when those are. Choices are raised one by one, what is worth most first, and what is worth the same in
// rounds, each message by one a round, in the order in which they leave: the first bits more take most of the error,
// and what leaves first has most to spare. What does not fit keeps its choice. Nothing is decided by a clock.
std::vector<SpentSlack> spend_slack(std::span<const QueuedMessage> messages, double deadline);

}  // namespace thinwire
