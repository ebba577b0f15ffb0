// What tests on a GPU share: a device with a stream and an Exec, tensors that go there and back, and the reason to
// skip.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/base/core/error.h"
#include "tests/support/op_test_support.h"

namespace thinwire::test {

// Empty where there is a GPU; else what the device says of it.
inline const std::string& why_no_gpu() {
  static const std::string reason = [] {
    try {
      make_cuda_device(0);
      return std::string();
    } catch (const Error& e) {
      return std::string(e.what());
    }
  }();
  return reason;
}

#define TW_NEEDS_GPU() \
  if (!::thinwire::test::why_no_gpu().empty()) GTEST_SKIP() << ::thinwire::test::why_no_gpu()

class CudaExec {
 public:
  CudaExec()
      : device_(make_cuda_device(0)),
        stream_(device_->make_stream()),
        exec_(make_exec(cuda_ops(), *device_, *stream_, 1)) {}
  Exec& operator*() { return exec_; }
  Exec* operator->() { return &exec_; }
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Exec exec_;
};

// The contents of a host tensor on the device. `misaligned`: starts that many bytes behind a multiple of 512.
class OnGpu {
 public:
  OnGpu(CudaExec& exec, const Tensor& host, size_t misaligned = 0)
      : exec_(exec), like_(host.view()), bytes_(host.view().bytes() + misaligned), start_(misaligned) {
    if (!like_ || like_.bytes() == 0) return;
    memory_ = exec.device().allocate(bytes_);
    write(host);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  ~OnGpu() {
    exec_.stream().synchronize();
    if (memory_ != nullptr) exec_.device().release(memory_, bytes_);
  }
  operator View() const { return view(); }
  View view() const {
    View v = like_;
    v.data = memory_ == nullptr ? nullptr : static_cast<char*>(memory_) + start_;
    return v;
  }
  void write(const Tensor& host) {
    exec_.device().copy_to_device(view().data, host.view().data, like_.bytes(), exec_.stream()).wait_on_host();
  }
  Tensor read() const {
    Tensor host(like_.dtype, {like_.shape.begin(), like_.shape.begin() + like_.rank});
    if (memory_ != nullptr)
      exec_.device().copy_to_host(host.view().data, view().data, like_.bytes(), exec_.stream()).wait_on_host();
    return host;
  }

 private:
  CudaExec& exec_;
  View like_;
  size_t bytes_, start_;
  void* memory_ = nullptr;
};

}  // namespace thinwire::test
