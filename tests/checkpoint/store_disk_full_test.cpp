// A disk that fills up, by file-size limit and (as root) by a small tmpfs: an error with the reason, old checkpoints
// intact.
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "tests/checkpoint/checkpoint_test_support.h"

namespace thinwire::store_disk_full_test {
namespace {

using namespace checkpoint_test;
namespace fs = std::filesystem;

struct SmallMount {
  std::string path;
  ~SmallMount() { ::umount2(path.c_str(), MNT_DETACH); }
};

// In a child: the limit cannot be taken back.
TEST(StoreDiskFull, FileSizeLimitFailsCleanlyAndKeepsTheOldGeneration) {
  for (const bool async : {false, true}) {
    const Scratch scratch;
    const int status = run_child([&] {
      ::signal(SIGXFSZ, SIG_IGN);
      RandomState small(1, 8), large(2, 400, 8), loaded(9, 8);
      CheckpointStore store(scratch.path(), quick_options(async));
      store.save(1, small.visitor(), {});
      store.wait();
      const rlimit limit{16384, 16384};
      if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 10;
      try {
        store.save(2, large.visitor(), {});
        store.wait();
        return 11;
      } catch (const Error& e) {
        if (e.code() != ExitCode::kIo) return 12;
        if (std::string(e.what()).find("too large") == std::string::npos) return 13;
      }
      if (load_newest(store, loaded.visitor())->manifest.step != 1 || !(loaded == small)) return 14;
      store.save(3, small.visitor(), {});  // small ones still fit
      store.wait();
      return store.newest()->manifest.step == 3 ? 0 : 15;
    });
    EXPECT_EQ(status, 0) << "exit code " << WEXITSTATUS(status);
    for (const auto& entry : fs::directory_iterator(scratch.path())) {
      EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
    }
  }
}

TEST(StoreDiskFull, FullFileSystemFailsCleanlyAndKeepsTheOldGenerations) {
  const Scratch scratch;
  fs::create_directory(scratch / "small");
  if (::mount("tmpfs", (scratch / "small").c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "mounting a small tmpfs needs root: " << std::strerror(errno);
  }
  const SmallMount unmount{scratch / "small"};
  RandomState state(1, 150, 8), loaded(9, 150, 8);
  uint64_t bytes = 0;
  for (const auto& t : state.tensors) bytes += t.bytes.size();
  ASSERT_GT(bytes, 50'000u);
  ASSERT_LT(bytes, 500'000u);
  StoreOptions options = quick_options(true);
  options.failed_saves_allowed = 2;
  CheckpointStore store(scratch / "small", options);
  int64_t good = 0, failed = 0;
  std::string why;
  for (int64_t step = 1; step <= 40 && why.empty(); ++step) {
    try {
      store.save(step, state.visitor(), {});
      store.wait();
      (store.last_save().failed ? failed : good)++;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kIo);
      why = e.what();
    }
  }
  EXPECT_NE(why.find("No space left"), std::string::npos) << why;
  EXPECT_GE(good, 2);
  EXPECT_EQ(failed, 2) << "training went on over two failed saves";
  EXPECT_EQ(static_cast<int64_t>(list_checkpoints(scratch / "small").size()), good);
  EXPECT_EQ(load_newest(store, loaded.visitor())->manifest.step, good);
  EXPECT_TRUE(loaded == state);
  // Space comes back: saving goes on.
  fs::remove_all(scratch / "small/step_000001");
  EXPECT_NO_THROW(store.save(99, state.visitor(), {}));
  store.wait();
  EXPECT_EQ(store.newest()->manifest.step, 99);
}

TEST(StoreDiskFull, KeepLastGivenToAFullDiskMakesRoom) {
  const Scratch scratch;
  fs::create_directory(scratch / "small");
  if (::mount("tmpfs", (scratch / "small").c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "mounting a small tmpfs needs root: " << std::strerror(errno);
  const SmallMount unmount{scratch / "small"};
  RandomState state(1, 150, 8);
  StoreOptions options = quick_options(true);
  options.failed_saves_allowed = 1;
  int64_t step = 0;
  {
    CheckpointStore store(scratch / "small", options);
    for (bool full = false; !full && step < 40; full = store.last_save().failed) {
      store.save(++step, state.visitor(), {});
      store.wait();
    }
    ASSERT_TRUE(store.last_save().failed);
  }
  ASSERT_GT(list_checkpoints(scratch / "small").size(), 2u);
  options.keep_last = 2;
  CheckpointStore store(scratch / "small", options);
  store.save(step, state.visitor(), {});
  store.wait();
  EXPECT_TRUE(store.last_save().failed) << "the room comes behind it";
  EXPECT_EQ(list_checkpoints(scratch / "small").size(), 2u);
  EXPECT_NO_THROW(store.save(step + 1, state.visitor(), {}));
  store.wait(true);
  EXPECT_EQ(store.newest()->manifest.step, step + 1);
}

TEST(StoreDiskFull, UnwritableDirectoryIsBusyWithTheReason) {
  const Scratch scratch;
  spill(scratch / "file", "x");
  const Error e = error_of([&] { CheckpointStore store(scratch / "file/checkpoints", quick_options()); });
  EXPECT_EQ(e.code(), ExitCode::kBusy);
  EXPECT_NE(std::string(e.what()).find("file"), std::string::npos);
}

}  // namespace
}  // namespace thinwire::store_disk_full_test
