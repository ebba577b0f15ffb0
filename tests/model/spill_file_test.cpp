// Memory that goes out and comes back is what it was, by io_uring and by the thread; and a disk that is full, or fails,
// says so with code 74.
#include "engine/base/device/spill_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>

#include "engine/base/core/aligned_vector.h"
#include "engine/base/core/error.h"
#include "engine/base/core/philox.h"
#include "engine/base/device/device.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::spill_file_test {
namespace {

// Page-aligned memory.
struct Pages {
  explicit Pages(size_t bytes) : bytes(bytes), data(static_cast<char*>(device->allocate(bytes))) {}
  ~Pages() { device->release(data, bytes); }
  std::unique_ptr<Device> device = make_cpu_device();
  size_t bytes;
  char* data;
};

class SpillFileWays : public ::testing::TestWithParam<SpillFile::Way> {};
INSTANTIATE_TEST_SUITE_P(All, SpillFileWays, ::testing::Values(SpillFile::Way::kBest, SpillFile::Way::kThread));

// Random transfers, as many under way as there are requests, against a copy in memory.
TEST_P(SpillFileWays, WhatComesBackIsWhatWentOut) {
  constexpr size_t kPlace = 10 * SpillFile::kBlock;
  constexpr int kPlaces = 12, kRequests = 5;
  const test::Scratch scratch;
  SpillFile file(scratch.path(), kPlaces * kPlace, kRequests, GetParam());
  RecordProperty("way", file.description());
  std::vector<std::vector<char>> expected(kPlaces, std::vector<char>(kPlace, 0));
  Pages memory(kRequests * kPlace);
  struct UnderWay {
    int place = -1;
    bool write = false;
    size_t bytes = 0;
  };
  std::vector<UnderWay> under_way(kRequests);
  const auto settle = [&](int request) {
    const UnderWay u = std::exchange(under_way[static_cast<size_t>(request)], {});
    file.wait(request, SpillPlace::Next::kCompute);
    if (u.place < 0 || u.write) return;
    EXPECT_EQ(std::memcmp(memory.data + static_cast<size_t>(request) * kPlace,
                          expected[static_cast<size_t>(u.place)].data(), u.bytes),
              0)
        << "place " << u.place;
  };
  for (uint32_t i = 0; i < 400; ++i) {
    const auto draw = philox({3, 5}, {i, 0, 0, 0});
    const int request = static_cast<int>(draw[0] % kRequests), place = static_cast<int>(draw[1] % kPlaces);
    settle(request);
    for (int other = 0; other < kRequests; ++other)  // one transfer at a time for a place
      if (under_way[static_cast<size_t>(other)].place == place) settle(other);
    char* mine = memory.data + static_cast<size_t>(request) * kPlace;
    const bool write = (draw[2] & 1) != 0;
    const size_t bytes = (1 + draw[3] % 10) * SpillFile::kBlock;
    if (write) {
      for (size_t at = 0; at < bytes; at += sizeof draw) {
        const auto words = philox({7, 9}, {i, static_cast<uint32_t>(at), 0, 0});
        std::memcpy(mine + at, words.data(), sizeof words);
      }
      std::memcpy(expected[static_cast<size_t>(place)].data(), mine, bytes);
    }
    file.start(request, write, mine, bytes, static_cast<uint64_t>(place) * kPlace);
    under_way[static_cast<size_t>(request)] = {place, write, bytes};
  }
  for (int request = 0; request < kRequests; ++request) settle(request);
}

// A file-size limit of this process stands for a disk without room.
struct FileLimit {
  explicit FileLimit(rlim_t bytes) : old_handler(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old);
    const rlimit limit{bytes, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, old_handler);
  }
  rlimit old{};
  void (*old_handler)(int);
};

template <typename Body>
std::string refused(const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kIo);
    return e.what();
  }
  return "";
}

TEST_P(SpillFileWays, NoRoomAndFailingWritesAreIoErrors) {
  const test::Scratch scratch;  // other tests may have files of such names where all have theirs
  const std::string& place = scratch.path();
  {
    const FileLimit limit(1 << 20);
    const std::string what = refused([&] { SpillFile file(place, 64 << 20, 1, GetParam()); });
    EXPECT_NE(what.find("64 MiB"), std::string::npos) << what;
    EXPECT_NE(what.find(place), std::string::npos) << what;
  }
  EXPECT_NE(refused([&] { SpillFile file(place + "/missing", 4096, 1, GetParam()); }), "");

  Pages memory(64 * SpillFile::kBlock);
  SpillFile file(place, 64 * SpillFile::kBlock, 2, GetParam());
  file.start(0, true, memory.data, memory.bytes, 0);
  file.wait(0, SpillPlace::Next::kCompute);
  {
    const FileLimit limit(16 * SpillFile::kBlock);
    file.start(1, true, memory.data, memory.bytes, 0);
    const std::string what = refused([&] { file.wait(1, SpillPlace::Next::kCompute); });
    EXPECT_NE(what.find("cannot write"), std::string::npos) << what;
    EXPECT_NE(what.find(place), std::string::npos) << what;
  }
  // Past the end of the file nothing can be read back.
  file.start(0, false, memory.data, memory.bytes, 32 * SpillFile::kBlock);
  EXPECT_NE(refused([&] { file.wait(0, SpillPlace::Next::kCompute); }).find("cannot read back"), std::string::npos);
  file.start(0, false, memory.data, memory.bytes, 0);  // and it goes on
  file.wait(0, SpillPlace::Next::kCompute);
  for (const auto& entry : std::filesystem::directory_iterator(place))
    EXPECT_EQ(entry.path().filename().string().rfind("activations.", 0), std::string::npos) << entry.path();
}

}  // namespace
}  // namespace thinwire::spill_file_test
