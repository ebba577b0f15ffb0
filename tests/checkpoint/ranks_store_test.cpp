// Several ranks save one checkpoint: whatever strikes any of them, at any point, all learn the same, and an older
// checkpoint stays good.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "tests/checkpoint/rank_test_support.h"

namespace thinwire::ranks_store_test {
namespace {

using namespace checkpoint_test;
using checkpoint_test::Scratch;  // not the one of parallel/wire
namespace fs = std::filesystem;

bool has_leftovers(const std::string& dir) {
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().filename().string().find(".tmp-") != std::string::npos) return true;
  }
  return false;
}

// One tensor of which each rank holds a column, and one that the last rank holds alone.
struct Columns {
  static constexpr int64_t kRows = 40;
  int ranks;
  std::vector<std::vector<float>> columns;
  std::vector<float> alone;
  int64_t count = 0;

  explicit Columns(int ranks_, float seed = 0) : ranks(ranks_), alone(9, seed) {
    for (int r = 0; r < ranks; ++r) {
      columns.emplace_back(kRows);
      for (int64_t i = 0; i < kRows; ++i)
        columns.back()[static_cast<size_t>(i)] = seed + static_cast<float>(i * ranks + r);
    }
    count = static_cast<int64_t>(seed);
  }
  void visit(int rank, StateVisitor& v) {
    v.tensor({"model/columns", kRows, ranks, 0, kRows, rank, 1, 0,
              View(columns[static_cast<size_t>(rank)].data(), DType::f32, {kRows})});
    if (rank == ranks - 1) v.tensor(GlobalSlice::whole("model/alone", 3, 3, View(alone.data(), DType::f32, {3, 3})));
    v.integer("count", count);
  }
  VisitState of(int rank) {
    return [this, rank](StateVisitor& v) { visit(rank, v); };
  }
  bool operator==(const Columns&) const = default;
};

// What the newest checkpoint holds, read by one rank.
Columns load_all(const std::string& dir, int ranks, int64_t* step = nullptr) {
  Columns loaded(ranks, -1);
  const VerifiedCheckpoint found = find_newest_valid(dir);
  load_checkpoint(found, [&](StateVisitor& v) {
    for (int r = 0; r < ranks; ++r) {
      v.tensor({"model/columns", Columns::kRows, ranks, 0, Columns::kRows, r, 1, 0,
                View(loaded.columns[static_cast<size_t>(r)].data(), DType::f32, {Columns::kRows})});
    }
    v.tensor(GlobalSlice::whole("model/alone", 3, 3, View(loaded.alone.data(), DType::f32, {3, 3})));
    v.integer("count", loaded.count);
  });
  if (step != nullptr) *step = found.manifest.step;
  return loaded;
}

TEST(RanksStore, AnErrorAtAnySavePointOfAnyRankIsTheErrorOfAll) {
  constexpr int kRanks = 3;
  for (const bool async : {false, true}) {
    for (int victim = 0; victim < kRanks; ++victim) {
      for (const std::string_view point : kSavePoints) {
        const Scratch scratch;
        Columns before(kRanks, 1), after(kRanks, 1000);
        Errors errors(kRanks);
        std::atomic<bool> armed = false, struck = false;
        int64_t newest = 0;  // step of the newest checkpoint after the save with the error
        run_control_ranks(kRanks, [&](Control& control) {
          const int rank = control.rank();
          StoreOptions options = quick_options(async);
          options.keep_last = 2;
          options.fault = [&, rank](std::string_view at) {
            if (!armed || rank != victim || at != point) return;
            struck = true;
            throw_io("injected");
          };
          CheckpointStore store(scratch.path(), options, control);
          store.save(1, before.of(rank), {});
          store.wait();
          control.barrier();
          armed = true;
          control.barrier();
          errors.of(control, [&] {
            store.save(2, after.of(rank), {});
            store.wait();
          });
          control.barrier();
          armed = false;
          control.barrier();
          if (rank == 0) {
            const Columns loaded = load_all(scratch.path(), kRanks, &newest);
            EXPECT_TRUE(loaded == (newest == 1 ? before : after));
            EXPECT_FALSE(has_leftovers(scratch.path())) << point;
          }
          control.barrier();
          store.save(3, before.of(rank), {});
          EXPECT_EQ(store.newest()->manifest.step, 3);
        });
        // Ranks behind rank 0 have nothing to do after their manifest; a part that is complete may be committed.
        const auto position = std::find(std::begin(kSavePoints), std::end(kSavePoints), point);
        const auto last =
            std::find(std::begin(kSavePoints), std::end(kSavePoints), std::string_view("save.after_manifest"));
        EXPECT_EQ(struck, victim == 0 || position <= last) << victim << " " << point;
        const bool pruning = point == "save.before_prune" || point == "save.after_prune";
        const std::string error = errors.common();
        if (error.empty() || position < last) {
          EXPECT_EQ(newest, error.empty() ? 2 : 1) << victim << " " << point << " " << error;
        }
        if (!struck || pruning) {
          EXPECT_EQ(error, "") << victim << " " << point;
        } else if (victim == 0 || position < last || !error.empty()) {
          EXPECT_TRUE(error.starts_with("74 ")) << victim << " " << point << " " << error;
          EXPECT_NE(error.find("injected"), std::string::npos) << error;
          if (victim != 0) {
            EXPECT_NE(error.find("rank " + std::to_string(victim)), std::string::npos) << error;
          }
        }
      }
    }
  }
}

TEST(RanksStore, AllRanksKilledAtAnySavePointOfAny) {
  constexpr int kRanks = 3;
  for (int victim = 0; victim < kRanks; ++victim) {
    for (const std::string_view point : kSavePoints) {
      if (victim > 0 && point == "save.before_rename") break;  // rank 0's alone from here on
      const Scratch scratch;
      Columns before(kRanks, 1), after(kRanks, 1000);
      const int status = run_child([&] {
        run_control_ranks(kRanks, [&](Control& control) {
          const int rank = control.rank();
          std::atomic<int64_t> step = 0;
          StoreOptions options = quick_options(true);
          options.keep_last = 2;
          options.fault = [&, rank](std::string_view at) {
            if (step == 3 && rank == victim && at == point) ::kill(::getpid(), SIGKILL);
          };
          CheckpointStore store(scratch.path(), options, control);
          for (step = 1; step <= 3; ++step) {
            store.save(step, (step < 3 ? before : after).of(rank), {});
            store.wait();
          }
        });
        return 0;
      });
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << victim << " " << point << " was never reached";
      int64_t step = 0;
      const Columns loaded = load_all(scratch.path(), kRanks, &step);
      EXPECT_TRUE(loaded == (step == 3 ? after : before)) << victim << " " << point;
      const auto position = std::find(std::begin(kSavePoints), std::end(kSavePoints), point);
      const auto rename =
          std::find(std::begin(kSavePoints), std::end(kSavePoints), std::string_view("save.after_rename"));
      if (victim == 0) {
        EXPECT_EQ(step, position < rename ? 2 : 3) << point;
      }
      EXPECT_GE(step, 2);
      // The next job, of another size, cleans up and goes on.
      run_control_ranks(2, [&](Control& control) {
        Columns next(2, 5);
        CheckpointStore store(scratch.path(), quick_options(true), control);
        if (control.rank() == 0) {
          EXPECT_FALSE(has_leftovers(scratch.path())) << point;
        }
        EXPECT_GE(store.newest()->manifest.step, 2);
        store.save(4, next.of(control.rank()), {});
        EXPECT_EQ(store.newest()->manifest.step, 4);
      });
    }
  }
}

TEST(RanksStore, FailedSavesAreCountedAlike) {
  const Scratch scratch;
  std::atomic<bool> broken = true;
  Errors third(3), last(3);
  run_control_ranks(3, [&](Control& control) {
    Columns state(3, 1);
    StoreOptions options = quick_options(true);
    options.failed_saves_allowed = 2;
    options.fault = [&](std::string_view at) {
      if (broken && control.rank() == 1 && at == "save.mid_shard") throw_io("no space left");
    };
    CheckpointStore store(scratch.path(), options, control);
    const auto save = [&](int64_t step) {
      store.save(step, state.of(control.rank()), {});
      store.wait();
    };
    const auto set = [&](bool value) {
      control.barrier();
      broken = value;
      control.barrier();
    };
    EXPECT_NO_THROW(save(1));
    EXPECT_TRUE(store.last_save().failed);
    EXPECT_NO_THROW(save(2));
    third.of(control, [&] { save(3); });
    set(false);
    EXPECT_NO_THROW(save(4));
    EXPECT_FALSE(store.last_save().failed);
    set(true);
    EXPECT_NO_THROW(save(5)) << "counting starts anew after a good one";
    last.of(control, [&] { store.wait(true); });
  });
  EXPECT_NE(third.common().find("74 rank 1: no space left"), std::string::npos) << third.common();
  EXPECT_TRUE(last.common().starts_with("74 "));
  EXPECT_EQ(list_checkpoints(scratch.path()).size(), 1u);
}

// Rank 0 hears of a failure that could not even be written down when all meet again, not when its patience ends.
TEST(RanksStore, AFailureThatLeavesNoNoteIsHeardAtTheNextMeeting) {
  const Scratch scratch;
  Errors errors(2);
  const auto start = std::chrono::steady_clock::now();
  run_control_ranks(2, [&](Control& control) {
    Columns state(2, 1);
    StoreOptions options = quick_options(true);
    options.fault = [&](std::string_view at) {
      if (control.rank() != 1 || at != "save.before_shard") return;
      for (const auto& entry : fs::directory_iterator(scratch.path())) {
        if (entry.path().string().find(".tmp-") != std::string::npos)
          fs::create_directory(entry.path() / "rank1.failed.part");
      }
      throw_io("quota");
    };
    CheckpointStore store(scratch.path(), options, control);
    errors.of(control, [&] {
      store.save(1, state.of(control.rank()), {});
      store.wait();
    });
  });
  EXPECT_EQ(errors.common(), "74 rank 1: quota");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_FALSE(has_leftovers(scratch.path()));
}

TEST(RanksStore, AMissingPartIsAnErrorThatNamesItsRanks) {
  const Scratch scratch;
  Errors errors(4);
  run_control_ranks(4, [&](Control& control) {
    const int rank = control.rank();
    Columns state(4, 1);
    bool late = false;
    StoreOptions options = quick_options(true);
    options.peer_seconds = 2.5;  // the others come in time on a busy machine, too, and these two do not
    options.fault = [&](std::string_view at) {
      if (late && (rank == 1 || rank == 3) && at == "save.before_manifest")
        std::this_thread::sleep_for(std::chrono::seconds(6));
    };
    CheckpointStore store(scratch.path(), options, control);
    store.save(1, state.of(rank), {});
    store.wait();
    late = true;
    errors.of(control, [&] {
      store.save(2, state.of(rank), {});
      store.wait();
    });
    late = false;
    if (rank == 0) {
      EXPECT_FALSE(has_leftovers(scratch.path()));
    }
    EXPECT_EQ(store.newest()->manifest.step, 1);
    store.save(3, state.of(rank), {});
    EXPECT_EQ(store.newest()->manifest.step, 3);
  });
  EXPECT_TRUE(errors.common().starts_with("74 ")) << errors.common();
  EXPECT_NE(errors.common().find("rank(s) 1, 3"), std::string::npos) << errors.common();
}

// A file that is not as its rank wrote it: a torn one is found before the commit, a changed one by whoever verifies.
TEST(RanksStore, TornShardsAreFound) {
  for (const bool torn : {true, false}) {
    const Scratch scratch;
    Errors errors(2);
    run_control_ranks(2, [&](Control& control) {
      Columns state(2, 1);
      int64_t step = 0;
      StoreOptions options = quick_options(true);
      options.fault = [&](std::string_view at) {
        if (control.rank() != 1 || step != 2 || at != "save.before_manifest") return;
        for (const auto& entry : fs::recursive_directory_iterator(scratch.path())) {
          const std::string path = entry.path().string();
          if (path.find(".tmp-") == std::string::npos || entry.path().filename() != "rank1-00000.safetensors") continue;
          std::string bytes = slurp(path);
          if (torn)
            bytes.resize(bytes.size() / 2);
          else
            bytes.back() = static_cast<char>(bytes.back() ^ 1);
          spill(path, bytes);
        }
      };
      CheckpointStore store(scratch.path(), options, control);
      for (step = 1; step <= 2; ++step) {
        errors.of(control, [&] {
          store.save(step, state.of(control.rank()), {});
          store.wait();
        });
      }
      EXPECT_EQ(store.newest()->manifest.step, 1);
    });
    if (torn) {
      EXPECT_NE(errors.common().find("rank1-00000.safetensors: rank 1 wrote"), std::string::npos) << errors.common();
    } else {
      EXPECT_EQ(errors.common(), "");
    }
  }
}

TEST(RanksStore, SlicesThatDoNotMakeWholeTensorsAreACheckOnAllRanks) {
  for (const bool overlap : {true, false}) {
    const Scratch scratch;
    Errors errors(3);
    run_control_ranks(3, [&](Control& control) {
      std::vector<float> values(12, 1.0f);
      const int64_t from = control.rank() * 2 + (control.rank() == 2 ? (overlap ? -1 : 1) : 0);
      CheckpointStore store(scratch.path(), quick_options(true), control);
      errors.of(control, [&] {
        store.save(1,
                   [&](StateVisitor& v) {
                     v.tensor({"t", 7, 2, from, 2, 0, 2, 0, View(values.data(), DType::f32, {4})});
                   },
                   {});
        store.wait();
      });
      EXPECT_FALSE(store.newest().has_value());
    });
    EXPECT_TRUE(errors.common().starts_with("70 ")) << errors.common();
    EXPECT_NE(errors.common().find(overlap ? "\"t\": elements 6 to 8 are stored twice"
                                           : "\"t\": elements 8 to 10 are stored nowhere"),
              std::string::npos)
        << errors.common();
    EXPECT_FALSE(has_leftovers(scratch.path()));
  }
}

TEST(RanksStore, OneRanksErrorWhileLoadingIsTheErrorOfAll) {
  const Scratch scratch;
  Errors missing(3), wrong(3), thrown(3);
  run_control_ranks(3, [&](Control& control) {
    Columns state(3, 1);
    const int rank = control.rank();
    CheckpointStore store(scratch.path(), quick_options(), control);
    store.save(1, state.of(rank), {});
    std::vector<float> out(9);
    missing.of(control, [&] {
      load_newest(store, control, [&](StateVisitor& v) {
        if (rank == 2) v.tensor(GlobalSlice::whole("model/absent", 3, 3, View(out.data(), DType::f32, {9})));
      });
    });
    wrong.of(control, [&] {
      load_newest(store, control, [&](StateVisitor& v) {
        if (rank == 1) v.tensor(GlobalSlice::whole("model/alone", 9, 1, View(out.data(), DType::f32, {9})));
      });
    });
    thrown.of(control, [&] {
      store.save(2,
                 [&](StateVisitor& v) {
                   if (rank == 1) throw_bad_data("cannot show this");
                   state.visit(rank, v);
                 },
                 {});
    });
    const auto report = load_newest(store, control, [&](StateVisitor& v) {
      if (rank == 1) v.integer("count", state.count);
    });
    EXPECT_EQ(report->manifest.step, 1);
  });
  EXPECT_NE(missing.common().find("65 rank 2: "), std::string::npos) << missing.common();
  EXPECT_NE(missing.common().find("no tensor \"model/absent\""), std::string::npos) << missing.common();
  EXPECT_NE(wrong.common().find("65 rank 1: "), std::string::npos) << wrong.common();
  EXPECT_EQ(thrown.common(), "65 rank 1: cannot show this");
}

TEST(RanksStore, DirectoriesThatAreNotSharedAreRefusedByName) {
  const Scratch scratch, other;
  Errors errors(3);
  run_control_ranks(3, [&](Control& control) {
    errors.of(control, [&] {
      StoreOptions options = quick_options();
      options.peer_seconds = 0.5;
      CheckpointStore store(control.rank() == 2 ? other.path() : scratch.path(), options, control);
    });
  });
  EXPECT_TRUE(errors.common().starts_with("74 rank 2: " + other.path())) << errors.common();
  EXPECT_NE(errors.common().find("share"), std::string::npos);
}

TEST(RanksStore, ALockedDirectoryIsBusyForAllRanks) {
  const Scratch scratch;
  const CheckpointStore holder(scratch.path(), quick_options());
  Errors errors(2);
  run_control_ranks(2, [&](Control& control) {
    errors.of(control, [&] { CheckpointStore store(scratch.path(), quick_options(), control); });
  });
  EXPECT_TRUE(errors.common().starts_with("73 ")) << errors.common();
  EXPECT_NE(errors.common().find("in use by"), std::string::npos) << errors.common();
}

TEST(RanksStore, CorruptNewestFallsBackOnAllRanksAndNoneGoodIsAnError) {
  const Scratch scratch;
  Errors errors(2);
  run_control_ranks(2, [&](Control& control) {
    Columns one(2, 1), two(2, 2);
    CheckpointStore store(scratch.path(), quick_options(), control);
    store.save(1, one.of(control.rank()), {});
    store.save(2, two.of(control.rank()), {});
    if (control.rank() == 0) fs::remove(scratch / "step_000002/rank1-00000.safetensors");
    control.barrier();
    EXPECT_EQ(store.newest()->path, scratch / "step_000001");
    EXPECT_EQ(find_newest_valid(scratch.path(), control).manifest.step, 1);
    control.barrier();
    if (control.rank() == 1) fs::resize_file(scratch / "step_000001/manifest.json", 9);
    control.barrier();
    errors.of(control, [&] { (void)store.newest(); });
  });
  EXPECT_TRUE(errors.common().starts_with("65 ")) << errors.common();
  EXPECT_NE(errors.common().find("rank1-00000.safetensors"), std::string::npos) << errors.common();
}

// Bytes that the calling thread has asked files for.
uint64_t bytes_read() {
  std::ifstream file("/proc/thread-self/io");
  std::string name;
  uint64_t bytes = 0;
  file >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

// On slow storage one rank that reads everything keeps all others waiting, until the watchdog takes it for a hang.
TEST(RanksStore, VerifyingIsEverybodysWork) {
  constexpr int kRanks = 4;
  constexpr uint64_t kFloats = 1 << 18;
  const Scratch scratch;
  std::vector<uint64_t> seen(kRanks), by_path(kRanks);
  const auto state = [&](int rank) {
    return [rank](StateVisitor& v) {
      std::vector<float> part(kFloats, static_cast<float>(rank));
      v.tensor({"model/columns", kFloats, kRanks, 0, kFloats, rank, 1, 0, View(part.data(), DType::f32, {kFloats})});
    };
  };
  run_control_ranks(kRanks, [&](Control& control) {
    const size_t rank = static_cast<size_t>(control.rank());
    CheckpointStore store(scratch.path(), quick_options(true), control);
    store.save(1, state(control.rank()), {});
    store.wait();
    const uint64_t before = bytes_read();
    EXPECT_EQ(store.newest()->manifest.step, 1);
    const uint64_t between = bytes_read();
    EXPECT_EQ(find_newest_valid(scratch.path(), control).manifest.step, 1);
    seen[rank] = between - before, by_path[rank] = bytes_read() - between;
  });
  for (const auto& list : {seen, by_path}) {
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_GT(list[static_cast<size_t>(rank)], 4 * kFloats) << rank;
      EXPECT_LT(list[static_cast<size_t>(rank)], 4 * kFloats * 3 / 2) << rank;
    }
  }
}

// Those who wait for the others in the last save hear of writers that get on, and their watchdog (71) stays quiet: here
// for more than twice as long as it has patience. Rank 0's commits, reads back and prunes, too.
TEST(RanksStore, SlowStorageIsNoHang) {
  constexpr int kRanks = 3;
  constexpr double kPatience = 3.0;  // who is slow, and gets no core for a second at that, is still no hang
  for (const auto& [slow, nap_ms] : {std::pair(0, 600), std::pair(2, 1290)}) {
    const Scratch scratch;
    Columns columns(kRanks, 1);
    run_local_ranks(kRanks, [&](Transport& transport) {
      Progress progress(transport, {.spin_us = 0, .watchdog_seconds = kPatience});
      Control control(
          Channel(std::make_unique<Communicator>(progress, std::vector<int>{0, 1, 2}, 1, Site::kControl, nullptr)));
      StoreOptions options = quick_options(true);
      options.keep_last = 2;
      if (control.rank() == slow) {
        options.fault = [nap = std::chrono::milliseconds(nap_ms)](std::string_view at) {
          const auto first = std::find(std::begin(kSavePoints), std::end(kSavePoints), "save.before_shard");
          if (std::find(first, std::end(kSavePoints), at) != std::end(kSavePoints)) std::this_thread::sleep_for(nap);
        };
      }
      CheckpointStore store(scratch.path(), options, control);
      const auto start = std::chrono::steady_clock::now();
      store.save(1, columns.of(control.rank()), {});
      store.wait(true);
      EXPECT_GT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 2 * kPatience);
      EXPECT_FALSE(store.last_save().failed);
    });
    EXPECT_TRUE(load_all(scratch.path(), kRanks) == columns);
  }
}

// With keep_last every rank reads back what it has written, and rank 0 none of that again: a fault behind a rank's own
// reading is found by that rank alone, or by the next job.
TEST(RanksStore, EachRankReadsBackItsOwnFiles) {
  constexpr int kRanks = 3, kVictim = 1;
  for (const auto& [at, found] : {std::pair("save.after_shard", true), std::pair("save.before_manifest", false)}) {
    const Scratch scratch;
    Errors errors(kRanks);
    run_control_ranks(kRanks, [&](Control& control) {
      Columns state(kRanks, 1);
      StoreOptions options = quick_options(true);
      options.keep_last = 2;
      bool armed = false;
      if (control.rank() == kVictim) {
        options.fault = [&, point = std::string_view(at)](std::string_view now) {
          if (!armed || now != point) return;
          for (const auto& entry : fs::recursive_directory_iterator(scratch.path())) {
            const std::string path = entry.path().string();
            if (path.find(".tmp-") == std::string::npos || path.find("rank1-") == std::string::npos) continue;
            std::string bytes = slurp(path);
            bytes.back() ^= 1;
            spill(path, bytes);
          }
        };
      }
      CheckpointStore store(scratch.path(), options, control);
      store.save(1, state.of(control.rank()), {});
      store.wait();
      armed = true;
      errors.of(control, [&] {
        store.save(2, state.of(control.rank()), {});
        store.wait();
      });
      armed = false;
      // Loading finds whatever is wrong, and takes the one before.
      EXPECT_EQ(store.newest()->manifest.step, 1);
    });
    const std::string error = errors.common();
    EXPECT_EQ(error.find("does not read back") != std::string::npos, found) << at << ": " << error;
    if (found) {
      EXPECT_TRUE(error.starts_with("74 rank 1: ")) << error;
    }
    EXPECT_EQ(list_checkpoints(scratch.path()).size(), found ? 1u : 2u);
  }
}

// save() comes back while all ranks' bytes are still to be written; what is written is the copy.
TEST(RanksStore, TheStepGoesOnWhileAllRanksWrite) {
  const Scratch scratch;
  std::atomic<bool> go = false;
  run_control_ranks(3, [&](Control& control) {
    const Columns saved(3, 1);
    Columns state = saved;
    StoreOptions options = quick_options(true);
    options.fault = [&](std::string_view at) {
      while (at == "save.before_shard" && !go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    CheckpointStore store(scratch.path(), options, control);
    store.save(1, state.of(control.rank()), {});
    EXPECT_TRUE(list_checkpoints(scratch.path()).empty());
    state = Columns(3, 77);
    control.barrier();  // the communicator is free for the step
    go = true;
    store.wait();
    EXPECT_TRUE(load_all(scratch.path(), 3) == saved);
  });
}

}  // namespace
}  // namespace thinwire::ranks_store_test
