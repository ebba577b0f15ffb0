// What hides messages is spent, all of it and no more: against queues that are played message by message.
#include "parallel/rules/link_slack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace thinwire::link_slack_test {
namespace {

// A second way to say when a queue is over: whoever is on the link, moment by moment.
double played(const std::vector<QueuedMessage>& messages, const std::vector<double>& ms) {
  double now = 0.0;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (now < messages[i].ready) now = messages[i].ready;
    now += ms[i];
  }
  return now;
}

std::vector<double> times_of(const std::vector<QueuedMessage>& messages, const std::vector<SpentSlack>& spent) {
  std::vector<double> ms;
  for (size_t i = 0; i < messages.size(); ++i) ms.push_back(messages[i].ms[spent[i].choice]);
  return ms;
}

std::vector<QueuedMessage> drawn(std::mt19937& random) {
  std::uniform_int_distribution<int> count(1, 9), choices(1, 4);
  std::uniform_real_distribution<double> gap(0.0, 3.0), first(0.1, 1.5), more(0.1, 2.0);
  std::vector<QueuedMessage> messages(static_cast<size_t>(count(random)));
  double ready = 0.0;
  for (QueuedMessage& m : messages) {
    m.ready = ready += gap(random);
    m.ms.push_back(first(random));
    for (int c = choices(random); c > 1; --c) m.ms.push_back(m.ms.back() + more(random));
  }
  return messages;
}

TEST(LinkSlack, IsHowMuchLongerAMessageMayTake) {
  std::mt19937 random(3);
  for (int draw = 0; draw < 300; ++draw) {
    const std::vector<QueuedMessage> messages = drawn(random);
    const double deadline = std::uniform_real_distribution<double>(0.0, 30.0)(random);
    const std::vector<SpentSlack> spent = spend_slack(messages, deadline);
    const std::vector<double> shortest = times_of(messages, std::vector<SpentSlack>(messages.size()));
    const double limit = std::max(deadline, played(messages, shortest));
    for (size_t i = 0; i < messages.size(); ++i) {
      std::vector<double> ms = shortest;
      ms[i] += spent[i].slack;
      EXPECT_NEAR(played(messages, ms), limit, 1e-9);
      ms[i] += 0.125;
      EXPECT_NEAR(played(messages, ms), limit + 0.125, 1e-9);
      EXPECT_TRUE(i == 0 || spent[i].slack <= spent[i - 1].slack + 1e-12) << "who leaves first has most to spare";
    }
  }
}

TEST(LinkSlack, IsSpentWithoutMakingAnythingLaterAndNothingMoreFits) {
  std::mt19937 random(4);
  int raised = 0, kept = 0;
  for (int draw = 0; draw < 500; ++draw) {
    const std::vector<QueuedMessage> messages = drawn(random);
    const double deadline = std::uniform_real_distribution<double>(0.0, 30.0)(random);
    const std::vector<SpentSlack> spent = spend_slack(messages, deadline);
    const double limit =
        std::max(deadline, played(messages, times_of(messages, std::vector<SpentSlack>(messages.size()))));
    std::vector<double> ms = times_of(messages, spent);
    EXPECT_LE(played(messages, ms), limit + 1e-9);
    for (size_t i = 0; i < messages.size(); ++i) {
      raised += static_cast<int>(spent[i].choice);
      if (spent[i].choice + 1 == messages[i].ms.size()) continue;
      ++kept;
      std::vector<double> one_more = ms;
      one_more[i] = messages[i].ms[spent[i].choice + 1];
      EXPECT_GT(played(messages, one_more), limit) << "message " << i << " could have had more bits";
    }
  }
  EXPECT_GT(raised, 300);
  EXPECT_GT(kept, 300);
}

// Messages that cannot have more bits, and are needed before the end: none of them gets later, by whatever was spent.
TEST(LinkSlack, LeavesInTimeWhatIsNeededSooner) {
  std::mt19937 random(5);
  int raised = 0, held = 0;
  for (int draw = 0; draw < 500; ++draw) {
    std::vector<QueuedMessage> messages = drawn(random);
    for (size_t i = 0; i < messages.size(); i += 2) {
      messages[i].ms.resize(1);
      messages[i].due = messages[i].ready + std::uniform_real_distribution<double>(0.0, 6.0)(random);
    }
    const std::vector<SpentSlack> spent = spend_slack(messages, 40.0);
    const std::vector<double> ms = times_of(messages, spent);
    const auto over = [&](const std::vector<double>& durations, size_t i) {
      const auto n = static_cast<std::ptrdiff_t>(i) + 1;
      return played({messages.begin(), messages.begin() + n}, {durations.begin(), durations.begin() + n});
    };
    const auto late = [&](const std::vector<double>& durations) {
      for (size_t i = 0; i < messages.size(); ++i) {
        const double shortest = over(times_of(messages, std::vector<SpentSlack>(messages.size())), i);
        if (over(durations, i) > std::max(messages[i].due, shortest) + 1e-9) return true;
      }
      return false;
    };
    EXPECT_FALSE(late(ms));
    for (size_t i = 0; i < messages.size(); ++i) {
      raised += static_cast<int>(spent[i].choice);
      if (spent[i].choice + 1 == messages[i].ms.size() || played(messages, ms) > 30.0) continue;
      std::vector<double> one_more = ms;
      one_more[i] = messages[i].ms[spent[i].choice + 1];
      EXPECT_TRUE(late(one_more)) << "message " << i << " could have had more bits";
      ++held;
    }
  }
  EXPECT_GT(raised, 300);
  EXPECT_GT(held, 300);
}

// The bits of all go up together before those of one go up twice.
TEST(LinkSlack, TheFirstBitsMoreGoToAll) {
  const std::vector<QueuedMessage> messages(3, {0.0, {1.0, 2.0, 3.0}});
  const auto choices = [&](double deadline) {
    std::vector<size_t> list;
    for (const SpentSlack& s : spend_slack(messages, deadline)) list.push_back(s.choice);
    return list;
  };
  EXPECT_EQ(choices(3.5), (std::vector<size_t>{0, 0, 0}));
  EXPECT_EQ(choices(5.5), (std::vector<size_t>{1, 1, 0}));
  EXPECT_EQ(choices(7.5), (std::vector<size_t>{2, 1, 1}));
  EXPECT_EQ(choices(99.0), (std::vector<size_t>{2, 2, 2}));
}

// Against all ways to spend it: with messages of one length, what is worth most is the best that fits.
TEST(LinkSlack, WhatIsWorthMostGoesFirst) {
  std::mt19937 random(6);
  std::uniform_real_distribution<double> worth(0.0, 1.0);
  for (int draw = 0; draw < 200; ++draw) {
    std::vector<QueuedMessage> messages(5);
    for (QueuedMessage& m : messages) {
      m.ms = {1.0, 2.0, 3.0}, m.worth = {0.0, worth(random), 0.0};
      m.worth[2] = m.worth[1] * worth(random);
    }
    const auto gain = [&](size_t i, size_t choice) {
      return std::accumulate(messages[i].worth.begin(), messages[i].worth.begin() + static_cast<int>(choice) + 1, 0.0);
    };
    const int room = static_cast<int>(random() % 11);
    double most = 0.0, got = 0.0;
    for (int way = 0; way < 243; ++way) {
      int longer = 0;
      double sum = 0.0;
      for (size_t i = 0, rest = static_cast<size_t>(way); i < 5; ++i, rest /= 3)
        longer += static_cast<int>(rest % 3), sum += gain(i, rest % 3);
      if (longer <= room) most = std::max(most, sum);
    }
    const std::vector<SpentSlack> spent = spend_slack(messages, 5.0 + room + 0.01);
    for (size_t i = 0; i < 5; ++i) got += gain(i, spent[i].choice);
    EXPECT_NEAR(got, most, 1e-12) << draw;
  }
}

// What is worth nothing comes behind all that is worth something, and there in rounds.
TEST(LinkSlack, WhatIsWorthNothingGoesLast) {
  std::vector<QueuedMessage> messages(4, {0.0, {1.0, 2.0, 3.0}});
  for (QueuedMessage& m : messages) m.worth = {0.0, 0.0, 0.0};
  messages[3].worth = {0.0, 0.2, 0.1};
  const auto choices = [&](double room) {
    std::vector<size_t> all;
    for (const SpentSlack& s : spend_slack(messages, 4.0 + room + 0.01)) all.push_back(s.choice);
    return all;
  };
  EXPECT_EQ(choices(1.0), (std::vector<size_t>{0, 0, 0, 1}));
  EXPECT_EQ(choices(2.0), (std::vector<size_t>{0, 0, 0, 2}));
  EXPECT_EQ(choices(4.0), (std::vector<size_t>{1, 1, 0, 2}));
  EXPECT_EQ(choices(6.0), (std::vector<size_t>{2, 1, 1, 2}));
}

}  // namespace
}  // namespace thinwire::link_slack_test
