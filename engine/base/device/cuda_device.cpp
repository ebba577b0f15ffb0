// One NVIDIA GPU as a device: is there one that we can use, its memory, its streams, and copies that return tickets.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <string>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/device/cuda_check.h"
#include "engine/base/device/cuda_events.h"
#include "engine/base/device/cuda_memory.h"
#include "engine/base/device/cuda_stream.h"
#include "engine/base/device/device.h"
#include "engine/base/device/pinned_pool.h"

namespace thinwire {
namespace {

// Up to here copies from pageable memory go through the pinned pool; larger ones are rare and happen at set-up.
constexpr size_t kStaged = size_t{4} << 20;

std::string version_of(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

std::string remedy() {
  return "; run on a machine with an NVIDIA GPU and a driver for CUDA " + version_of(CUDART_VERSION) +
         " or newer, or set \"device\": \"cpu\"";
}

// The number of GPUs; throws Error(kBadConfig) where there is none that this program can use.
int count_devices() {
  int driver = 0, count = 0;
  (void)cudaDriverGetVersion(&driver);  // 0 without a driver
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (driver == 0) throw_bad_config("device: cuda needs the NVIDIA driver, and this machine has none" + remedy());
  if (error == cudaErrorInsufficientDriver) {
    throw_bad_config("device: cuda needs a driver for CUDA " + version_of(CUDART_VERSION) +
                     ", this machine's driver supports " + version_of(driver) + remedy());
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    throw_bad_config(
        "device: cuda finds no GPU (the driver is there; is CUDA_VISIBLE_DEVICES empty, or the GPU not handed to this "
        "job?)" +
        remedy());
  }
  if (error != cudaSuccess) {
    const bool waits = error == cudaErrorSystemNotReady;
    throw_bad_config(
        std::string("device: cuda cannot be used: ") + cudaGetErrorName(error) + ", " + cudaGetErrorString(error) +
        (waits ? "; where GPUs are joined by NVSwitch they wait for the service nvidia-fabricmanager, of the "
                 "driver's version: see that it runs on this node"
               : "") +
        remedy());
  }
  return count;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int wanted, int count) : ordinal_(wanted % count), count_(count), memory_(ordinal_) {
    // What keeps a GPU from being used at all is said here: this call opens it.
    if (const cudaError_t error = cudaSetDevice(ordinal_); error != cudaSuccess) {
      if (is_gpu_fault(error)) cuda_failed(error, "cudaSetDevice", __FILE__, __LINE__);
      throw_bad_config("device: cuda: GPU " + std::to_string(ordinal_) + " cannot be used: " + cudaGetErrorName(error) +
                       ", " + cudaGetErrorString(error) +
                       "; nvidia-smi tells which programs are on it, and its compute mode (exclusive: one process at a "
                       "time); end them, start fewer ranks here, or set \"device\": \"cpu\"");
    }
    TW_CUDA(cudaGetDeviceProperties(&properties_, ordinal_));
    constexpr size_t kShared = 163 << 10;  // what the largest tiles of attention and of the loss take
    if (properties_.sharedMemPerBlockOptin < kShared) {
      throw_bad_config("device: cuda: GPU " + std::to_string(ordinal_) + " (" + properties_.name + ") gives a block " +
                       std::to_string(properties_.sharedMemPerBlockOptin >> 10) +
                       " KiB of shared memory, and these kernels need 163 (A100, H100, B200 and their like); set "
                       "\"device\": \"cpu\"");
    }
    if (const std::string fault = probe_kernels(); !fault.empty()) {
      throw_bad_config("device: cuda: GPU " + std::to_string(ordinal_) + " (" + properties_.name + ", sm_" +
                       std::to_string(properties_.major) + std::to_string(properties_.minor) +
                       ") cannot run this program's kernels, which are built for " + built_architectures() + " (" +
                       fault + "); configure with -DTHINWIRE_CUDA_ARCHITECTURES=" + std::to_string(properties_.major) +
                       std::to_string(properties_.minor) + "-real, or set \"device\": \"cpu\"");
    }
    events_ = std::make_shared<CudaEventPool>(ordinal_);
    pinned_ = std::make_unique<PinnedPool>(ordinal_, events_);
    setup_ = std::make_unique<CudaStream>(ordinal_, this);
  }
  ~CudaDevice() override {
    (void)cudaSetDevice(ordinal_);
    (void)cudaDeviceSynchronize();  // nothing that is queued may use memory that goes now
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  int ordinal() const override { return ordinal_; }
  size_t memory_total() const override { return properties_.totalGlobalMem; }
  size_t memory_peak() const override { return memory_.peak(); }
  std::string memory_owner() const override {
    std::string text;  // a part of a GPU (MIG) has memory and an id of its own
    for (const char byte : properties_.uuid.bytes) text += std::to_string(static_cast<int>(byte)) + ".";
    return text;
  }
  std::string description() const override {
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    return std::string("cuda ") + std::to_string(ordinal_) + " of " + std::to_string(count_) + ", " + properties_.name +
           " (sm_" + std::to_string(properties_.major) + std::to_string(properties_.minor) + ", " +
           std::to_string(properties_.multiProcessorCount) + " SMs, " +
           std::to_string(properties_.totalGlobalMem >> 20) + " MiB), driver for CUDA " + version_of(driver);
  }

  void* allocate(size_t bytes) override {
    if (bytes == 0) return nullptr;
    void* memory = memory_.take(bytes);
    TW_CUDA(cudaMemsetAsync(memory, 0, bytes, setup_->handle()));
    setup_->synchronize();  // streams do not wait for one another: zero it is before anybody gets it
    return memory;
  }
  void release(void* memory, size_t bytes) override { memory_.give_back(memory, bytes); }

  void* allocate_host(size_t bytes) override { return bytes == 0 ? nullptr : pinned_->take(bytes); }
  void release_host(void* memory, size_t) override {
    if (memory != nullptr) pinned_->give_back(memory);
  }
  void release_host_behind(void* memory, size_t, Stream& stream) override {
    if (memory != nullptr) pinned_->give_back_after(memory, cuda_stream_of(stream));
  }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CudaStream>(ordinal_, this); }
  Ticket copy_to_device(void* device, const void* host, size_t bytes, Stream& stream) override {
    if (bytes == 0 || bytes > kStaged || pinned_->owns(host, bytes))
      return queue(device, host, bytes, cudaMemcpyHostToDevice, stream);
    // From pageable memory the call would wait until the stream has got here.
    HostBuffer staged(*this, bytes);
    std::memcpy(staged.data(), host, bytes);
    Ticket ticket = queue(device, staged.data(), bytes, cudaMemcpyHostToDevice, stream);
    staged.leave_behind(stream);
    return ticket;
  }
  Ticket copy_to_host(void* host, const void* device, size_t bytes, Stream& stream) override {
    return queue(host, device, bytes, cudaMemcpyDeviceToHost, stream);
  }
  Ticket copy(void* to, const void* from, size_t bytes, Stream& stream) override {
    return queue(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  void copy_at_rest(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return;
    bind();
    TW_CUDA(cudaDeviceSynchronize());  // streams do not wait for one another
    TW_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, setup_->handle()));
    setup_->synchronize();
  }
  void fill_zero(void* device, size_t bytes, Stream& stream) override {
    if (bytes == 0) return;
    bind();
    TW_CUDA(cudaMemsetAsync(device, 0, bytes, cuda_stream_of(stream)));
  }
  Ticket mark(Stream& stream) override {
    bind();
    return record_ticket(events_, cuda_stream_of(stream));
  }

 private:
  // Which device a thread talks to is the thread's own setting, and the progress thread calls too.
  void bind() const { TW_CUDA(cudaSetDevice(ordinal_)); }

  Ticket queue(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Stream& stream) {
    if (bytes == 0) return Ticket::finished();
    bind();
    const cudaStream_t handle = cuda_stream_of(stream);
    TW_CUDA(cudaMemcpyAsync(to, from, bytes, kind, handle));
    return record_ticket(events_, handle);
  }

  int ordinal_, count_;
  cudaDeviceProp properties_{};
  CudaMemory memory_;
  std::shared_ptr<CudaEventPool> events_;
  std::unique_ptr<PinnedPool> pinned_;
  std::unique_ptr<CudaStream> setup_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(int ordinal) {
  TW_CHECK(ordinal >= 0, "device ", ordinal);
  return std::make_unique<CudaDevice>(ordinal, count_devices());
}

bool cuda_is_built() {
  return true;
}

}  // namespace thinwire
