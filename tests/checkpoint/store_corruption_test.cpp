// Damage after the commit: every flipped bit and every cut is found, an older checkpoint is taken instead, and where
// none verifies the run does not start from nothing.
#include <algorithm>
#include <map>
#include <set>

#include "tests/checkpoint/checkpoint_test_support.h"

namespace thinwire::store_corruption_test {
namespace {

using namespace checkpoint_test;
namespace fs = std::filesystem;

std::vector<fs::path> files_of(const std::string& checkpoint) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(checkpoint)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST(StoreCorruption, TwoThousandFlippedBitsAreAllFound) {
  const Scratch scratch;
  RandomState old_state(1), new_state(2), loaded(9);
  {
    StoreOptions options = quick_options();
    options.shard_bytes = 400;
    CheckpointStore store(scratch.path(), options);
    store.save(1, old_state.visitor(), {{"model", {{"hidden", 7}}}});
    store.save(2, new_state.visitor(), {{"model", {{"hidden", 7}}}});
  }
  const auto files = files_of(scratch / "step_000002");
  ASSERT_GE(files.size(), 3u);
  std::vector<std::pair<fs::path, size_t>> places;  // every byte of every file is equally likely
  for (const auto& file : files) {
    for (size_t i = 0; i < fs::file_size(file); ++i) places.emplace_back(file, i);
  }
  std::mt19937_64 random(5);
  std::map<fs::path, std::string> good;
  for (const auto& file : files) good[file] = slurp(file.string());
  int accepted = 0;
  for (int round = 0; round < 2000; ++round) {
    const auto& [file, at] = places[random() % places.size()];
    std::string bad = good[file];
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    spill(file.string(), bad);
    try {
      verify_checkpoint(scratch / "step_000002");
      ++accepted;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kBadData);
    }
    if (round % 100 == 0) {
      const VerifiedCheckpoint report = find_newest_valid(scratch.path());
      EXPECT_EQ(report.manifest.step, 1);
      load_checkpoint(report, loaded.visitor());
      EXPECT_TRUE(loaded == old_state);
    }
    spill(file.string(), good[file]);
  }
  EXPECT_EQ(accepted, 0);
  EXPECT_EQ(find_newest_valid(scratch.path()).manifest.step, 2) << "undamaged again, it is accepted again";
}

// Cuts at and beside every edge of the format, and every 4096 bytes; then bytes appended, and a file gone.
TEST(StoreCorruption, EveryInterestingTruncationIsFound) {
  const Scratch scratch;
  RandomState state(1, 60, 8), loaded(9, 60, 8);
  {
    CheckpointStore store(scratch.path(), quick_options());
    store.save(1, state.visitor(), {});
    store.save(2, state.visitor(), {});
  }
  for (const fs::path& file : files_of(scratch / "step_000002")) {
    const std::string good = slurp(file.string());
    std::set<size_t> sizes{0, 1, 7, 8, 9, good.size() - 1, good.size() - 2, good.size() / 2};
    if (file.extension() == ".safetensors") {
      uint64_t header = 0;
      std::memcpy(&header, good.data(), 8);
      for (const uint64_t s : {8 + header - 1, 8 + header, 8 + header + 1}) sizes.insert(s);
      const SafetensorsFile opened(file.string());
      for (const SafetensorsEntry& e : opened.entries()) sizes.insert(e.begin), sizes.insert(e.begin + e.bytes / 2);
    }
    for (size_t s = 0; s < good.size(); s += 4096) sizes.insert(s);
    for (const size_t size : sizes) {
      if (size >= good.size()) continue;
      spill(file.string(), good.substr(0, size));
      const Error e = error_of([&] { verify_checkpoint(scratch / "step_000002"); });
      EXPECT_EQ(e.code(), ExitCode::kBadData);
      EXPECT_NE(std::string(e.what()).find(file.filename().string()), std::string::npos)
          << "names the file: " << e.what();
      EXPECT_EQ(find_newest_valid(scratch.path()).manifest.step, 1) << file << " cut to " << size;
    }
    for (const std::string& tail : {std::string(1, '\0'), std::string("\n"), good}) {
      spill(file.string(), good + tail);
      EXPECT_THROW(verify_checkpoint(scratch / "step_000002"), Error) << file << " with something appended";
    }
    fs::remove(file);
    EXPECT_THROW(verify_checkpoint(scratch / "step_000002"), Error) << file << " gone";
    spill(file.string(), good);
  }
  EXPECT_NO_THROW(verify_checkpoint(scratch / "step_000002"));
}

// Loading checks again what it reads.
TEST(StoreCorruption, DamageAfterVerifyingIsFoundByLoading) {
  const Scratch scratch;
  RandomState state(1), loaded(9);
  CheckpointStore store(scratch.path(), quick_options());
  store.save(1, state.visitor(), {});
  const std::string shard = scratch / "step_000001/shard_00000.safetensors";
  std::string bytes = slurp(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 4);
  spill(shard, bytes);
  const std::string path = scratch / "step_000001";
  EXPECT_EQ(error_of([&] {
              load_checkpoint({path, read_manifest(path)}, loaded.visitor());
            }).code(),
            ExitCode::kBadData);
}

TEST(StoreCorruption, NoneThatVerifiesIsNotAFreshStart) {
  const Scratch scratch;
  RandomState state(1);
  CheckpointStore store(scratch.path(), quick_options());
  store.save(1, state.visitor(), {});
  store.save(2, state.visitor(), {});
  fs::resize_file(scratch / "step_000001/manifest.json", 10);
  fs::resize_file(scratch / "step_000002/shard_00000.safetensors", 10);
  const Error e = error_of([&] { (void)store.newest(); });
  EXPECT_EQ(e.code(), ExitCode::kBadData);
  const std::string what = e.what();
  for (const char* part : {"step_000001/manifest.json", "step_000002/shard_00000.safetensors", "start over"}) {
    EXPECT_NE(what.find(part), std::string::npos) << what;
  }
}

// latest.json is for people: loading does not care whether it is lost, torn or wrong.
TEST(StoreCorruption, LatestIsOnlyAConvenience) {
  const Scratch scratch;
  RandomState state(1);
  CheckpointStore store(scratch.path(), quick_options());
  store.save(1, state.visitor(), {});
  store.save(2, state.visitor(), {});
  for (const char* content : {"", "{\"generation\":\"step_000001\",\"step\":1}", "\xff"}) {
    spill(scratch / "latest.json", content);
    EXPECT_EQ(store.newest()->manifest.step, 2);
  }
  fs::remove(scratch / "latest.json");
  EXPECT_EQ(store.newest()->manifest.step, 2);
}

// A shard of another checkpoint of the same run: every file is whole, but not what the manifest lists.
TEST(StoreCorruption, ShardOfAnotherStepIsFound) {
  const Scratch scratch;
  RandomState one(1), two(2);
  CheckpointStore store(scratch.path(), quick_options());
  store.save(1, one.visitor(), {});
  store.save(2, two.visitor(), {});
  fs::copy_file(scratch / "step_000001/shard_00000.safetensors", scratch / "step_000002/shard_00000.safetensors",
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(store.newest()->manifest.step, 1);
}

}  // namespace
}  // namespace thinwire::store_corruption_test
