// The mesh law of tensor and sequence parallelism: any cut gives the loss and every gradient of one rank. Ranks are
// threads of this process.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <random>

#include "parallel/channel/mesh.h"
#include "parallel/zero/flat_layout.h"
#include "tests/model/model_test_support.h"
#include "tests/support/local_world.h"

namespace thinwire::testing::tp_law_test {
namespace {

struct Outcome {
  double loss = 0.0, evaluated = 0.0;
  std::vector<double> logits;                            // [N, padded vocabulary], evaluated
  std::map<std::string, std::vector<double>> gradients;  // whole tensors
};

// Widths that no number of ranks but their own divides: 67 rows of vocabulary (61 of them real), 71 columns of
// feed-forward, 57 tokens. Heads must divide.
ModelConfig ragged_model(int family, bool tied, int tensor) {
  ModelConfig m = small_model(family);
  m.heads = 12, m.head_dim = 4, m.kv_heads = family == 2 ? (tensor == 1 ? 2 : tensor) : 12;
  m.layers = 2, m.ffn = 71, m.padded_vocab = 67, m.tied_head = tied;
  return m;
}

double number(View v, int64_t i) {
  return v.dtype == DType::f32 ? static_cast<double>(v.as<float>()[i]) : to_float(v.as<Bf16>()[i]);
}

// A rank's columns of all logits, to their place.
void gather_logits(RankBed& bed, std::vector<double>& logits) {
  const int64_t cols = bed.config.padded_vocab, first_col = bed.shard.vocab().first;
  logits.resize(static_cast<size_t>(bed.shape.tokens() * cols));
  bed.stages.back()->all_logits(bed.exec, bed.micro(false), [&](int64_t first_row, View rows) {
    ASSERT_EQ(rows.cols(), bed.shard.vocab().count);
    for (int64_t i = 0; i < rows.count(); ++i) {
      const int64_t row = first_row + i / rows.cols(), col = first_col + i % rows.cols();
      logits[static_cast<size_t>(row * cols + col)] = number(rows, i);
    }
  });
}

Outcome run_alone(const ModelConfig& m) {
  Bed bed(m, 1);
  Outcome result;
  gather_logits(bed, result.logits);
  result.evaluated = bed.evaluate();
  result.loss = bed.train_once();
  for (const ParamSpec& p : bed.store.params()) {
    const float* mine = bed.store.gradient(p.name).as<float>();
    std::vector<double>& whole = result.gradients[p.name];
    whole.resize(static_cast<size_t>(p.count()));
    for_each_run(p, 0, p.local_count(), [&](int64_t local, int64_t global, int64_t count) {
      for (int64_t i = 0; i < count; ++i) whole[static_cast<size_t>(global + i)] = static_cast<double>(mine[local + i]);
    });
  }
  return result;
}

// Adds a rank's gradients to the whole tensors; what every rank has must have the same bits everywhere.
void gather(const ParamStore& store, Outcome& result) {
  for (const ParamSpec& p : store.params()) {
    std::vector<double>& whole = result.gradients[p.name];
    const bool first = whole.empty();
    whole.resize(static_cast<size_t>(p.count()));
    const float* mine = store.gradient(p.name).as<float>();
    for_each_run(p, 0, p.local_count(), [&](int64_t local, int64_t global, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        double& at = whole[static_cast<size_t>(global + i)];
        const double value = static_cast<double>(mine[local + i]);
        if (p.tp_axis == TpAxis::kNone && !p.tp_partial) {
          ASSERT_TRUE(first || at == value) << p.name << " differs between ranks";
          at = value;
        } else {
          ASSERT_TRUE(p.tp_partial || at == 0.0) << p.name << ": element " << global + i << " is on two ranks";
          at += value;
        }
      }
    });
  }
}

TpActivation tensor_port(Mesh& mesh, bool sequence_parallel) {
  const std::vector<int> ranks = tensor_ranks(mesh.shape(), mesh.at());
  return {mesh.channel(GroupKind::kTpForward, Site::kTpForward, ranks),
          mesh.channel(GroupKind::kTpBackward, Site::kTpBackward, ranks),
          mesh.channel(GroupKind::kTpControl, Site::kControl, ranks), sequence_parallel};
}

struct Traffic {
  int64_t forward = 0, backward = 0;  // operations of one rank in a training step
};

Outcome run_cut(const ModelConfig& m, int tensor, bool sequence_parallel, Traffic* traffic = nullptr) {
  Outcome result;
  std::mutex mutex;
  std::vector<double> losses(static_cast<size_t>(tensor));
  run_local_ranks(tensor, [&](Transport& transport) {
    Progress progress(transport, {.thread = false, .spin_us = 0});
    Mesh mesh(progress, {1, 1, tensor}, std::vector<int>(static_cast<size_t>(tensor), 0));
    const int rank = transport.rank();
    ModelShard shard = ModelShard::all_of(m);
    shard.tensor_rank = rank, shard.tensor_size = tensor, shard.sequence_parallel = sequence_parallel;
    shard.equal_distances = sequence_parallel;  // where heads lie in memory changes nothing
    Ports ports;
    ports.tp = tensor_port(mesh, sequence_parallel);
    NoUnitEvents events;
    RankBed bed(shard, std::move(ports), events, 1);
    Stage& stage = *bed.stages[0];
    stage.evaluate(bed.exec, bed.micro(false));
    const double evaluated = bed.take_loss();
    std::vector<double> logits;
    gather_logits(bed, logits);
    const SiteCounters before_forward = mesh.counters(Site::kTpForward),
                       before_backward = mesh.counters(Site::kTpBackward);
    stage.forward(bed.exec, bed.micro(true), 0);
    stage.backward(bed.exec, 0);
    const double loss = bed.take_loss();
    const std::vector<float> combined = bed.gradients();

    // The two halves give the same bits.
    StageWeightWork work = take_weight_work(shard, bed.shape, bed.arena);
    for (const View& memory : bed.store.gradient_memory()) std::memset(memory.data, 0, memory.bytes());
    const int64_t forward_sums = mesh.counters(Site::kTpForward).operations - before_forward.operations;
    const int64_t backward_sums = mesh.counters(Site::kTpBackward).operations - before_backward.operations;
    stage.forward(bed.exec, bed.micro(true), 0);
    stage.backward_input(bed.exec, 0, work);
    stage.backward_weight(bed.exec, work);
    const std::lock_guard<std::mutex> lock(mutex);
    EXPECT_EQ(combined, bed.gradients()) << "halves, rank " << rank;
    EXPECT_EQ(loss, bed.take_loss());
    gather(bed.store, result);
    result.logits.resize(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) result.logits[i] += logits[i];  // zero in columns of other ranks
    losses[static_cast<size_t>(rank)] = result.loss = loss;
    result.evaluated = evaluated;
    if (traffic != nullptr) *traffic = {forward_sums, backward_sums};
  });
  for (double loss : losses) EXPECT_EQ(loss, result.loss) << "every rank has the same loss";
  return result;
}

double length(const std::vector<double>& v) {
  double sum = 0.0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}

// Two orders of the same sums: relative error lambda u sqrt(K S) of a gradient tensor, with reductions of length up to
// K = 76 and S roundings behind each other, 3 passes * (2 layers * 7 + 3) sums; a 16-bit type rounds at every one of
// them, with its own unit and whatever K is. lambda = 6 as elsewhere in the model's laws.
double tolerance(DType dtype) {
  const double sums = 3.0 * (2 * 7 + 3);
  return dtype == DType::f32 ? 6.0 * 0x1p-24 * std::sqrt(76.0 * sums) : 6.0 * epsilon_of(dtype) / 2 * std::sqrt(sums);
}

void expect_same(const Outcome& alone, const Outcome& cut, DType dtype, double& worst) {
  const double bound = tolerance(dtype);
  EXPECT_NEAR(alone.loss, cut.loss, bound * std::abs(alone.loss));
  EXPECT_NEAR(alone.evaluated, cut.evaluated, bound * std::abs(alone.evaluated));
  ASSERT_EQ(alone.gradients.size(), cut.gradients.size());
  const auto compare = [&](const std::string& name, const std::vector<double>& want, const std::vector<double>& got) {
    ASSERT_EQ(want.size(), got.size()) << name;
    std::vector<double> error(want.size());
    for (size_t i = 0; i < want.size(); ++i) error[i] = got[i] - want[i];
    const double relative = length(error) / length(want);
    EXPECT_LE(relative, bound) << name;
    worst = std::max(worst, relative / bound);
  };
  compare("logits", alone.logits, cut.logits);
  for (const auto& [name, want] : alone.gradients) compare(name, want, cut.gradients.at(name));
}

class TensorParallel : public ::testing::TestWithParam<std::tuple<int, int, bool>> {};
INSTANTIATE_TEST_SUITE_P(All, TensorParallel,
                         ::testing::Combine(::testing::Values(0, 1, 2), ::testing::Values(1, 2, 3, 4),
                                            ::testing::Bool()));

TEST_P(TensorParallel, EqualsOneRank) {
  const auto [family, tensor, sequence_parallel] = GetParam();
  std::map<DType, double> worst;  // share of the bound that the worst quantity takes
  for (bool tied : {false, true}) {
    for (float dropout : {0.0f, 0.2f}) {
      for (Recompute level : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        for (DType dtype : {DType::f32, DType::bf16}) {
          if (dtype == DType::bf16 && (level == Recompute::kSelective || tied)) continue;
          SCOPED_TRACE(::testing::Message() << name_of(dtype) << " tied " << tied << " dropout " << dropout
                                            << " recompute " << static_cast<int>(level));
          ModelConfig m = ragged_model(family, tied, tensor);
          m.dtype = dtype, m.hidden_dropout = dropout, m.attention_dropout = dropout, m.recompute = level;
          expect_same(run_alone(m), run_cut(m, tensor, sequence_parallel), dtype, worst[dtype]);
        }
      }
    }
  }
  for (const auto& [dtype, share] : worst)
    RecordProperty(std::string(name_of(dtype)) + "_share_of_bound", std::to_string(share));
}

// One sum per sublayer and direction; one per layer and direction for both branches of a parallel block. The embedding
// adds one forward, the head one backward.
TEST(TensorParallelTraffic, OneSumPerLayerWithParallelResidual) {
  for (float dropout : {0.0f, 0.1f}) {
    for (bool parallel : {false, true}) {
      ModelConfig m = ragged_model(1, false, 2);
      m.parallel_residual = parallel, m.hidden_dropout = dropout;
      Traffic traffic;
      run_cut(m, 2, false, &traffic);
      EXPECT_EQ(traffic.forward, 1 + m.layers * (parallel ? 1 : 2));
      EXPECT_EQ(traffic.backward, 1 + m.layers * (parallel ? 1 : 2));
    }
  }
}

TEST(TensorParallelShard, RectanglesCoverEveryTensorOnce) {
  for (int family : {0, 1, 2}) {
    for (int tensor : {1, 2, 3, 4}) {
      const ModelConfig m = ragged_model(family, family == 0, tensor);
      std::map<std::string, std::vector<int>> seen;
      for (int rank = 0; rank < tensor; ++rank) {
        ModelShard shard = ModelShard::all_of(m);
        shard.tensor_rank = rank, shard.tensor_size = tensor, shard.equal_distances = tensor % 2 == 0;
        const ModelConfig local = shard.local();
        for (const ParamSpec& p : list_local_parameters(shard)) {
          seen[p.name].resize(static_cast<size_t>(p.count()));
          for_each_run(p, 0, p.local_count(), [&](int64_t, int64_t global, int64_t count) {
            for (int64_t i = 0; i < count; ++i) ++seen[p.name][static_cast<size_t>(global + i)];
          });
          const std::string name = p.name.substr(p.name.rfind('.', p.name.rfind('.') - 1) + 1);
          const std::map<std::string, int64_t> widths = {{"qkv.weight", local.qkv_width()},
                                                         {"fc1.weight", local.ffn_in_width()},
                                                         {"fc2.weight", local.ffn},
                                                         {"out.weight", local.attention_width()},
                                                         {"word.weight", local.padded_vocab}};
          if (!widths.contains(name)) continue;
          EXPECT_EQ(p.tp_axis == TpAxis::kCols ? p.local_cols() : p.local_rows(), widths.at(name)) << p.name;
        }
      }
      for (const ParamSpec& p : list_parameters(m)) {
        for (int count : seen.at(p.name)) ASSERT_EQ(count, p.tp_axis == TpAxis::kNone ? tensor : 1) << p.name;
      }
    }
  }
}

// Widths that do not divide change nothing of where tensors lie: what all ranks hold whole is coded, drawn for and
// summed at one place of messages of one length.
TEST(TensorParallelShard, EveryRankLaysTensorsOutAlike) {
  std::mt19937_64 random(11);
  int uneven = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const int tensor = static_cast<int>(2 + random() % 4);
    ModelConfig m = ragged_model(trial % 3, trial % 2 == 0, tensor);
    m.hidden = static_cast<int64_t>(16 + random() % 200), m.heads = m.kv_heads = 60;
    m.ffn = static_cast<int64_t>(1 + random() % 900), m.padded_vocab = static_cast<int64_t>(1 + random() % 700);
    m.vocab = m.padded_vocab;
    const auto layout_of = [&](int rank) {
      ModelShard shard = ModelShard::all_of(m);
      shard.tensor_rank = rank, shard.tensor_size = tensor;
      const ParamList params = list_local_parameters(shard);
      for (const ParamSpec& p : params) {
        EXPECT_LE(p.local_count(), p.room()) << p.name;
        uneven += p.local_count() < p.room() ? 1 : 0;
      }
      return make_flat_layout(params);
    };
    const FlatLayout first = layout_of(0);
    for (int rank = 1; rank < tensor; ++rank) {
      const FlatLayout other = layout_of(rank);
      ASSERT_EQ(other.total, first.total);
      ASSERT_EQ(other.by_param.size(), first.by_param.size());
      for (size_t i = 0; i < first.by_param.size(); ++i) EXPECT_EQ(other.by_param[i].offset, first.by_param[i].offset);
      for (size_t u = 0; u < first.units.size(); ++u) EXPECT_EQ(other.units[u].count, first.units[u].count);
    }
  }
  EXPECT_GT(uneven, 100);
}

}  // namespace
}  // namespace thinwire::testing::tp_law_test
