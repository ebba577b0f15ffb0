// kill -9 at every save point, sync and async: afterwards the previous or the new checkpoint loads, bit for bit.
#include <signal.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "engine/base/core/file.h"
#include "tests/checkpoint/checkpoint_test_support.h"

namespace thinwire::store_crash_test {
namespace {

using namespace checkpoint_test;
namespace fs = std::filesystem;

bool has_leftovers(const std::string& dir) {
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().filename().string().find(".tmp-") != std::string::npos) return true;
  }
  return false;
}

TEST(StoreCrash, KilledAtEverySavePoint) {
  std::set<std::string> struck;
  for (const bool async : {false, true}) {
    for (const std::string_view point : kSavePoints) {
      const Scratch scratch;
      RandomState before(1), after(2);
      {
        CheckpointStore store(scratch.path(), quick_options());
        store.save(1, before.visitor(), {});
        store.save(2, before.visitor(), {});
      }
      const int status = run_child([&] {
        StoreOptions options = quick_options(async);
        options.keep_last = 2;
        options.shard_bytes = 300;
        options.fault = [&](std::string_view at) {
          if (at == point) ::kill(::getpid(), SIGKILL);
        };
        CheckpointStore store(scratch.path(), options);
        store.save(3, after.visitor(), {});
        store.wait();
        return 0;
      });
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << point << " was never reached";
      struck.insert(std::string(point));
      // As of a process killed while it wrote its lease.
      write_file_atomic(scratch.path() + "/lease.json.tmp-host-1", "{");
      CheckpointStore store(scratch.path(), quick_options());
      EXPECT_FALSE(has_leftovers(scratch.path())) << point;
      RandomState loaded(9);
      const auto report = load_newest(store, loaded.visitor());
      ASSERT_TRUE(report.has_value()) << point;
      // The rename is the commit: before it the old one, after it the new one, nothing else ever.
      const auto position = std::find(std::begin(kSavePoints), std::end(kSavePoints), point);
      const auto rename =
          std::find(std::begin(kSavePoints), std::end(kSavePoints), std::string_view("save.after_rename"));
      EXPECT_EQ(report->manifest.step, position < rename ? 2 : 3) << point;
      EXPECT_TRUE(loaded == (position < rename ? before : after)) << point;
      // And the directory is usable: the interrupted step saves again.
      store.save(4, after.visitor(), {});
      EXPECT_EQ(load_newest(store, loaded.visitor())->manifest.step, 4) << point;
    }
  }
  EXPECT_EQ(struck.size(), std::size(kSavePoints));
}

// The same points, failing with an error instead of dying: the step learns of it, old checkpoints stay, no litter.
TEST(StoreCrash, ErrorAtEverySavePoint) {
  for (const bool async : {false, true}) {
    for (const std::string_view point : kSavePoints) {
      const Scratch scratch;
      RandomState before(1), after(2), loaded(9);
      bool armed = false;
      StoreOptions options = quick_options(async);
      options.keep_last = 2;
      options.fault = [&](std::string_view at) {
        if (armed && at == point) throw_io("injected at " + std::string(at));
      };
      CheckpointStore store(scratch.path(), options);
      store.save(1, before.visitor(), {});
      store.wait();
      armed = true;
      const auto attempt = [&] {
        store.save(2, after.visitor(), {});
        store.wait();
      };
      const bool after_commit = point == "save.before_prune" || point == "save.after_prune";
      if (after_commit) {
        EXPECT_NO_THROW(attempt()) << point;
      } else {
        const Error e = error_of(attempt);
        EXPECT_EQ(e.code(), ExitCode::kIo) << point;
        EXPECT_NE(std::string(e.what()).find("injected"), std::string::npos) << e.what();
      }
      armed = false;
      EXPECT_FALSE(has_leftovers(scratch.path())) << point;
      const int64_t step = load_newest(store, loaded.visitor())->manifest.step;
      EXPECT_TRUE(loaded == (step == 1 ? before : after)) << point;
      // Before the rename the new checkpoint is not there; after the commit it is.
      const auto position = std::find(std::begin(kSavePoints), std::end(kSavePoints), point);
      const auto rename =
          std::find(std::begin(kSavePoints), std::end(kSavePoints), std::string_view("save.after_rename"));
      if (position < rename || after_commit) {
        EXPECT_EQ(step, after_commit ? 2 : 1) << point;
      }
      store.save(3, after.visitor(), {});
      EXPECT_EQ(load_newest(store, loaded.visitor())->manifest.step, 3) << point;
    }
  }
}

TEST(StoreCrash, SomeFailedSavesAreAllowedWhenAsked) {
  const Scratch scratch;
  RandomState state(1);
  bool broken = true;
  StoreOptions options = quick_options(true);
  options.failed_saves_allowed = 2;
  options.fault = [&](std::string_view at) {
    if (broken && at == "save.mid_shard") throw_io("no space left");
  };
  CheckpointStore store(scratch.path(), options);
  const auto save = [&](int64_t step) {
    store.save(step, state.visitor(), {});
    store.wait();
  };
  EXPECT_NO_THROW(save(1));
  EXPECT_TRUE(store.last_save().failed);
  EXPECT_NO_THROW(save(2));
  EXPECT_THROW(save(3), Error);  // the third in a row
  broken = false;
  EXPECT_NO_THROW(save(4));
  EXPECT_FALSE(store.last_save().failed);
  broken = true;
  EXPECT_NO_THROW(save(5));  // counting starts anew after a good one
  EXPECT_EQ(error_of([&] { store.wait(true); }).code(), ExitCode::kIo) << "a run does not end well on a failed save";
}

}  // namespace
}  // namespace thinwire::store_crash_test
