// What tests of communication on devices share: a rank as a thread with a fake device, and tensors there.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "parallel/device/device_communicator.h"
#include "tests/comm/local_group.h"
#include "tests/support/fake_nccl.h"

namespace thinwire::test {

// A tensor of the device, whose contents are queued on the compute stream.
class Tensor {
 public:
  Tensor(RunnerGpu& gpu, Stream& stream, Buffer& contents)
      : gpu_(gpu), stream_(stream), like_(contents.view()), bytes_(std::max<size_t>(like_.bytes(), 1)) {
    memory_ = gpu.allocate(bytes_);
    write(contents);
  }
  ~Tensor() { gpu_.release(memory_, bytes_); }
  View view() const { return View(memory_, like_.dtype, {like_.count()}); }
  void write(Buffer& contents) {
    gpu_.copy_to_device(memory_, contents.view().data, like_.bytes(), stream_).wait(stream_);
  }
  Buffer read() {
    Buffer host(like_.dtype, like_.count());
    gpu_.copy_to_host(host.view().data, memory_, like_.bytes(), stream_).wait_on_host();
    return host;
  }

 private:
  RunnerGpu& gpu_;
  Stream& stream_;
  View like_;
  size_t bytes_;
  void* memory_;
};

// A rank with its device.
struct DeviceRank {
  DeviceRank(Progress& progress, FakeFabric& fabric, Findings& findings, uint64_t seed,
             DeviceTraffic::Options options = {}, int slow_us = 200, const Mistake& mistake = {})
      : progress(progress),
        me(progress.transport().rank()),
        size(progress.transport().size()),
        gpu(findings, seed * 31 + static_cast<uint64_t>(me), slow_us),
        compute(gpu.make_stream()),
        traffic(
            gpu,
            [&](Device& device, Stream&) {
              auto calls = std::make_unique<FakeNccl>(fabric, device, mistake);
              nccl = calls.get();
              return calls;
            },
            options) {}
  // The rank's communicator of this kind; without one where it is not among the ranks.
  std::unique_ptr<DeviceCommunicator> communicator(int kind, const std::vector<int>& ranks, DeviceEdges edges,
                                                   WireCounters* counters = nullptr) {
    if (std::ranges::find(ranks, me) == ranks.end()) return nullptr;
    return std::make_unique<DeviceCommunicator>(traffic, traffic.group(kind, ranks, me, edges), progress, kind,
                                                Site::kControl, counters);
  }

  Progress& progress;
  int me, size;
  RunnerGpu gpu;
  FakeNccl* nccl = nullptr;
  std::unique_ptr<Stream> compute;
  DeviceTraffic traffic;
};

inline Buffer filled(DType dtype, int64_t count, uint64_t seed, int rank) {
  Buffer b(dtype, count);
  b.fill(seed, rank);
  return b;
}

}  // namespace thinwire::test
