// Checkpoint tests with several ranks: threads of this process with a Control each, and random cuts of tensors.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/run/checkpoint/slice_place.h"
#include "parallel/collective/communicator.h"
#include "parallel/sites/control.h"
#include "parallel/wire/transport.h"
#include "tests/checkpoint/checkpoint_test_support.h"
#include "tests/support/local_world.h"

namespace thinwire::checkpoint_test {

// Runs body(control) on `size` ranks, whose messages come late and in any order; the first error of any is thrown here.
inline void run_control_ranks(int size, const std::function<void(Control&)>& body) {
  run_local_ranks(
      size,
      [&](Transport& transport) {
        Progress progress(transport, {.spin_us = 0});
        std::vector<int> ranks(static_cast<size_t>(size));
        std::iota(ranks.begin(), ranks.end(), 0);
        Control control(Channel(std::make_unique<Communicator>(progress, ranks, 1, Site::kControl, nullptr)));
        body(control);
      },
      1);
}

// A collective: the newest checkpoint, filled into each rank's `state`.
inline std::optional<VerifiedCheckpoint> load_newest(CheckpointStore& store, Control& control,
                                                     const VisitState& state) {
  const auto found = store.newest();
  if (found) load_checkpoint(*found, state, {}, control);
  return found;
}

// What each rank threw, "code message"; "" where nothing. All must be as many as there are ranks.
class Errors {
 public:
  explicit Errors(int size) : texts_(static_cast<size_t>(size)) {}
  void of(const Control& control, const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& e) {
      texts_[static_cast<size_t>(control.rank())] =
          std::to_string(static_cast<int>(e.code())) + " " + std::string(e.what());
    }
  }
  // The one error that all ranks threw alike; a failure of the test when they differ.
  std::string common() const {
    for (const std::string& text : texts_) EXPECT_EQ(text, texts_.front());
    return texts_.front();
  }

 private:
  std::vector<std::string> texts_;
};

// A slice of the tensor `whole`, in memory of its own.
struct OwnSlice {
  SlicePlace place;
  std::vector<std::byte> bytes;
};

// A random exact cover of rows x cols: rectangles by recursive cuts, each of them cut into ranges, in random order.
inline std::vector<SlicePlace> random_cover(int64_t rows, int64_t cols, int cuts, std::mt19937_64& random) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  std::vector<SlicePlace> rectangles{SlicePlace::whole(rows, cols)};
  for (int i = 0; i < cuts; ++i) {
    SlicePlace& r = rectangles[static_cast<size_t>(below(static_cast<int64_t>(rectangles.size())))];
    SlicePlace other = r;
    if (random() % 2 == 0 && r.part_rows > 1) {
      const int64_t keep = 1 + below(r.part_rows - 1);
      other.row += keep, other.part_rows -= keep, r.part_rows = keep;
    } else if (r.part_cols > 1) {
      const int64_t keep = 1 + below(r.part_cols - 1);
      other.col += keep, other.part_cols -= keep, r.part_cols = keep;
    } else {
      continue;
    }
    rectangles.push_back(other);
  }
  std::vector<SlicePlace> places;
  for (SlicePlace r : rectangles) {
    const int64_t count = r.part_rows * r.part_cols;
    std::vector<int64_t> bounds{0, count};
    for (int i = static_cast<int>(random() % 4); i > 0; --i) bounds.push_back(below(count + 1));
    std::sort(bounds.begin(), bounds.end());
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {  // empty ranges too
      r.first = bounds[i];
      r.count = bounds[i + 1] - bounds[i];
      places.push_back(r);
    }
  }
  std::shuffle(places.begin(), places.end(), random);
  return places;
}

// The elements of `place`, one at a time: the oracle of all geometry.
template <typename F>
void for_each_element(const SlicePlace& p, F&& element) {
  for (int64_t i = 0; i < p.count; ++i) {
    const int64_t at = p.first + i;
    element(i, (p.row + at / p.part_cols) * p.cols + p.col + at % p.part_cols);
  }
}

inline OwnSlice take(const SlicePlace& place, const std::vector<std::byte>& whole, size_t size) {
  OwnSlice slice{place, std::vector<std::byte>(static_cast<size_t>(place.count) * size)};
  for_each_element(place, [&](int64_t i, int64_t e) {
    std::memcpy(slice.bytes.data() + static_cast<size_t>(i) * size, whole.data() + static_cast<size_t>(e) * size, size);
  });
  return slice;
}

inline GlobalSlice show(const std::string& name, OwnSlice& slice, DType dtype) {
  const SlicePlace& p = slice.place;
  return {name,        p.rows,      p.cols,
          p.row,       p.part_rows, p.col,
          p.part_cols, p.first,     View(slice.bytes.data(), dtype, {p.count})};
}

}  // namespace thinwire::checkpoint_test
