// What cases of `bench op` are made of: device memory with random contents, sampled reads, one case and its proof.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/core/philox.h"
#include "engine/base/device/arena.h"
#include "engine/base/ops/ops.h"
#include "engine/run/train/backend.h"

namespace thinwire {

struct OpCase {
  DType dtype = DType::f32;
  double flops = 0.0, bytes = 0.0;  // per call; bytes is the least that must move
  std::function<void()> run;
  std::function<double()> error;  // largest error of sampled outputs, relative to the largest sampled magnitude
  double tolerance = 0.0;         // lambda u sqrt(K) plus one rounding of the output, see docs/numerics.md
};

// Lives as long as one case.
class Workbench {
 public:
  Workbench(const std::string& device, int threads)
      : backend_(open_backend(device, 0)),
        stream_(backend_.device->make_stream()),
        exec_(make_exec(*backend_.ops, *backend_.device, *stream_, threads)),
        arena_(backend_.device.get()) {}

  Exec& exec() { return exec_; }
  const OpTable& ops() const { return *backend_.ops; }
  Device& device() { return *backend_.device; }
  Stream& stream() { return *stream_; }
  // deviation 0: zeros.
  View tensor(DType dtype, std::initializer_list<int64_t> shape, float deviation) {
    View view = arena_.take(MemoryCategory::kWorkspace, dtype, shape);
    if (deviation > 0.0f) ops().fill_normal(exec_, {view, deviation, 11, ++tensors_, 0});
    return view;
  }
  View integers(int64_t count, int64_t below) {
    View view = arena_.take(MemoryCategory::kWorkspace, DType::i32, {count});
    std::vector<int32_t> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      values[static_cast<size_t>(i)] =
          static_cast<int32_t>(philox({9, 9}, {static_cast<uint32_t>(i), 0, 0, 0})[0] % static_cast<uint64_t>(below));
    }
    write(view, values.data());
    return view;
  }
  void write(View view, const void* values) {
    device().copy_to_device(view.data, values, view.bytes(), *stream_).wait_on_host();
  }
  // One element of a matrix as double, as it is now. A device with memory of its own is read tensor by tensor, each
  // once: forget() before what was read may have changed.
  double at(View view, int64_t row, int64_t col) {
    const size_t offset = static_cast<size_t>(row * view.cols() + col) * size_of(view.dtype);
    const char* raw = static_cast<const char*>(view.data);
    if (device().memory_total() > 0) {
      std::vector<char>& copy = copies_[view.data];
      if (copy.empty()) {
        copy.resize(view.bytes());
        device().copy_to_host(copy.data(), view.data, copy.size(), *stream_).wait_on_host();
      }
      raw = copy.data();
    }
    raw += offset;
    switch (view.dtype) {
      case DType::f32:
        return *reinterpret_cast<const float*>(raw);
      case DType::f64:
        return *reinterpret_cast<const double*>(raw);
      case DType::bf16:
        return to_float(*reinterpret_cast<const Bf16*>(raw));
      case DType::f16:
        return to_float(*reinterpret_cast<const Fp16*>(raw));
      case DType::i32:
        return *reinterpret_cast<const int32_t*>(raw);
      default:
        TW_CHECK(false, name_of(view.dtype));
        return 0.0;
    }
  }
  void forget() { copies_.clear(); }

 private:
  Backend backend_;
  std::unique_ptr<Stream> stream_;
  Exec exec_;
  Arena arena_;
  uint32_t tensors_ = 0;
  std::map<const void*, std::vector<char>> copies_;
};

// Compares sampled outputs with a float64 oracle.
inline double sampled_error(int64_t rows, int64_t cols, const std::function<double(int64_t, int64_t)>& ours,
                            const std::function<double(int64_t, int64_t)>& oracle) {
  double largest = 1e-300, error = 0.0;
  for (int64_t s = 0; s < 24; ++s) {
    const int64_t r = s * 7919 % rows, c = s * 104729 % cols;
    const double want = oracle(r, c), e = std::abs(ours(r, c) - want);
    largest = std::max(largest, std::abs(want));
    error = e > error || std::isnan(e) ? e : error;
  }
  return error / largest;
}

inline double tolerance_of(DType t, double terms) {
  return 6.0 * 0x1p-24 * std::sqrt(terms) + epsilon_of(t) + (t == DType::bf16 ? 6.0 * 0x1p-9 : 0.0);
}

// Named before it is made, so that a filter costs nothing.
struct NamedCase {
  std::string name;
  std::function<OpCase(Workbench&)> make;
};

struct ModelShape {
  const char* name;
  int64_t batch, length, hidden, heads, vocab;
};

// Ops that move memory and compute little (bench_op_memory.cpp).
void list_memory_cases(const ModelShape& s, DType t, std::vector<NamedCase>& list);
// Codecs in device memory (bench_op_codec.cpp).
void list_codec_cases(std::vector<NamedCase>& list);

}  // namespace thinwire
