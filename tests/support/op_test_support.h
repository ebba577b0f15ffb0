// What tests of ops share: tensors of random numbers with a float64 copy, an Exec, and comparisons with derived bounds.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/device/device.h"
#include "engine/base/ops/op_list.h"

namespace thinwire::test {

// `full`, or `small` under a checker that is a hundred times slower (THINWIRE_TEST_SMALL; scripts/gpu_check.sh
// sanitize).
inline int64_t sized(int64_t full, int64_t small) {
  return std::getenv("THINWIRE_TEST_SMALL") != nullptr ? std::min(full, small) : full;
}

// name_op(exec, op): an op through the table of the Exec, with its check in front.
#define TW_CALL(name, Op)                           \
  inline void name##_op(Exec& exec, const Op& op) { \
    exec.ops.name(exec, op);                        \
  }
TW_FOR_EACH_OP(TW_CALL)
#undef TW_CALL

inline double read_element(const View& v, int64_t i) {
  switch (v.dtype) {
    case DType::f32:
      return static_cast<const float*>(v.data)[i];
    case DType::f64:
      return static_cast<const double*>(v.data)[i];
    case DType::bf16:
      return to_float(static_cast<const Bf16*>(v.data)[i]);
    case DType::f16:
      return to_float(static_cast<const Fp16*>(v.data)[i]);
    case DType::i32:
      return static_cast<const int32_t*>(v.data)[i];
    default:
      TW_CHECK(false, "no numbers in ", name_of(v.dtype));
  }
  return 0.0;
}

inline void write_element(const View& v, int64_t i, double x) {
  switch (v.dtype) {
    case DType::f32:
      static_cast<float*>(v.data)[i] = static_cast<float>(x);
      return;
    case DType::f64:
      static_cast<double*>(v.data)[i] = x;
      return;
    case DType::bf16:
      static_cast<Bf16*>(v.data)[i] = to_bf16(static_cast<float>(x));
      return;
    case DType::f16:
      static_cast<Fp16*>(v.data)[i] = to_fp16(static_cast<float>(x));
      return;
    case DType::i32:
      static_cast<int32_t*>(v.data)[i] = static_cast<int32_t>(x);
      return;
    default:
      TW_CHECK(false, "no numbers in ", name_of(v.dtype));
  }
}

// A tensor on the host with guard bytes on both sides, which the destructor checks: an op that writes outside fails the
// test. The data starts at an odd multiple of 16 bytes, so that no kernel gets away with aligned access.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::vector<int64_t> shape) {
    view_.dtype = dtype;
    for (int64_t d : shape) view_.shape[view_.rank++] = d;
    storage_.assign(view_.bytes() + 2 * kGuard, kPattern);
    view_.data = storage_.data() + kGuard;
    std::memset(view_.data, 0, view_.bytes());
  }
  Tensor(const Tensor& other) : view_(other.view_), storage_(other.storage_) { repoint(); }
  Tensor(Tensor&& other) noexcept : view_(other.view_), storage_(std::move(other.storage_)) {
    repoint();
    other.view_ = View();
    other.storage_.clear();
  }
  Tensor& operator=(Tensor other) noexcept {
    std::swap(view_, other.view_);
    std::swap(storage_, other.storage_);
    repoint();
    other.repoint();
    return *this;
  }
  ~Tensor() {
    if (storage_.empty()) return;
    for (size_t i = 0; i < kGuard; ++i) {
      if (storage_[i] != kPattern || storage_[storage_.size() - 1 - i] != kPattern) {
        ADD_FAILURE() << "something wrote outside a tensor of " << view_.count() << " elements";
        return;
      }
    }
  }

  const View& view() const { return view_; }
  operator View() const { return view_; }
  int64_t count() const { return view_.count(); }
  double at(int64_t i) const { return read_element(view_, i); }
  void set(int64_t i, double x) { write_element(view_, i, x); }
  std::vector<double> values() const {
    std::vector<double> out(static_cast<size_t>(count()));
    for (int64_t i = 0; i < count(); ++i) out[static_cast<size_t>(i)] = at(i);
    return out;
  }
  bool same_bits(const Tensor& other) const {
    return view_.bytes() == other.view_.bytes() && std::memcmp(view_.data, other.view_.data, view_.bytes()) == 0;
  }

 private:
  static constexpr size_t kGuard = 80;
  static constexpr unsigned char kPattern = 0xA5;
  void repoint() { view_.data = storage_.empty() ? nullptr : storage_.data() + kGuard; }

  View view_;
  std::vector<unsigned char> storage_;
};

inline Tensor random_tensor(std::mt19937& rng, DType dtype, std::vector<int64_t> shape, double scale = 1.0,
                            double shift = 0.0) {
  Tensor t(dtype, std::move(shape));
  std::normal_distribution<double> normal(shift, scale);
  for (int64_t i = 0; i < t.count(); ++i) t.set(i, normal(rng));
  return t;
}

inline Tensor constant_tensor(DType dtype, std::vector<int64_t> shape, double value) {
  Tensor t(dtype, std::move(shape));
  for (int64_t i = 0; i < t.count(); ++i) t.set(i, value);
  return t;
}

inline Tensor random_tokens(std::mt19937& rng, int64_t n, int64_t vocabulary) {
  Tensor t(DType::i32, {n});
  std::uniform_int_distribution<int32_t> pick(0, static_cast<int32_t>(vocabulary - 1));
  for (int64_t i = 0; i < n; ++i) t.set(i, pick(rng));
  return t;
}

// A CPU device, a stream and an Exec with so many threads.
class CpuExec {
 public:
  explicit CpuExec(int threads = 2)
      : device_(make_cpu_device()),
        stream_(device_->make_stream()),
        exec_(make_exec(cpu_ops(), *device_, *stream_, threads)) {}
  Exec& operator*() { return exec_; }
  Exec* operator->() { return &exec_; }
  Device& device() { return *device_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Exec exec_;
};

// Rounding unit (half the epsilon): a result rounded once to the type is off by at most this fraction of itself.
inline double unit_of(DType t) {
  return epsilon_of(t) / 2;
}
// The smallest step of a type near zero: what a result may be off by where it is subnormal. CPU ops take such numbers
// as zero.
inline double tiny_of(DType t) {
  return t == DType::f16 ? 0x1p-24 : 0x1p-126;
}

// |actual - expected| <= bound(i) for every element; the message names the worst one.
inline void expect_close(const View& actual, const std::vector<double>& expected,
                         const std::function<double(int64_t)>& bound, const std::string& what) {
  ASSERT_EQ(actual.count(), static_cast<int64_t>(expected.size())) << what;
  int64_t worst = -1;
  double worst_ratio = 1.0;
  for (int64_t i = 0; i < actual.count(); ++i) {
    const double want = expected[static_cast<size_t>(i)], got = read_element(actual, i);
    if (got == want || (std::isnan(got) && std::isnan(want))) continue;
    const double ratio = std::abs(got - want) / bound(i);
    if (!(ratio <= worst_ratio)) {
      worst = i;
      worst_ratio = ratio;
      if (std::isnan(ratio)) break;
    }
  }
  if (worst < 0) return;
  ADD_FAILURE() << what << ": element " << worst << " of " << actual.count() << " is " << read_element(actual, worst)
                << ", expected " << expected[static_cast<size_t>(worst)] << ", " << worst_ratio << " times the bound";
}

#ifdef cpu_ops  // tested_ops.h: the ops of another backend, to which the CPU's threads mean nothing
inline constexpr bool kThreadsCount = false;
#else
inline constexpr bool kThreadsCount = true;
#endif

// Kernels that run thread by thread on the CPU, which takes a hundred times as long as ops that are made for it.
inline bool emulated() {
  return std::string_view(cpu_ops().backend) == "cuda emulated";
}

// The same op on copies of the same tensors with 1 and with so many threads must give the same bits: `run` gets the
// Exec and returns what the op wrote.
inline void expect_same_bits_for_threads(const std::function<std::vector<Tensor>(Exec&)>& run, const std::string& what,
                                         std::vector<int> counts = {2, 3}) {
  if (!kThreadsCount) counts = {2};
  CpuExec one(1);
  const std::vector<Tensor> reference = run(*one);
  for (int threads : counts) {
    CpuExec many(threads);
    const std::vector<Tensor> other = run(*many);
    ASSERT_EQ(reference.size(), other.size()) << what;
    for (size_t i = 0; i < reference.size(); ++i) {
      EXPECT_TRUE(reference[i].same_bits(other[i]))
          << what << ": output " << i << " differs with " << threads << " threads";
    }
  }
}

inline const std::vector<DType>& compute_types() {
  static const std::vector<DType> types = {DType::f32, DType::bf16, DType::f16};
  return types;
}

// Dropout by its definition in ops.h, one element at a time: 0 or 1/(1-p) for flat element i of `elements`.
inline double dropout_factor(const Dropout& d, int64_t elements, int64_t i) {
  if (d.p == 0.0f) return 1.0;
  const int64_t per_sample = elements / d.batch;
  const uint64_t sample = static_cast<uint64_t>(d.sample_ids[i / per_sample]),
                 e = static_cast<uint64_t>(i % per_sample);
  const PhiloxBlock words =
      philox(d.key, {static_cast<uint32_t>(e / 4), static_cast<uint32_t>(sample),
                     static_cast<uint32_t>((sample >> 32 & 0xffff) << 16 | (e / 4 >> 32 & 0xffff)),
                     d.layer << 8 | static_cast<uint32_t>(d.purpose)});
  return uniform01(words[e % 4]) >= d.p ? static_cast<double>(1.0f / (1.0f - d.p)) : 0.0;
}

}  // namespace thinwire::test
