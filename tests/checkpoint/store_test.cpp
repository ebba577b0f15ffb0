// Saving and loading when nothing goes wrong: bit-equality, other slices, pruning, writing behind the step.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>
#include <tuple>

#include "engine/run/checkpoint/stored_tensors.h"
#include "tests/checkpoint/checkpoint_test_support.h"

namespace thinwire::store_test {
namespace {

using namespace checkpoint_test;
namespace fs = std::filesystem;

std::vector<std::string> generation_names(const std::string& dir) {
  std::vector<std::string> names;
  for (const FoundCheckpoint& g : list_checkpoints(dir)) names.push_back(g.name);
  return names;
}

// Whoever points `load` at a checkpoint of another trainer reads what to do about it.
TEST(Store, FoldersOfOtherFormatsAreNamed) {
  const Scratch scratch;
  const auto refusal = [&] {
    const Error e = error_of([&] { resolve_checkpoint_path(scratch.path()); });
    EXPECT_EQ(e.code(), ExitCode::kBadData);
    return std::string(e.what());
  };
  EXPECT_TRUE(refusal().ends_with("checkpoints/step_*)")) << refusal();
  for (const auto& [file, whose] : {std::pair{"latest", "DeepSpeed's"},
                                    {"latest_checkpointed_iteration.txt", "Megatron-LM's"},
                                    {"model.safetensors", "; Hugging Face's"}}) {
    write_file_atomic(scratch / file, "x");
    EXPECT_NE(refusal().find(whose), std::string::npos) << refusal();
  }
}

TEST(Store, RandomStatesComeBackBitEqual) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Scratch scratch(seed <= 2);  // the first ones with a real disk's flushes
    RandomState state(seed, 40, 9);
    StoreOptions options = quick_options(seed % 2 == 0);
    options.shard_bytes = seed % 3 == 0 ? 2000 : uint64_t{4} << 30;
    {
      CheckpointStore store(scratch.path(), options);
      EXPECT_FALSE(store.newest().has_value());
      store.save(static_cast<int64_t>(seed), state.visitor(), {{"model", {{"hidden", 7}}}});
      store.wait();
      EXPECT_EQ(store.last_save().path,
                scratch / ("step_0000" + std::string(seed < 10 ? "0" : "") + std::to_string(seed)));
    }
    CheckpointStore store(scratch.path(), quick_options());
    RandomState other(seed + 1000, 40, 9);
    EXPECT_FALSE(other == state);
    const auto report = load_newest(store, other.visitor());
    ASSERT_TRUE(report.has_value());
    EXPECT_TRUE(other == state);
    EXPECT_EQ(report->manifest.step, static_cast<int64_t>(seed));
    EXPECT_EQ(report->manifest.info["model"]["hidden"], 7);
    EXPECT_EQ(report->manifest.files.size() > 1, seed % 3 == 0);
  }
}

// A tensor saved as random pieces is loaded as other random pieces: each must equal the same range of the whole.
TEST(Store, AnySlicesLoadAsAnyOtherSlices) {
  std::mt19937_64 random(3);
  const auto cuts = [&](int64_t count) {
    std::vector<int64_t> at{0, count};
    for (size_t i = random() % 6; i > 0; --i) at.push_back(static_cast<int64_t>(random() % (count + 1)));
    std::sort(at.begin(), at.end());
    at.erase(std::unique(at.begin(), at.end()), at.end());
    return at;
  };
  for (int round = 0; round < 40; ++round) {
    const Scratch scratch;
    const int64_t rows = 1 + static_cast<int64_t>(random() % 9), cols = 1 + static_cast<int64_t>(random() % 9);
    std::vector<float> whole(static_cast<size_t>(rows * cols));
    for (float& v : whole) v = static_cast<float>(random());
    CheckpointStore store(scratch.path(), quick_options());
    const auto saved = cuts(rows * cols);
    store.save(1,
               [&](StateVisitor& v) {
                 // In any order: a rank does not know its neighbours.
                 std::vector<size_t> order(saved.size() - 1);
                 for (size_t i = 0; i < order.size(); ++i) order[i] = i;
                 std::shuffle(order.begin(), order.end(), random);
                 for (const size_t i : order) {
                   v.tensor(range_of("t", rows, cols, saved[i],
                                     View(whole.data() + saved[i], DType::f32, {saved[i + 1] - saved[i]})));
                 }
               },
               {});
    const auto loaded = cuts(rows * cols);
    for (size_t i = 0; i + 1 < loaded.size(); ++i) {
      std::vector<float> part(static_cast<size_t>(loaded[i + 1] - loaded[i]), -1.0f);
      load_newest(store, [&](StateVisitor& v) {
        v.tensor(
            range_of("t", rows, cols, loaded[i], View(part.data(), DType::f32, {static_cast<int64_t>(part.size())})));
      });
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + loaded[i]));
    }
    const auto report = find_newest_valid(scratch.path());
    EXPECT_EQ(StoredTensors(report.path, report.manifest).read_f32("t"), whole);
  }
}

// A part that no slice holds is found before anything is published, as our own mistake.
TEST(Store, HolesBetweenSlicesAreNotSaved) {
  const Scratch scratch;
  std::vector<float> whole(6, 3.0f);
  CheckpointStore store(scratch.path(), quick_options());
  const auto save = [&](int64_t first, int64_t second) {
    return error_of([&] {
      store.save(1,
                 [&](StateVisitor& v) {
                   v.tensor(range_of("t", 2, 3, first, View(whole.data(), DType::f32, {2})));
                   v.tensor(range_of("t", 2, 3, second, View(whole.data() + 4, DType::f32, {2})));
                 },
                 {});
    });
  };
  for (const auto& [first, second, hole] :
       {std::tuple{0, 4, "elements 2 to 3 "}, {1, 4, "elements 0 to 1 "}, {0, 2, "elements 4 to 6 "}}) {
    const Error e = save(first, second);
    EXPECT_EQ(e.code(), ExitCode::kInternal);
    EXPECT_NE(std::string(e.what()).find(hole), std::string::npos) << e.what();
  }
  EXPECT_TRUE(generation_names(scratch.path()).empty());
  EXPECT_FALSE(store.newest().has_value());
}

TEST(Store, MissingAndDifferingNamesAreSaid) {
  const Scratch scratch;
  CheckpointStore store(scratch.path(), quick_options());
  std::vector<float> a(6, 1.0f), m(6, 2.0f);
  int64_t count = 5;
  store.save(1,
             [&](StateVisitor& v) {
               v.tensor(GlobalSlice::whole("model/a", 2, 3, View(a.data(), DType::f32, {2, 3})));
               v.tensor(GlobalSlice::whole("adam_m/a", 2, 3, View(m.data(), DType::f32, {2, 3})));
               v.tensor(GlobalSlice::whole("model/other", 2, 3, View(a.data(), DType::f32, {2, 3})));
               v.integer("count", count);
             },
             {});
  std::vector<float> out(6);
  const auto ask = [&](const GlobalSlice& slice) {
    return std::string(error_of([&] { load_newest(store, [&](StateVisitor& v) { v.tensor(slice); }); }).what());
  };
  EXPECT_NE(
      ask(GlobalSlice::whole("model/b", 2, 3, View(out.data(), DType::f32, {2, 3}))).find("no tensor \"model/b\""),
      std::string::npos);
  EXPECT_NE(ask(GlobalSlice::whole("model/a", 3, 2, View(out.data(), DType::f32, {3, 2}))).find("2 x 3"),
            std::string::npos);
  EXPECT_NE(ask(GlobalSlice::whole("model/a", 2, 3, View(out.data(), DType::i32, {2, 3}))).find("I32"),
            std::string::npos);
  EXPECT_NE(ask(range_of("model/a", 2, 3, 1, View(out.data(), DType::f32, {6}))).find("outside"), std::string::npos);
  int64_t absent = 0;
  EXPECT_NE(
      std::string(error_of([&] { load_newest(store, [&](StateVisitor& v) { v.integer("absent", absent); }); }).what())
          .find("absent"),
      std::string::npos);
  // no_load_optim: the moments are neither missed nor touched.
  std::vector<float> untouched(6, 9.0f);
  LoadOptions options;
  options.unwanted_prefixes = {"adam_m/", "adam_v/"};
  load_newest(
      store,
      [&](StateVisitor& v) {
        v.tensor(GlobalSlice::whole("model/a", 2, 3, View(out.data(), DType::f32, {2, 3})));
        v.tensor(GlobalSlice::whole("adam_v/a", 2, 3, View(untouched.data(), DType::f32, {2, 3})));
      },
      options);
  EXPECT_EQ(out, a);
  EXPECT_EQ(untouched, std::vector<float>(6, 9.0f));
}

TEST(Store, ProgrammersMistakesAreChecks) {
  const Scratch scratch;
  CheckpointStore store(scratch.path(), quick_options());
  std::vector<float> a(6);
  const auto code = [&](const VisitState& state) { return error_of([&] { store.save(1, state, {}); }).code(); };
  EXPECT_EQ(code([&](StateVisitor& v) {
              v.tensor(range_of("a", 2, 3, 0, View(a.data(), DType::f32, {4})));
              v.tensor(range_of("a", 2, 3, 3, View(a.data(), DType::f32, {3})));
            }),
            ExitCode::kInternal);
  EXPECT_EQ(code([&](StateVisitor& v) { v.tensor(range_of("a", 2, 3, 1, View(a.data(), DType::f32, {6}))); }),
            ExitCode::kInternal);
  int64_t i = 0;
  EXPECT_EQ(code([&](StateVisitor& v) { v.integer("i", i), v.integer("i", i); }), ExitCode::kInternal);
  EXPECT_TRUE(generation_names(scratch.path()).empty());
}

// The step goes on while the bytes are written: what is on disk is the copy, not what the step made of it.
TEST(Store, WritesTheCopyWhileTheStepGoesOn) {
  const Scratch scratch;
  std::mutex mutex;
  std::condition_variable changed;
  bool go = false;
  StoreOptions options = quick_options(true);
  options.fault = [&](std::string_view point) {
    if (point != "save.before_shard") return;
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return go; });
  };
  CheckpointStore store(scratch.path(), options);
  RandomState state(1), as_saved(1);
  store.save(1, state.visitor(), {});
  EXPECT_TRUE(generation_names(scratch.path()).empty()) << "save() returned before anything was written";
  for (auto& t : state.tensors) std::fill(t.bytes.begin(), t.bytes.end(), std::byte{0x55});
  state.integers[0] = 1;
  {
    const std::lock_guard lock(mutex);
    go = true;
  }
  changed.notify_all();
  // The second save waits for the first and must not disturb it either.
  store.save(2, state.visitor(), {});
  store.wait();
  RandomState loaded(77);
  load_checkpoint({scratch / "step_000001", verify_checkpoint(scratch / "step_000001")}, loaded.visitor());
  EXPECT_TRUE(loaded == as_saved);
  load_checkpoint({scratch / "step_000002", verify_checkpoint(scratch / "step_000002")}, loaded.visitor());
  EXPECT_TRUE(loaded == state);
}

TEST(Store, PruneKeepsEnoughThatVerify) {
  const Scratch scratch;
  StoreOptions options = quick_options();
  options.keep_last = 1;  // at least two are kept whatever is asked
  CheckpointStore store(scratch.path(), options);
  RandomState state(1);
  for (int64_t step = 1; step <= 4; ++step) store.save(step, state.visitor(), {});
  EXPECT_EQ(generation_names(scratch.path()), (std::vector<std::string>{"step_000004", "step_000003"}));
}

TEST(Store, PruneDoesNotCountBrokenGenerations) {
  const Scratch scratch;
  StoreOptions options = quick_options();
  RandomState state(1);
  {
    CheckpointStore store(scratch.path(), options);
    for (int64_t step = 1; step <= 4; ++step) store.save(step, state.visitor(), {});
  }
  fs::resize_file(scratch / "step_000004/shard_00000.safetensors", 20);
  fs::remove(scratch / "step_000003/manifest.json");
  options.keep_last = 2;
  CheckpointStore store(scratch.path(), options);
  store.save(5, state.visitor(), {});
  // Kept: 5 and 2 verify; 4 and 3 are newer than the second good one and stay as evidence; 1 goes.
  const auto names = generation_names(scratch.path());
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()),
            (std::set<std::string>{"step_000005", "step_000004", "step_000003", "step_000002"}));
}

TEST(Store, TheSameStepAgainIsANewGenerationAndTheNewest) {
  const Scratch scratch;
  CheckpointStore store(scratch.path(), quick_options());
  RandomState first(1), second(2), third(3), loaded(9);
  store.save(10, first.visitor(), {});
  store.save(20, second.visitor(), {});
  store.save(10, third.visitor(), {});  // a run that was set back deliberately
  EXPECT_EQ(generation_names(scratch.path()),
            (std::vector<std::string>{"step_000010-2", "step_000020", "step_000010"}));
  EXPECT_EQ(load_newest(store, loaded.visitor())->manifest.step, 10);
  EXPECT_TRUE(loaded == third);
  EXPECT_EQ(nlohmann::json::parse(slurp(scratch / "latest.json"))["generation"], "step_000010-2");
}

TEST(Store, PathsAUserMayName) {
  const Scratch scratch;
  RandomState state(1);
  {
    CheckpointStore store(scratch / "run/checkpoints", quick_options());
    store.save(1, state.visitor(), {});
    store.save(2, state.visitor(), {});
  }
  EXPECT_EQ(find_newest_valid(scratch / "run").manifest.step, 2);
  EXPECT_EQ(find_newest_valid(scratch / "run/checkpoints/").manifest.step, 2);
  EXPECT_EQ(find_newest_valid(scratch / "run/checkpoints/step_000001").manifest.step, 1);
  // A run that saves elsewhere says so; what lies in its own directory comes first.
  const auto says = [&](const char* run, const std::string& place) {
    fs::create_directories(scratch / run);
    write_file_atomic(std::string(scratch / run) + "/config.resolved.json", "{\"save\": \"" + place + "\"}");
  };
  says("apart", scratch / "run/checkpoints/");
  EXPECT_EQ(find_newest_valid(scratch / "apart").manifest.step, 2);
  says("lost", scratch / "absent");
  const Error lost = error_of([&] { find_newest_valid(scratch / "lost"); });
  EXPECT_EQ(lost.code(), ExitCode::kBadData);
  EXPECT_NE(std::string(lost.what()).find("absent, where its run saves"), std::string::npos) << lost.what();
  says("run", scratch / "absent");
  EXPECT_EQ(find_newest_valid(scratch / "run").manifest.step, 2);
  EXPECT_EQ(error_of([&] { find_newest_valid(scratch / "absent"); }).code(), ExitCode::kBadData);
  EXPECT_EQ(error_of([&] { find_newest_valid(scratch.path()); }).code(), ExitCode::kBadData);
}

}  // namespace
}  // namespace thinwire::store_test
