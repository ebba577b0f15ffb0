// Measured algorithms of matrix products: chosen by time, then fixed - over restarts, and over ranks - against a
// library whose clock changes its mind.
#include "engine/run/train/product_choice.h"

#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <tuple>

#include "engine/base/core/log.h"
#include "engine/run/train/bare_training.h"
#include "engine/run/train/synthetic_batches.h"
#include "parallel/wire/transport.h"
#include "tests/support/local_world.h"
#include "tests/support/scratch_directory.h"
#include "tests/train/small_run.h"

namespace thinwire::test::product_choice_test {
namespace {

// Has three algorithms of each product, told apart by their first byte. The day decides which is fastest.
class FakeLibrary final : public ProductLibrary {
 public:
  explicit FakeLibrary(int day, std::string place = "GPU A, library 1") : day_(day), place_(std::move(place)) {}
  std::string place() const override { return place_; }
  ProductRules rules() const override { return {90, true}; }
  bool takes(const MatmulKey&, const ProductAlgorithm& algorithm) override {
    return std::to_integer<int>(algorithm.words[0]) != refused;
  }
  std::vector<ProductAlgorithm> suggestions(const MatmulKey& key) override {
    std::vector<ProductAlgorithm> list;
    if (key.depth == without_algorithm) return list;
    for (int i = 0; i < 3; ++i) {
      list.emplace_back();
      list.back().words[0] = static_cast<std::byte>(i);
      list.back().words[63] = static_cast<std::byte>(key.rows);
    }
    return list;
  }
  double measured(const MatmulKey& key, const ProductAlgorithm& algorithm) override {
    ++measurements;
    const int i = std::to_integer<int>(algorithm.words[0]);
    if (i == fails) return std::numeric_limits<double>::infinity();
    return 1.0 + static_cast<double>((i + day_ + key.rows) % 3);
  }
  int measurements = 0, refused = -1, fails = -1;
  int64_t without_algorithm = -1;

 private:
  int day_;
  std::string place_;
};

MatmulKey product(int64_t rows, int64_t depth = 64) {
  MatmulKey key;
  key.rows = rows, key.cols = 32, key.depth = depth, key.input = DType::bf16;
  return key;
}

std::set<MatmulKey> products(std::initializer_list<int64_t> rows) {
  std::set<MatmulKey> all;
  for (int64_t r : rows) all.insert(product(r));
  return all;
}

class ProductChoice : public testing::Test {
 protected:
  ProductChoice() : path_(scratch_ / "tables/products.json"), log_path_(scratch_ / "log") { log_open_file(log_path_); }
  ~ProductChoice() override { log_close_file(); }

  ProductTable settle(FakeLibrary& library, const std::set<MatmulKey>& needed) {
    ProductTable table;
    run_local_ranks(1, [&](Transport& transport) {
      Job job(transport);
      table = settle_products(path_, job, library, needed);
    });
    return table;
  }
  std::string log() { return slurp(log_path_); }
  int lines_with(const std::string& words) {
    const std::string text = log();
    int count = 0;
    for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
    return count;
  }

  Scratch scratch_;
  std::string path_, log_path_;
};

TEST_F(ProductChoice, TheFastestIsTaken) {
  FakeLibrary library(0);
  const ProductTable table = settle(library, products({3, 4, 5}));
  ASSERT_EQ(table.size(), 3u);
  for (int64_t rows : {3, 4, 5}) {
    const ProductAlgorithm& chosen = table.at(text_of(product(rows)));
    EXPECT_EQ(chosen.ms, 1.0);
    EXPECT_EQ(std::to_integer<int>(chosen.words[0]), (6 - rows) % 3);
  }
  EXPECT_EQ(library.measurements, 9);
}

TEST_F(ProductChoice, ARestartTakesWhatWasChosen) {
  FakeLibrary first(0);
  const ProductTable chosen = settle(first, products({3, 4, 5}));
  const std::string file = slurp(path_);
  FakeLibrary restarted(1);  // would choose others
  EXPECT_EQ(settle(restarted, products({3, 4, 5})), chosen);
  EXPECT_EQ(restarted.measurements, 0);
  EXPECT_EQ(slurp(path_), file);
  // A run that needs more measures that alone, and what stood there stays.
  ProductTable more = settle(restarted, products({4, 6}));
  EXPECT_EQ(restarted.measurements, 3);
  EXPECT_EQ(more.at(text_of(product(4))), chosen.at(text_of(product(4))));
  EXPECT_EQ(more.size(), 4u);
}

TEST_F(ProductChoice, OfAnotherGpuOrLibraryNothingIsTaken) {
  FakeLibrary first(0);
  const ProductTable chosen = settle(first, products({3, 4}));
  FakeLibrary other(1, "GPU A, library 2");
  EXPECT_NE(settle(other, products({3, 4})), chosen);
  EXPECT_EQ(other.measurements, 6);
  EXPECT_EQ(lines_with("is not used; here: GPU A, library 2"), 1);
  EXPECT_EQ(lines_with("damaged"), 0);
  FakeLibrary again(2);  // both stand in the file now
  EXPECT_EQ(settle(again, products({3, 4})), chosen);
  EXPECT_EQ(again.measurements, 0);
  EXPECT_EQ(lines_with("is not used"), 1);
}

TEST_F(ProductChoice, ADamagedFileIsRefusedByNameAndMeasuredAgain) {
  FakeLibrary first(0);
  settle(first, products({3}));
  const std::string good = slurp(path_);
  std::string flipped = good, other_format = good, short_algorithm = good;
  const size_t digit = good.find("\"algorithm\": \"") + 20;
  flipped[digit] = good[digit] == '0' ? '1' : '0';
  other_format.replace(good.find("\"format\": 1"), 11, "\"format\": 2");
  short_algorithm.erase(digit, 2);
  int times = 0;
  for (const std::string& bad :
       {flipped, other_format, short_algorithm, good.substr(0, good.size() / 2), std::string(), std::string("[]"),
        std::string(R"({"format": 1, "places": {"x": 1}})"), std::string(100000, '[')}) {
    spill(path_, bad);
    FakeLibrary library(1);
    EXPECT_EQ(settle(library, products({3})).size(), 1u);
    EXPECT_EQ(library.measurements, 3) << bad.substr(0, 40);
    EXPECT_EQ(lines_with("product_table " + path_ + " is damaged: "), ++times) << bad.substr(0, 40);
    FakeLibrary after(0);  // the file is whole again
    settle(after, products({3}));
    EXPECT_EQ(after.measurements, 0);
  }
}

TEST_F(ProductChoice, WhatTheLibraryRefusesIsMeasuredAgain) {
  FakeLibrary first(0);
  const ProductTable chosen = settle(first, products({3, 4}));
  FakeLibrary changed(0);
  changed.refused = changed.fails = std::to_integer<int>(chosen.at(text_of(product(3))).words[0]);
  const ProductTable now = settle(changed, products({3, 4}));
  EXPECT_EQ(changed.measurements, 3);
  EXPECT_NE(now.at(text_of(product(3))), chosen.at(text_of(product(3))));
  EXPECT_EQ(now.at(text_of(product(4))), chosen.at(text_of(product(4))));
  EXPECT_EQ(lines_with("the library refuses the algorithm of \"" + text_of(product(3))), 1);
  // Where it has none in place of it, there is no entry.
  FakeLibrary poorer(0);
  poorer.refused = std::to_integer<int>(now.at(text_of(product(3))).words[0]), poorer.without_algorithm = 64;
  EXPECT_EQ(settle(poorer, products({3})).count(text_of(product(3))), 0u);
}

TEST_F(ProductChoice, RanksOfOnePlaceTakeTheSameAlgorithms) {
  // Four ranks whose clocks disagree, the third on another GPU; products are needed by some, or by all.
  const std::vector<std::set<MatmulKey>> needed = {products({3, 4}), products({3, 5}), products({3, 4}),
                                                   products({3, 4, 5})};
  std::vector<ProductTable> tables(4);
  std::vector<int> measurements(4);
  const auto all = [&](int day) {
    run_local_ranks(4, [&](Transport& transport) {
      Job job(transport);
      const auto rank = static_cast<size_t>(job.rank());
      FakeLibrary library(day + job.rank(), rank == 2 ? "GPU B, library 1" : "GPU A, library 1");
      tables[rank] = settle_products(path_, job, library, needed[rank]);
      measurements[rank] = library.measurements;
    });
  };
  all(0);
  EXPECT_EQ(measurements, (std::vector<int>{6, 3, 6, 0}));
  EXPECT_EQ(tables[0], tables[1]);
  EXPECT_EQ(tables[0], tables[3]);
  EXPECT_EQ(tables[0].size(), 3u);
  EXPECT_EQ(tables[2].size(), 2u);
  FakeLibrary alone(0);  // rank 0's clock
  EXPECT_EQ(tables[3].at(text_of(product(3))), *fastest(alone, product(3)));
  const std::vector<ProductTable> before = tables;
  all(1);
  EXPECT_EQ(measurements, (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(tables, before);
}

// The rehearsal lists what a step multiplies: the same run on a table that tells of its products.
std::set<MatmulKey>* told = nullptr;
void telling(Exec& exec, const Matmul& op) {
  if (op.c.count() > 0) told->insert(first_key(op, {90, true}));
  Matmul plain = op;
  plain.gelu_input = plain.dgelu_input = plain.a_sums = View();
  if (op.gelu_input) plain.c = op.gelu_input;
  cpu_ops().matmul(exec, plain);
  if (op.gelu_input) cpu_ops().gelu_forward(exec, {GeluKind::kTanh, op.gelu_input, op.c});
  if (op.dgelu_input) cpu_ops().gelu_backward(exec, {GeluKind::kTanh, op.dgelu_input, op.c, op.c});
  if (op.a_sums) cpu_ops().bias_gradient(exec, {op.a, op.a_sums});
}

// Memory on 512 bytes, as on a GPU.
class AlignedDevice final : public Device {
 public:
  DeviceKind kind() const override { return own_->kind(); }
  std::string description() const override { return own_->description(); }
  void* allocate(size_t bytes) override { return std::aligned_alloc(512, (bytes + 511) / 512 * 512); }
  void release(void* memory, size_t) override { std::free(memory); }
  std::unique_ptr<Stream> make_stream() override { return own_->make_stream(); }
  Ticket copy_to_device(void* to, const void* from, size_t bytes, Stream& stream) override {
    return own_->copy_to_device(to, from, bytes, stream);
  }
  Ticket copy_to_host(void* to, const void* from, size_t bytes, Stream& stream) override {
    return own_->copy_to_host(to, from, bytes, stream);
  }
  void fill_zero(void* memory, size_t bytes, Stream& stream) override { own_->fill_zero(memory, bytes, stream); }
  void copy_at_rest(void* to, const void* from, size_t bytes) override { own_->copy_at_rest(to, from, bytes); }

 private:
  std::unique_ptr<Device> own_ = make_cpu_device();
};

void expect_all_listed(const std::vector<std::string>& more, size_t least) {
  const RunConfig config = small_run({"num_layers=2", "train_batch_size=4", "precision=bf16"}, more);
  const std::set<MatmulKey> listed = products_of_step(config, layout_of(config, 0), {90, true});
  OpTable ops = cpu_ops();
  ops.fused_products = true, ops.matmul = telling;
  AlignedDevice device;
  Replica replica(config, &device, &ops, true);
  replica.set_fresh_weights();
  std::set<MatmulKey> seen;
  told = &seen;
  BareTraining training(replica);
  int64_t next = 0;
  training.take_step(
      2, [&] { return synthetic_batch(next++, config.data.micro_batch, config.data.seq_length, config.model.vocab); });
  std::string listed_text, seen_text;
  for (const MatmulKey& key : listed) listed_text += text_of(key) + "\n";
  for (const MatmulKey& key : seen) seen_text += text_of(key) + "\n";
  EXPECT_EQ(listed_text, seen_text);
  EXPECT_GE(seen.size(), least);
}

TEST(ProductsOfAStep, AreThoseOfARehearsal) {
  expect_all_listed({"pos_emb=learned", "norm=layernorm", "bias_gelu_fusion=true"}, 12);
  expect_all_listed({"pos_emb=rotary", "norm=rmsnorm", "activation=swiglu", "num_kv_heads=2", "no_weight_tying=true",
                     "recompute_granularity=full"},
                    12);
}

// Each tensor rank sums the gradients of the biases that they have in common, and all have to make the same of them.
TEST(ProductsOfAStep, SumCommonBiasesByOneAlgorithm) {
  const std::tuple<bool, std::string, bool> cases[] = {
      {true, "128", true}, {false, "128", false}, {true, "129", false}};
  for (const auto& [deterministic, ffn, fused] : cases) {  // 129: 64 and 65
    RunConfig config = small_run({"num_layers=2", "train_batch_size=4", "precision=bf16", "ffn_hidden_size=" + ffn},
                                 {"pos_emb=learned", "norm=layernorm", "bias_gelu_fusion=true"});
    config.layout.tensor = 2, config.deterministic = deterministic;
    int common = 0, own = 0;  // out and fc2 have as many biases as there are hidden units
    for (const MatmulKey& key : products_of_step(config, layout_of(config, 0), {90, true})) {
      if (key.epilogue != MatmulEpilogue::kRowSums) continue;
      ++(key.cols == config.model.hidden ? common : own);
    }
    EXPECT_GT(own, 0);
    EXPECT_EQ(common > 0, fused) << deterministic << " " << ffn << " " << common;
  }
}

TEST(ProductKeys, TellProductsApart) {
  std::set<std::string> texts;
  size_t keys = 0;
  const auto add = [&](const MatmulKey& key) { texts.insert(text_of(key)), ++keys; };
  const MatmulKey plain = product(16);
  add(plain);
  for (int64_t MatmulKey::*size : {&MatmulKey::rows, &MatmulKey::cols, &MatmulKey::depth}) {
    MatmulKey key = plain;
    key.*size = 999, add(key);
  }
  for (bool MatmulKey::*flag : {&MatmulKey::trans_a, &MatmulKey::trans_b, &MatmulKey::accumulate}) {
    MatmulKey key = plain;
    key.*flag = true, add(key);
  }
  for (uint16_t MatmulKey::*align : {&MatmulKey::align_a, &MatmulKey::align_b, &MatmulKey::align_d,
                                     &MatmulKey::align_vector, &MatmulKey::align_aux}) {
    MatmulKey key = plain;
    key.*align = 64, add(key);
  }
  for (DType MatmulKey::*type : {&MatmulKey::input, &MatmulKey::output}) {
    MatmulKey key = plain;
    key.*type = DType::f16, add(key);
  }
  for (Fp8Kind MatmulKey::*kind : {&MatmulKey::fp8_a, &MatmulKey::fp8_b}) {
    MatmulKey key = plain;
    key.*kind = Fp8Kind::kE5m2, add(key);
  }
  for (int e = 1; e < 6; ++e) {
    MatmulKey key = plain;
    key.epilogue = static_cast<MatmulEpilogue>(e), add(key);
  }
  EXPECT_EQ(texts.size(), keys);
}

}  // namespace
}  // namespace thinwire::test::product_choice_test
