// Units of a fake model travel as the placement says: weights are whole and current wherever they are used, gradients
// add up to the sum over all ranks, updates are those of one rank - bit for bit - and bytes are those that were
// counted.
#include <mutex>

#include "tests/zero/fake_ranks.h"

namespace thinwire::zero_test::unit_traffic_test {
namespace {

TEST(UnitTraffic, AnyPlacementGivesTheBitsOfOneRank) {
  for (int seed = 1; seed <= 40; ++seed) {
    const Case c = random_case(seed);
    SCOPED_TRACE(describe(c));
    run_case(c, [](FakeRank& rank, Mesh&) { rank.run(); });
    if (HasFailure()) return;
  }
}

TEST(UnitPiece, ItsKeySaysWhatIsAwaitedAndIsNoPart) {
  UnitPiece piece;
  piece.slot = 7, piece.rule = 2, piece.awaited = true;
  const MessageKey key = piece.key(piece.shard);
  EXPECT_TRUE(key.awaited);
  EXPECT_EQ(key.part, 0);
  EXPECT_EQ(key.slot, 7u);
  EXPECT_EQ(key.rule, 2);
}

// How often a step gathers each unit that starts out ungathered: from the ranges of the weights, and from the
// secondary copies; by unit.
struct GatherCounts {
  std::vector<int64_t> whole, kept;
};

GatherCounts count_gathers(const std::vector<UnitMemory>& units, std::span<const UnitUse> uses) {
  GatherCounts counts{std::vector<int64_t>(units.size()), std::vector<int64_t>(units.size())};
  std::vector<int> occupants;
  std::vector<bool> whole(units.size()), kept(units.size());
  for (const UnitUse& use : uses) {
    const size_t u = static_cast<size_t>(use.unit);
    const UnitMemory& unit = units[u];
    if (whole[u] || unit.shard.gather.members.size() < 2) continue;
    ++(use.backward && kept[u] ? counts.kept : counts.whole)[u];
    whole[u] = true;
    kept[u] = !unit.shard.keep.members.empty();
    if (unit.place < 0) continue;
    occupants.resize(std::max(occupants.size(), static_cast<size_t>(unit.place) + 1), -1);
    int& occupant = occupants[static_cast<size_t>(unit.place)];
    if (occupant >= 0) whole[static_cast<size_t>(occupant)] = false;
    occupant = use.unit;
  }
  return counts;
}

// Bytes sent by all ranks together at one site.
class SiteBytes {
 public:
  void add(int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    total_ += bytes;
  }
  int64_t total() const { return total_; }

 private:
  std::mutex mutex_;
  int64_t total_ = 0;
};

// Stages that wait for each other, and one table on two of them: nobody waits for what the other has not started.
TEST(UnitTraffic, TiedStagesDoNotDeadlock) {
  for (int seed = 1; seed <= 12; ++seed) {
    Case c;
    c.seed = seed, c.linked = true, c.micro_batches = 1 + seed % 2;
    c.shape = {seed % 3 == 0 ? 3 : 2, 2, 1};
    const int weights = seed % 4 == 0 ? 2 : 1;
    c.placement = {weights, seed % 2 == 0 ? 2 : 1, 2, 2, 0, static_cast<Hold>(seed % 3), EmbeddingSyncKind::kFused};
    if (seed % 5 == 0) c.placement.embedding = EmbeddingSyncKind::kTwoStep;
    SCOPED_TRACE(describe(c));
    run_case(c, [](FakeRank& rank, Mesh&) { rank.run(); });
    if (HasFailure()) return;
  }
}

// The table's V bytes over D ranks of two stages: one sum over all of them, or two in a row.
TEST(UnitTraffic, FusedEmbeddingSyncSendsFewerBytes) {
  for (int dp : {1, 2, 3, 4}) {
    for (EmbeddingSyncKind kind : {EmbeddingSyncKind::kFused, EmbeddingSyncKind::kTwoStep}) {
      Case c;
      c.shape = {2, dp, 1};
      c.placement.replicas = dp, c.placement.embedding = kind;
      c.micro_batches = 2;  // and still only one reduction
      SiteBytes sent;
      int64_t bytes = 0;
      run_case(c, [&](FakeRank& rank, Mesh& mesh) {
        rank.train(0, false);
        sent.add(mesh.counters(Site::kEmbedding).wire_bytes);
        if (mesh.rank() == 0) bytes = rank.units()[kEmbeddingUnit].count * 4;
      });
      // Per rank (2D - 1) / D and (3D - 2) / D; over the 2D ranks:
      EXPECT_EQ(sent.total(), (kind == EmbeddingSyncKind::kFused ? 2 * (2 * dp - 1) : 2 * (3 * dp - 2)) * bytes)
          << dp << " ranks";
    }
  }
}

// What is priced is what is sent: gathers as counted from the uses, reductions per micro-batch or per step.
TEST(UnitTraffic, SendsWhatIsCounted) {
  for (Hold hold : {Hold::kUnit, Hold::kMicroBatch, Hold::kStep}) {
    for (int weights : {1, 2, 4}) {
      for (int secondary : {0, 2}) {
        if (secondary >= weights) continue;
        Case c;
        c.shape = {1, 4, 1};
        c.placement = {weights, weights, 4, 4, secondary, hold, EmbeddingSyncKind::kFused};
        c.micro_batches = 2;
        SCOPED_TRACE(describe(c));
        SiteBytes gathered, reduced;
        int64_t expected_gathered = 0, expected_reduced = 0;
        run_case(c, [&](FakeRank& rank, Mesh& mesh) {
          const std::vector<UnitUse> uses = rank.uses_of(random_nodes(c, 0, 0));
          rank.train(0, true);  // skipped: nothing is published but the initial weights
          gathered.add(mesh.counters(Site::kZeroParameter).wire_bytes);
          reduced.add(mesh.counters(Site::kDpGradient).wire_bytes);
          if (mesh.rank() != 0) return;
          const GatherCounts counts = count_gathers(rank.units(), uses);
          for (size_t u = 0; u < rank.units().size(); ++u) {
            // A gather over n ranks sends the unit n - 1 times; 4 / n groups do.
            const auto over = [&](int n) { return n > 1 ? rank.units()[u].count * 4 * (n - 1) * (4 / n) : 0; };
            // Scattered sums of every micro-batch, then of a shard of 1 / weights over 4 / weights ranks; the other way
            // round behind the optimizer.
            const int64_t across = rank.units()[u].count * 4 * (4 / weights - 1);
            expected_reduced += c.micro_batches * over(weights) + across;
            expected_gathered += across + counts.whole[u] * over(weights) + counts.kept[u] * over(secondary);
          }
        });
        EXPECT_EQ(gathered.total(), expected_gathered);
        EXPECT_EQ(reduced.total(), expected_reduced);
      }
    }
  }
}

// By hand: two chunks of one and three blocks, two micro-batches one after the other.
TEST(UnitTraffic, CountsGathersByHold) {
  Case c;
  c.shape = {1, 4, 1};
  const auto count = [&](Hold hold, int secondary) {
    std::vector<UnitMemory> units(6);
    for (size_t u = 0; u < units.size(); ++u) {
      units[u].count = 16 * 4096;
      units[u].shard = shard_unit(units[u].count, {4, 4, 4, 4, secondary, hold, EmbeddingSyncKind::kFused}, 0);
      const bool block = u >= 1 && u <= 4;
      if (block && hold == Hold::kUnit) units[u].place = static_cast<int>(u - 1) % 2;
      if (block && hold == Hold::kMicroBatch) units[u].place = u == 1 ? 0 : static_cast<int>(u) - 2;
    }
    std::vector<UnitUse> uses;
    for (int micro = 0; micro < 2; ++micro) {
      for (int u : {0, 1, 2, 3, 4, 5}) uses.push_back({u, false});
      for (int u : {5, 4, 3, 2, 1}) uses.push_back({u, true});
    }
    return count_gathers(units, uses);
  };
  using V = std::vector<int64_t>;
  // unit: the last two blocks are still there when the backward begins, the first two when the next forward does.
  EXPECT_EQ(count(Hold::kUnit, 0).whole, (V{1, 3, 3, 2, 2, 1}));
  EXPECT_EQ(count(Hold::kUnit, 2).whole, (V{1, 1, 1, 2, 2, 1}));
  EXPECT_EQ(count(Hold::kUnit, 2).kept, (V{0, 2, 2, 0, 0, 0}));
  // micro_batch: only blocks 1 and 2 meet in a place.
  EXPECT_EQ(count(Hold::kMicroBatch, 0).whole, (V{1, 3, 2, 1, 1, 1}));
  EXPECT_EQ(count(Hold::kStep, 0).whole, (V{1, 1, 1, 1, 1, 1}));
}

// A rank that fails takes the others along, and every one of them unwinds with its transfers open.
TEST(UnitTraffic, AFailureEndsAllRanks) {
  for (int seed = 1; seed <= 6; ++seed) {
    Case c = random_case(seed);
    c.shape = {2, 2, 1}, c.tied = true, c.micro_batches = 2;
    c.placement = {seed % 2 + 1, 2, 2, 2, 0, static_cast<Hold>(seed % 3), EmbeddingSyncKind::kFused};
    std::string message;
    try {
      run_case(c, [&](FakeRank& rank, Mesh& mesh) {
        int nodes = 0;
        rank.before_node = [&, me = mesh.rank()](int) mutable {
          if (me == seed % 4 && ++nodes == 2 + seed % 3) throw std::runtime_error("the disk is full");
        };
        rank.run();
      });
    } catch (const std::exception& error) {
      message = error.what();
    }
    EXPECT_EQ(message, "the disk is full");
  }
}

}  // namespace
}  // namespace thinwire::zero_test::unit_traffic_test
