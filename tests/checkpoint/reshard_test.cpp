// Any cut saves and any other cut loads, bit for bit: geometry against one element at a time, then ranks that write and
// read slices of their own.
#include <chrono>
#include <map>
#include <thread>

#include "engine/run/checkpoint/output_file.h"
#include "engine/run/checkpoint/stored_tensors.h"
#include "tests/checkpoint/rank_test_support.h"

namespace thinwire::reshard_test {
namespace {

using namespace checkpoint_test;
using checkpoint_test::Scratch;  // not the one of parallel/wire
namespace fs = std::filesystem;

std::vector<const SlicePlace*> pointers(const std::vector<SlicePlace>& places) {
  std::vector<const SlicePlace*> list;
  for (const SlicePlace& p : places) list.push_back(&p);
  return list;
}

TEST(Slices, SharedRunsAreTheSharedElements) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 3000; ++round) {
    const int64_t rows = 1 + static_cast<int64_t>(random() % 12), cols = 1 + static_cast<int64_t>(random() % 12);
    const SlicePlace a = random_cover(rows, cols, 3, random).front(), b = random_cover(rows, cols, 3, random).front();
    std::map<int64_t, int64_t> place_in_b;
    for_each_element(b, [&](int64_t i, int64_t e) { place_in_b[e] = i; });
    std::vector<std::pair<int64_t, int64_t>> expected, found;
    for_each_element(a, [&](int64_t i, int64_t e) {
      if (place_in_b.contains(e)) expected.emplace_back(i, place_in_b[e]);
    });
    int64_t end_a = -1, end_b = -1;
    for_each_shared_run(a, b, [&](int64_t in_a, int64_t in_b, int64_t count) {
      EXPECT_GT(count, 0);
      EXPECT_FALSE(in_a == end_a && in_b == end_b) << "runs that follow each other are one";
      end_a = in_a + count, end_b = in_b + count;
      for (int64_t i = 0; i < count; ++i) found.emplace_back(in_a + i, in_b + i);
    });
    EXPECT_EQ(found, expected);
    EXPECT_EQ(shared_count(a, b), static_cast<int64_t>(expected.size()));
  }
}

// Covers are found good; with a slice lost, doubled or moved, the fault that is named is one, and the topmost.
TEST(Slices, CoverFaultsAreWhatCountingFinds) {
  std::mt19937_64 random(2);
  int gaps = 0, doubles = 0;
  for (int round = 0; round < 3000; ++round) {
    const int64_t rows = 1 + static_cast<int64_t>(random() % 10), cols = 1 + static_cast<int64_t>(random() % 10);
    std::vector<SlicePlace> places = random_cover(rows, cols, static_cast<int>(random() % 8), random);
    ASSERT_FALSE(find_cover_fault(rows, cols, pointers(places)));
    const auto change = random() % 3;
    if (change == 0)
      places.pop_back();
    else if (change == 1)
      places.push_back(random_cover(rows, cols, 2, random).front());
    else
      places.back() = random_cover(rows, cols, 2, random).front();
    std::vector<int> held(static_cast<size_t>(rows * cols), 0);
    for (const SlicePlace& p : places) for_each_element(p, [&](int64_t, int64_t e) { ++held[static_cast<size_t>(e)]; });
    const auto first = std::find_if(held.begin(), held.end(), [](int n) { return n != 1; });
    const auto fault = find_cover_fault(rows, cols, pointers(places));
    ASSERT_EQ(fault.has_value(), first != held.end());
    if (!fault) continue;
    (fault->twice ? doubles : gaps)++;
    EXPECT_EQ(fault->first / cols, (first - held.begin()) / cols) << "in the first row that has one";
    ASSERT_LT(fault->first, fault->end);
    for (int64_t e = fault->first; e < fault->end; ++e) {
      if (fault->twice) {
        EXPECT_GT(held[static_cast<size_t>(e)], 1);
      } else {
        EXPECT_EQ(held[static_cast<size_t>(e)], 0);
      }
    }
  }
  EXPECT_GT(gaps, 300);
  EXPECT_GT(doubles, 300);
}

TEST(Slices, ImpossibleOnesAreKnown) {
  constexpr int64_t kHuge = INT64_MAX;
  EXPECT_TRUE((SlicePlace{kHuge, 1, kHuge - 1, 1, 0, 1, 0, 1}.is_possible()));
  EXPECT_TRUE((SlicePlace{kHuge, 0, 0, kHuge, 0, 0, 0, 0}.is_possible()));
  for (const SlicePlace& p : {SlicePlace{kHuge, 2, 0, 1, 0, 1, 0, 1}, SlicePlace{2, 2, kHuge, 2, 0, 2, 0, 1},
                              SlicePlace{2, 2, 2, kHuge, 0, 2, 0, 1}, SlicePlace{2, 2, 0, 2, 1, kHuge, 0, 1},
                              SlicePlace{2, 2, 0, -2, 0, -2, 0, 4}, SlicePlace{-2, -2, 0, 0, 0, 0, 0, 0},
                              SlicePlace{2, 2, 0, 2, 0, 2, kHuge, kHuge}, SlicePlace{2, 2, 0, 2, 0, 2, 5, 0},
                              SlicePlace{2, 2, 0, 2, 0, 2, 4, 1}, SlicePlace{2, 2, 0, 2, 0, 2, 1, -1}})
    EXPECT_FALSE(p.is_possible()) << describe(p);
}

// Sixty thousand slices of one tensor: whatever is done for each pair of them would take minutes here.
TEST(Slices, ManySlicesOfOneTensorAreNotComparedInPairs) {
  constexpr int64_t kRows = 300, kCols = 400, kPiece = 2;
  std::vector<SlicePlace> places;
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kCols; c += kPiece) places.push_back({kRows, kCols, r, 1, c, kPiece, 0, kPiece});
  }
  EXPECT_FALSE(find_cover_fault(kRows, kCols, pointers(places)));
  places.back().part_cols = places.back().count = 1;
  const auto fault = find_cover_fault(kRows, kCols, pointers(places));
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->first, kRows * kCols - 1);
}

// Tensors with random bits, and what each of some ranks holds of them.
struct CutTensor {
  std::string name;
  DType dtype;
  int64_t rows, cols;
  std::vector<std::byte> whole;
  std::vector<std::vector<OwnSlice>> of_rank;

  void cut(int ranks, std::mt19937_64& random, bool filled) {
    of_rank.assign(static_cast<size_t>(ranks), {});
    if (rows * cols == 0) {
      of_rank[random() % of_rank.size()].push_back({SlicePlace::whole(rows, cols), {}});
      return;
    }
    for (const SlicePlace& place : random_cover(rows, cols, static_cast<int>(random() % 10), random)) {
      OwnSlice slice = take(place, whole, size_of(dtype));
      if (!filled) std::fill(slice.bytes.begin(), slice.bytes.end(), std::byte{0xee});
      of_rank[random() % of_rank.size()].push_back(std::move(slice));
    }
  }
  void show_rank(int rank, StateVisitor& v) {
    for (OwnSlice& slice : of_rank[static_cast<size_t>(rank)]) v.tensor(show(name, slice, dtype));
  }
  void expect_equal() const {
    for (const auto& slices : of_rank) {
      for (const OwnSlice& slice : slices)
        EXPECT_EQ(slice.bytes, take(slice.place, whole, size_of(dtype)).bytes) << name;
    }
  }
};

std::vector<CutTensor> random_tensors(std::mt19937_64& random, bool large) {
  struct Shape {
    DType dtype;
    int64_t rows, cols;
  };
  std::vector<Shape> shapes = {{DType::f32, 37, 53}, {DType::bf16, 1, 91}, {DType::f32, 64, 1}, {DType::f64, 7, 7},
                               {DType::u8, 29, 3},   {DType::i64, 1, 1},   {DType::f32, 0, 5},  {DType::u16, 5, 200}};
  if (large)
    shapes.push_back({DType::f32, 1500, 1100});  // more than one window, and runs that go straight to their place
  std::vector<CutTensor> tensors;
  for (const Shape& s : shapes) {
    CutTensor t{"model/t" + std::to_string(tensors.size()), s.dtype, s.rows, s.cols, {}, {}};
    t.whole.resize(static_cast<size_t>(s.rows * s.cols) * size_of(s.dtype));
    for (std::byte& b : t.whole) b = static_cast<std::byte>(random());
    tensors.push_back(std::move(t));
  }
  return tensors;
}

TEST(Reshard, AnyCutOfAnyNumberOfRanksLoadsUnderAnyOther) {
  std::mt19937_64 random(3);
  for (int writers = 1; writers <= 8; ++writers) {
    const Scratch scratch;
    std::vector<CutTensor> tensors = random_tensors(random, writers % 4 == 2);
    for (CutTensor& t : tensors) t.cut(writers, random, true);
    run_control_ranks(writers, [&](Control& control) {
      StoreOptions options = quick_options(writers % 2 == 0);
      options.shard_bytes = writers % 3 == 0 ? 3000 : uint64_t{4} << 30;
      CheckpointStore store(scratch.path(), options, control);
      EXPECT_FALSE(store.newest().has_value());
      int64_t number = 100 + control.rank();
      std::string text = "rank " + std::to_string(control.rank());
      store.save(7,
                 [&](StateVisitor& v) {
                   for (CutTensor& t : tensors) t.show_rank(control.rank(), v);
                   v.integer("number", number);
                   v.text("text", text);
                 },
                 {{"from", control.rank()}});
      store.wait(true);
      EXPECT_EQ(store.last_save().path, scratch / "step_000007");
    });
    const Manifest manifest = verify_checkpoint(scratch / "step_000007");
    EXPECT_EQ(manifest.ranks, writers);
    EXPECT_EQ(manifest.info["from"], 0);
    for (const auto& entry : fs::directory_iterator(scratch / "step_000007")) {
      const std::string name = entry.path().filename().string();
      EXPECT_TRUE(name == kManifestName || name.starts_with(writers == 1 ? "shard_" : "rank")) << name;
      EXPECT_TRUE(name.ends_with(".safetensors") || name == kManifestName) << name;
    }
    for (int round = 0; round < 8; ++round) {
      const int readers = 1 + (writers + round) % 8;
      for (CutTensor& t : tensors) t.cut(readers, random, false);
      run_control_ranks(readers, [&](Control& control) {
        int64_t number = 0;
        std::string text;
        const std::string path = scratch / "step_000007";
        load_checkpoint(
            {path, round == 0 ? verify_checkpoint(path, control) : manifest},
            [&](StateVisitor& v) {
              for (CutTensor& t : tensors) t.show_rank(control.rank(), v);
              v.integer("number", number);
              v.text("text", text);
            },
            {}, control);
        EXPECT_EQ(number, 100) << "values are rank 0's";
        EXPECT_EQ(text, "rank 0");
      });
      for (const CutTensor& t : tensors) t.expect_equal();
    }
    StoredTensors stored(scratch / "step_000007", manifest);
    for (const CutTensor& t : tensors) {
      if (t.dtype != DType::f32) continue;
      const std::vector<float> values = stored.read_f32(t.name);
      EXPECT_EQ(std::memcmp(values.data(), t.whole.data(), t.whole.size()), 0);
    }
  }
}

// Only what is asked for is read: a rank that asks for one corner does not touch the file of another.
TEST(Reshard, FilesThatHoldNothingOfInterestAreNotOpened) {
  const Scratch scratch;
  std::vector<float> values(64, 1.0f);
  run_control_ranks(4, [&](Control& control) {
    CheckpointStore store(scratch.path(), quick_options(), control);
    const int r = control.rank();
    store.save(1,
               [&](StateVisitor& v) {
                 v.tensor({"t", 8, 8, 2 * r, 2, 0, 8, 0, View(values.data(), DType::f32, {2, 8})});
               },
               {});
  });
  for (const char* rank : {"0", "1", "3"})
    fs::remove(scratch / ("step_000001/rank" + std::string(rank) + "-00000.safetensors"));
  std::vector<float> out(6);
  load_checkpoint({scratch / "step_000001", read_manifest(scratch / "step_000001")}, [&](StateVisitor& v) {
    v.tensor({"t", 8, 8, 4, 2, 1, 3, 0, View(out.data(), DType::f32, {6})});
  });
  EXPECT_EQ(out, std::vector<float>(6, 1.0f));
}

// Whoever waits for a rank that reads hears that it gets on from the middle of a large tensor, too.
TEST(Reshard, ALargeTensorIsReadInPieces) {
  constexpr int64_t kRows = int64_t{3} << 10, kCols = int64_t{1} << 10;
  const Scratch scratch;
  std::vector<float> values(static_cast<size_t>(kRows * kCols)), out(values.size());
  std::iota(values.begin(), values.end(), 0.0f);
  {
    CheckpointStore store(scratch.path(), quick_options());
    const View view(values.data(), DType::f32, {kRows, kCols});
    store.save(1, [&](StateVisitor& v) { v.tensor(GlobalSlice::whole("t", kRows, kCols, view)); }, {});
  }
  const Manifest manifest = verify_checkpoint(scratch / "step_000001");
  uint64_t told = 0, most = 0;
  StoredTensors stored(scratch / "step_000001", manifest,
                       [&](uint64_t bytes) { told += bytes, most = std::max(most, bytes); });
  stored.read("t", SlicePlace::whole(kRows, kCols), std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(out == values);
  EXPECT_EQ(told, uint64_t{12} << 20);
  EXPECT_LE(most, uint64_t{4} << 20);
}

// Many small tensors, all of the same numbers.
struct ManyTensors {
  static constexpr int kCount = 12;
  std::vector<float> values;

  VisitState all() {
    return [this](StateVisitor& v) {
      for (int i = 0; i < kCount; ++i)
        v.tensor(GlobalSlice::whole("t" + std::to_string(i), 2, 2, View(values.data(), DType::f32, {2, 2})));
    };
  }
  void save(const std::string& directory) {
    CheckpointStore store(directory, quick_options());
    store.save(1, all(), {});
  }
};

// Those who wait for a rank that fills its state from slow storage hear that it gets on, and their watchdog (71) stays
// quiet: here for more than twice as long as it has patience.
TEST(Reshard, SlowFillingIsNoHang) {
  const Scratch scratch;
  ManyTensors saved{{1.0f, 2.0f, 3.0f, 4.0f}};
  saved.save(scratch.path());
  run_local_ranks(2, [&](Transport& transport) {
    Progress progress(transport, {.spin_us = 0, .watchdog_seconds = 3.0});
    Control control(
        Channel(std::make_unique<Communicator>(progress, std::vector<int>{0, 1}, 1, Site::kControl, nullptr)));
    ManyTensors filled{std::vector<float>(4)};
    LoadOptions options;
    options.meet_every = 1;
    options.copy = [slow = control.rank() == 1](std::byte* to, const std::byte* from, size_t bytes) {
      if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(600));
      std::memcpy(to, from, bytes);
    };
    load_checkpoint({scratch / "step_000001", read_manifest(scratch / "step_000001")}, filled.all(), options, control);
    EXPECT_EQ(filled.values, saved.values);
  });
}

TEST(Reshard, AnErrorOfOneRankEndsTheFillingOfAllWhereTheyMeetNext) {
  const Scratch scratch;
  ManyTensors state{{1.0f, 2.0f, 3.0f, 4.0f}};
  state.save(scratch.path());
  Errors errors(2);
  int filled = 0;  // by rank 1
  run_control_ranks(2, [&](Control& control) {
    ManyTensors own{std::vector<float>(4)};
    LoadOptions options;
    options.meet_every = 1;
    options.copy = [&](std::byte*, const std::byte*, size_t) {
      if (control.rank() == 0) throw_io("injected");
      ++filled;
    };
    const std::string path = scratch / "step_000001";
    errors.of(control, [&] { load_checkpoint({path, read_manifest(path)}, own.all(), options, control); });
  });
  EXPECT_EQ(errors.common(), "74 injected");
  EXPECT_EQ(filled, 1);
}

// What version 1 wrote: no rectangles, no count of ranks.
TEST(Reshard, GenerationsWithoutRectanglesStillLoad) {
  const Scratch scratch;
  std::mt19937_64 random(4);
  std::vector<CutTensor> tensors = random_tensors(random, false);
  {
    CheckpointStore store(scratch.path(), quick_options());
    store.save(
        1,
        [&](StateVisitor& v) {
          for (CutTensor& t : tensors) {
            const int64_t count = t.rows * t.cols, half = count / 2;
            const size_t size = size_of(t.dtype);
            if (count == 0) {
              v.tensor(GlobalSlice::whole(t.name, t.rows, t.cols, View(t.whole.data(), t.dtype, {t.rows, t.cols})));
              continue;
            }
            v.tensor(range_of(t.name, t.rows, t.cols, 0, View(t.whole.data(), t.dtype, {half})));
            v.tensor(range_of(t.name, t.rows, t.cols, half,
                              View(t.whole.data() + static_cast<size_t>(half) * size, t.dtype, {count - half})));
          }
        },
        {});
  }
  const std::string path = scratch / "step_000001/manifest.json";
  std::string text = slurp(path);
  EXPECT_EQ(text.find("rectangle"), std::string::npos);
  const auto replace = [&](const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  };
  replace("\"version\": 2", "\"version\": 1");
  replace("\"ranks\": 1,\n", "");
  const std::string body = text.substr(0, text.size() - 51);
  spill(path, body + ",\n\"checksum\": \"" + hash_text(body) + "\"\n}\n");
  for (int readers : {1, 3, 5}) {
    for (CutTensor& t : tensors) t.cut(readers, random, false);
    run_control_ranks(readers, [&](Control& control) {
      load_checkpoint(
          {scratch / "step_000001", verify_checkpoint(scratch / "step_000001", control)},
          [&](StateVisitor& v) {
            for (CutTensor& t : tensors) t.show_rank(control.rank(), v);
          },
          {}, control);
    });
    for (const CutTensor& t : tensors) t.expect_equal();
  }
  EXPECT_EQ(find_newest_valid(scratch.path()).manifest.ranks, 1);
}

}  // namespace
}  // namespace thinwire::reshard_test
