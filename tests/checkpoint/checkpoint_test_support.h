// What checkpoint tests share: a scratch directory, a random state with every kind of value, and children that die.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/core/log.h"
#include "engine/base/core/state_visitor.h"
#include "engine/run/checkpoint/checkpoint_store.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::checkpoint_test {

using test::slurp;
using test::spill;

class Scratch : public test::Scratch {
 public:
  // In memory where the machine has it (hundreds of flushed files otherwise cost seconds), else, or if asked, on disk.
  explicit Scratch(bool on_disk = false)
      : test::Scratch(!on_disk && ::access("/dev/shm", W_OK) == 0 ? std::filesystem::path("/dev/shm")
                                                                  : std::filesystem::temp_directory_path()) {
    log_set_console_level(LogLevel::kError);  // refusals are expected here by the hundred
  }
};

// The newest checkpoint, filled into `state`.
inline std::optional<VerifiedCheckpoint> load_newest(CheckpointStore& store, const VisitState& state,
                                                     const LoadOptions& options = {}) {
  const auto found = store.newest();
  if (found) load_checkpoint(*found, state, options);
  return found;
}

// Tensors of all dtypes and ragged shapes with random BIT PATTERNS (NaN, infinities and denormals included), and
// scalars.
struct RandomState {
  struct Tensor {
    std::string name;
    DType dtype;
    int64_t rows, cols;
    std::vector<std::byte> bytes;
  };
  std::vector<Tensor> tensors;
  std::vector<int64_t> integers;
  std::vector<double> reals;
  std::vector<std::string> texts;

  // `size` scales the tensors; the same seed gives the same state, another one the same shape with other values.
  explicit RandomState(uint64_t seed, int64_t size = 8, int count = 6) {
    static constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f64, DType::i32,
                                       DType::i64, DType::u8,   DType::f16, DType::u16};
    std::mt19937_64 shapes(99), random(seed);
    for (int i = 0; i < count; ++i) {
      Tensor t{"model/tensor." + std::to_string(i),
               i == 0 ? DType::f32 : kTypes[shapes() % 8],
               1 + static_cast<int64_t>(shapes() % size),
               i == 1 ? 0 : 1 + static_cast<int64_t>(shapes() % (2 * size)),
               {}};
      t.bytes.resize(static_cast<size_t>(t.rows * t.cols) * size_of(t.dtype));
      for (std::byte& b : t.bytes) b = static_cast<std::byte>(random());
      tensors.push_back(std::move(t));
    }
    for (int i = 0; i < 3; ++i) integers.push_back(static_cast<int64_t>(random()));
    for (int i = 0; i < 3; ++i) reals.push_back(std::bit_cast<double>(random()));
    reals.push_back(-0.0);
    reals.push_back(std::bit_cast<double>(0x7ff0dead0000beefull));  // a signalling NaN with a payload
    texts = {"", "plain \"text\"\n", std::string("\xff\x00\x80 bytes", 9)};
  }

  void visit(StateVisitor& v) {
    for (Tensor& t : tensors)
      v.tensor(GlobalSlice::whole(t.name, t.rows, t.cols, View(t.bytes.data(), t.dtype, {t.rows, t.cols})));
    scalars(v);
  }
  void scalars(StateVisitor& v) {
    for (size_t i = 0; i < integers.size(); ++i) v.integer("integer." + std::to_string(i), integers[i]);
    for (size_t i = 0; i < reals.size(); ++i) v.real("real." + std::to_string(i), reals[i]);
    for (size_t i = 0; i < texts.size(); ++i) v.text("text." + std::to_string(i), texts[i]);
  }
  std::function<void(StateVisitor&)> visitor() {
    return [this](StateVisitor& v) { visit(v); };
  }

  bool operator==(const RandomState& other) const {
    if (tensors.size() != other.tensors.size()) return false;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].bytes != other.tensors[i].bytes) return false;
    }
    return integers == other.integers && texts == other.texts && reals.size() == other.reals.size() &&
           std::memcmp(reals.data(), other.reals.data(), reals.size() * sizeof(double)) == 0;
  }
};

// Elements from `first` on of a whole tensor.
inline GlobalSlice range_of(const std::string& name, int64_t rows, int64_t cols, int64_t first, View local) {
  return {name, rows, cols, 0, rows, 0, cols, first, local};
}

inline StoreOptions quick_options(bool async = false) {
  StoreOptions options;
  options.async = async;
  options.lock.job = "test";
  options.lock.heartbeat_seconds = 0;
  options.lock.stale_after_seconds = 0.2;
  return options;
}

// Runs `body` in a forked child and returns its wait status. The child leaves by _exit or by a signal: no test code
// runs twice.
inline int run_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 99;
    try {
      code = body();
    } catch (const Error& e) {
      code = static_cast<int>(e.code());
    } catch (...) {
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

// The Error that `action` throws; fails the test when it throws none.
inline Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "no Error was thrown";
  return Error(ExitCode::kFinished, "");
}

}  // namespace thinwire::checkpoint_test
