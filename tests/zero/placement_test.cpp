// Every element of a unit is owned exactly once per set of replicas, in every placement, and the groups agree on it.
#include "parallel/zero/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "engine/base/core/error.h"
#include "parallel/zero/flat_layout.h"

namespace thinwire::placement_test {
namespace {

std::vector<Placement> all_placements(int dp) {
  std::vector<Placement> found;
  for (int w = 1; w <= dp; ++w) {
    for (int g = w; g <= dp; g += w) {
      for (int o = g; o <= dp; o += g) {
        for (int s = 0; s < w; ++s) {
          if (dp % o != 0 || (s > 0 && w % s != 0)) continue;
          for (EmbeddingSyncKind kind : {EmbeddingSyncKind::kFused, EmbeddingSyncKind::kTwoStep}) {
            Placement p;
            p.weights = w, p.gradients = g, p.optimizer = o, p.replicas = dp, p.secondary = s, p.embedding = kind;
            found.push_back(p);
          }
        }
      }
    }
  }
  return found;
}

std::string describe(const Placement& p, int64_t count, int stages) {
  return std::to_string(p.weights) + "|" + std::to_string(p.gradients) + "|" + std::to_string(p.optimizer) + " of " +
         std::to_string(p.replicas) + " secondary " + std::to_string(p.secondary) + " stages " +
         std::to_string(stages) + (p.embedding == EmbeddingSyncKind::kFused ? " fused " : " two-step ") +
         std::to_string(count);
}

bool inside(Range a, Range b) {
  return a.count == 0 || (a.first >= b.first && a.first + a.count <= b.first + b.count);
}

// Members of a group hold the pieces of `field` in order, and each of them sees the same group.
void check_group(const std::vector<UnitShard>& all, int me, const ShardGroup UnitShard::*field,
                 const Range UnitShard::*piece, Range cut) {
  const ShardGroup& group = all[static_cast<size_t>(me)].*field;
  ASSERT_EQ(group.bounds.size(), group.members.size() + 1);
  EXPECT_EQ(group.bounds.front(), 0);
  EXPECT_EQ(group.bounds.back(), cut.count);
  EXPECT_NE(std::find(group.members.begin(), group.members.end(), me), group.members.end());
  for (size_t m = 0; m < group.members.size(); ++m) {
    const UnitShard& other = all[static_cast<size_t>(group.members[m])];
    EXPECT_EQ((other.*field).members, group.members);
    EXPECT_EQ((other.*field).bounds, group.bounds);
    EXPECT_EQ((other.*piece).first, cut.first + group.bounds[m]);
    EXPECT_EQ((other.*piece).count, group.bounds[m + 1] - group.bounds[m]);
    EXPECT_EQ(group.bounds[m] % kQuantum, 0);
  }
}

void check_all(int64_t count, const Placement& p, int stages) {
  SCOPED_TRACE(describe(p, count, stages));
  std::vector<UnitShard> all;
  for (int stage = 0; stage < stages; ++stage) {
    for (int dp = 0; dp < p.replicas; ++dp) all.push_back(shard_unit(count, p, dp, stage, stages));
  }
  const bool fused = p.embedding == EmbeddingSyncKind::kFused;
  const bool joined = stages == 2 && fused && p.optimizer == p.replicas && p.optimizer > 1;
  std::vector<int> owners(static_cast<size_t>(count / kQuantum), 0), counted = owners;
  for (int me = 0; me < static_cast<int>(all.size()); ++me) {
    const UnitShard& s = all[static_cast<size_t>(me)];
    EXPECT_TRUE(inside(s.gradients, s.weights));
    EXPECT_TRUE(inside(s.optimizer, s.gradients));
    check_group(all, me, &UnitShard::gather, &UnitShard::weights, {0, count});
    check_group(all, me, &UnitShard::shard, &UnitShard::gradients, {0, count});
    check_group(all, me, &UnitShard::refine, &UnitShard::optimizer, s.gradients);
    check_group(all, me, &UnitShard::sync, &UnitShard::optimizer, s.weights);
    if (p.secondary > 0) check_group(all, me, &UnitShard::keep, &UnitShard::secondary, {0, count});
    EXPECT_EQ(static_cast<int>(s.gather.members.size()), p.weights);
    EXPECT_EQ(static_cast<int>(s.shard.members.size()), p.gradients);
    EXPECT_EQ(static_cast<int>(s.refine.members.size()), p.optimizer / p.gradients * (joined ? 2 : 1));
    EXPECT_EQ(static_cast<int>(s.sync.members.size()), p.optimizer / p.weights * (joined ? 2 : 1));
    EXPECT_EQ(static_cast<int>(s.replicas.size()),
              p.replicas / p.optimizer * (fused ? (joined ? 1 : stages) : 1) + (fused ? 0 : stages - 1));
    const bool two_step = stages == 2 && !fused;
    for (int r : s.replicas) {
      EXPECT_EQ(all[static_cast<size_t>(r)].optimizer.first, s.optimizer.first);
      EXPECT_EQ(all[static_cast<size_t>(r)].optimizer.count, s.optimizer.count);
    }
    // Chained, the groups reach every rank exactly once: a sum over them is the sum over all (two-step: over all of the
    // stage, and the last replica is the other stage's end of the same chain).
    std::multiset<int> reached;
    for (int a : s.shard.members) {
      for (int b : all[static_cast<size_t>(a)].refine.members) {
        const std::vector<int>& replicas = all[static_cast<size_t>(b)].replicas;
        reached.insert(replicas.begin(), replicas.end() - (two_step ? 1 : 0));
      }
    }
    const std::set<int> distinct(reached.begin(), reached.end());
    EXPECT_EQ(distinct.size(), reached.size());
    EXPECT_EQ(reached.size(), two_step ? all.size() / 2 : all.size());
    if (two_step) {
      EXPECT_EQ(s.replicas.back(), (me + p.replicas) % (2 * p.replicas));
      EXPECT_EQ(*distinct.begin() / p.replicas, *distinct.rbegin() / p.replicas);
    }
    for (int64_t q = s.optimizer.first / kQuantum; q < (s.optimizer.first + s.optimizer.count) / kQuantum; ++q) {
      ++owners[static_cast<size_t>(q)];
      counted[static_cast<size_t>(q)] += s.counted;
    }
  }
  const int copies = p.replicas / p.optimizer * (joined ? 1 : stages);
  for (size_t q = 0; q < owners.size(); ++q) {
    EXPECT_EQ(owners[q], copies) << q;
    EXPECT_EQ(counted[q], 1) << q;
  }
}

TEST(ShardUnit, OwnsEveryElementOncePerReplica) {
  for (int dp = 1; dp <= 16; ++dp) {
    for (const Placement& p : all_placements(dp)) {
      for (int64_t quanta : {1, 2, 5, 16, 37}) {
        for (int stages : {1, 2}) {
          check_all(quanta * kQuantum, p, stages);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(ShardUnit, SplitsEvenlyOnTheQuantum) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const int64_t quanta = static_cast<int64_t>(random() % 50);
    const int parts = 1 + static_cast<int>(random() % 20);
    const std::vector<int64_t> bounds = split_bounds(quanta * kQuantum, parts);
    ASSERT_EQ(static_cast<int>(bounds.size()), parts + 1);
    EXPECT_EQ(bounds.front(), 0);
    EXPECT_EQ(bounds.back(), quanta * kQuantum);
    for (int p = 0; p < parts; ++p) {
      const int64_t n = bounds[static_cast<size_t>(p) + 1] - bounds[static_cast<size_t>(p)];
      EXPECT_TRUE(n == quanta / parts * kQuantum || n == (quanta / parts + 1) * kQuantum) << n;
    }
  }
}

TEST(ResolvePlacement, NamesOfTheField) {
  const std::vector<int> two_nodes{0, 0, 0, 0, 1, 1, 1, 1};
  const auto widths = [&](PlacementLevels levels) {
    const Placement p = resolve_placement(levels, two_nodes);
    EXPECT_EQ(p.replicas, 8);
    return std::vector<int>{p.weights, p.gradients, p.optimizer, p.secondary};
  };
  using L = Level;
  EXPECT_EQ(widths({}), (std::vector<int>{1, 1, 1, 0}));
  EXPECT_EQ(widths({L::kReplicated, L::kReplicated, L::kGlobal}), (std::vector<int>{1, 1, 8, 0}));
  EXPECT_EQ(widths({L::kReplicated, L::kGlobal, L::kGlobal}), (std::vector<int>{1, 8, 8, 0}));
  EXPECT_EQ(widths({L::kGlobal, L::kGlobal, L::kGlobal}), (std::vector<int>{8, 8, 8, 0}));
  EXPECT_EQ(widths({L::kGlobal, L::kGlobal, L::kGlobal, L::kNode}), (std::vector<int>{8, 8, 8, 4}));
  EXPECT_EQ(widths({L::kPair, L::kNode, L::kGlobal}), (std::vector<int>{2, 4, 8, 0}));
  EXPECT_EQ(widths({L::kNode, L::kNode, L::kNode}), (std::vector<int>{4, 4, 4, 0}));
  // One node, one rank: levels fall together, nothing is refused.
  EXPECT_EQ(resolve_placement({L::kGlobal, L::kGlobal, L::kGlobal, L::kNode}, {0, 0}).secondary, 0);
  EXPECT_EQ(resolve_placement({L::kPair, L::kNode, L::kGlobal}, {3}).optimizer, 1);
}

std::string refusal(const PlacementLevels& levels, const std::vector<int>& nodes) {
  try {
    resolve_placement(levels, nodes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    return error.what();
  }
  return "accepted";
}

TEST(ResolvePlacement, RefusesWithTheReason) {
  using L = Level;
  const auto says = [](const std::string& text, const char* word) { return text.find(word) != std::string::npos; };
  EXPECT_TRUE(says(refusal({L::kGlobal, L::kReplicated, L::kGlobal}, {0, 0}), "weights = \"global\""));
  EXPECT_TRUE(says(refusal({L::kReplicated, L::kGlobal, L::kNode}, {0, 0, 1, 1}), "gradients = \"global\""));
  EXPECT_TRUE(says(refusal({L::kPair, L::kPair, L::kGlobal}, {0, 0, 0}), "even number"));
  EXPECT_TRUE(says(refusal({L::kPair, L::kNode, L::kGlobal}, {0, 0, 0, 1, 1, 1}), "does not fit"));
  EXPECT_TRUE(says(refusal({L::kNode, L::kNode, L::kGlobal}, {0, 0, 1}), "node 1 has 1"));
  EXPECT_TRUE(says(refusal({L::kNode, L::kNode, L::kGlobal}, {0, 1, 0, 1}), "node 0 has 2"));
  EXPECT_TRUE(says(refusal({L::kNode, L::kNode, L::kGlobal}, {0, 0, 1, 2, 1, 2}), "neighbours"));
  EXPECT_TRUE(says(refusal({L::kNode, L::kNode, L::kNode, L::kGlobal}, {0, 0, 1, 1}), "narrower"));
  EXPECT_TRUE(says(refusal({L::kReplicated, L::kGlobal, L::kGlobal, L::kPair}, {0, 0}), "narrower"));
}

}  // namespace
}  // namespace thinwire::placement_test
