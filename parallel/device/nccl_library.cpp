// NCCL itself behind the table of its calls.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/device/cuda_check.h"
#include "engine/base/device/cuda_stream.h"
#include "parallel/device/nccl_calls.h"
#include "parallel/device/rank_sum_cuda.h"

namespace thinwire {
namespace {

void check(ncclResult_t result, const char* call, ncclComm_t communicator = nullptr) {
  if (result == ncclSuccess) return;
  if (result == ncclUnhandledCudaError) throw_gpu_fault(call, __FILE__, __LINE__);  // status.json then names this GPU
  // A peer that failed has closed its connections, and says why: it is to be the first who ends the job.
  if (result == ncclRemoteError) std::this_thread::sleep_for(std::chrono::seconds(3));
  // The last warning of whatever NCCL did, so it decides nothing beyond what this result may mean.
  const char* last = ncclGetLastError(communicator);
  const std::string said = last != nullptr ? last : "";
  // No restart mends these three, so they do not end as a hung peer, which is started again (code 71).
  if (result == ncclUnhandledCudaError && said.find("out of memory") != std::string::npos)
    throw_bad_config("not enough GPU memory: " + std::string(call) + ": " + said +
                     "; NCCL's buffers are not in the plan: lower train_micro_batch_size_per_gpu, raise "
                     "recompute_granularity, or find out what else is on the GPU");
  if (result == ncclSystemError && said.find("No space left") != std::string::npos)
    throw_bad_config(std::string(call) + ": " + said + "; make /dev/shm larger (docker run --shm-size)");
  const std::string what = std::string(call) + ": " + ncclGetErrorString(result) + (said.empty() ? "" : ", " + said) +
                           " (NCCL_DEBUG=WARN in the environment says more)";
  if (result == ncclInvalidUsage)  // such as another NCCL on another node
    throw_bad_config(what + "; start the same program with the same libraries, and one rank per GPU, on every node");
  throw Error(ExitCode::kHungPeer, what);
}
#define TW_NCCL(call, ...) check(call, #call __VA_OPT__(, ) __VA_ARGS__)

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    case DType::u8:
      return ncclUint8;
    case DType::u16:
      break;
  }
  TW_CHECK(false, "NCCL has no ", name_of(dtype));
  return ncclUint8;
}

// A variable that is set already stays as it is: a site may know better.
void set_default(const char* name, const char* value) {
  ::setenv(name, value, 0);
}

class NcclLibrary final : public NcclCalls {
 public:
  NcclLibrary(Device& device, Stream& stream) : device_(device), exec_(make_exec(cuda_ops(), device, stream, 1)) {
    TW_NCCL(ncclGetVersion(&version_));
    // Communicators start their work in the order in which the host queues it, as they do on all ranks.
    set_default("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  }

  std::string description() const override {
    return "NCCL " + std::to_string(version_ / 10000) + "." + std::to_string(version_ / 100 % 100) + "." +
           std::to_string(version_ % 100);
  }

  std::string unique_id() override {
    ncclUniqueId id;
    TW_NCCL(ncclGetUniqueId(&id));
    return std::string(id.internal, sizeof id.internal);
  }

  Handle create(const std::string& bytes, int size, int rank) override {
    ncclUniqueId id;
    TW_CHECK(bytes.size() == sizeof id.internal, "an id of ", bytes.size(), " bytes");
    std::memcpy(id.internal, bytes.data(), sizeof id.internal);
    TW_CUDA(cudaSetDevice(device_.ordinal()));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t communicator = nullptr;
    TW_NCCL(ncclCommInitRankConfig(&communicator, size, id, rank, &config));
    return communicator;
  }

  Handle split(Handle parent, int color, int key) override {
    static_assert(kNoColor == NCCL_SPLIT_NOCOLOR);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.splitShare = 1;  // one stream: parent and children never run beside each other
    ncclComm_t communicator = nullptr;
    TW_NCCL(ncclCommSplit(of(parent), color, key, &communicator, &config), of(parent));
    return communicator;
  }

  int size(Handle handle) override {
    int ranks = 0;
    TW_NCCL(ncclCommCount(of(handle), &ranks), of(handle));
    return ranks;
  }
  void destroy(Handle handle) override {
    TW_NCCL(ncclCommFinalize(of(handle)), of(handle));
    TW_NCCL(ncclCommDestroy(of(handle)));
  }
  void abort(Handle handle) noexcept override { (void)ncclCommAbort(of(handle)); }

  std::string fault(Handle handle) override {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(of(handle), &state);
    const ncclResult_t worse = asked != ncclSuccess ? asked : state;
    if (worse == ncclSuccess || worse == ncclInProgress) return "";
    const char* last = ncclGetLastError(of(handle));
    return std::string("NCCL: ") + ncclGetErrorString(worse) +
           (last != nullptr && *last != '\0' ? std::string(", ") + last : "");
  }

  void group_start() override { TW_NCCL(ncclGroupStart()); }
  void group_end() override { TW_NCCL(ncclGroupEnd()); }

  void send(View data, int peer, Handle to, Stream& stream) override {
    TW_NCCL(ncclSend(data.data, elements(data), type_of(data.dtype), peer, of(to), cuda_stream_of(stream)), of(to));
  }
  void receive(View data, int peer, Handle from, Stream& stream) override {
    TW_NCCL(ncclRecv(data.data, elements(data), type_of(data.dtype), peer, of(from), cuda_stream_of(stream)), of(from));
  }
  void all_gather(View mine, View whole, Handle group, Stream& stream) override {
    TW_NCCL(
        ncclAllGather(mine.data, whole.data, elements(mine), type_of(mine.dtype), of(group), cuda_stream_of(stream)),
        of(group));
  }
  void broadcast(View data, int root, Handle group, Stream& stream) override {
    TW_NCCL(ncclBroadcast(data.data, data.data, elements(data), type_of(data.dtype), root, of(group),
                          cuda_stream_of(stream)),
            of(group));
  }
  void all_reduce(View data, Handle group, Stream& stream) override {
    TW_NCCL(ncclAllReduce(data.data, data.data, elements(data), type_of(data.dtype), ncclSum, of(group),
                          cuda_stream_of(stream)),
            of(group));
  }
  void reduce(View data, int root, Handle group, Stream& stream) override {
    TW_NCCL(ncclReduce(data.data, data.data, elements(data), type_of(data.dtype), ncclSum, root, of(group),
                       cuda_stream_of(stream)),
            of(group));
  }
  void sum_in_rank_order(const RankSum& sum, Stream& stream) override {
    TW_CHECK(&stream == &exec_.stream, "a sum on another stream");
    rank_sum_cuda(exec_, sum);
  }
  Exec& kernels(std::span<const Touched>) override { return exec_; }

 private:
  static ncclComm_t of(Handle handle) { return static_cast<ncclComm_t>(handle); }
  static size_t elements(View data) { return static_cast<size_t>(data.count()); }

  Device& device_;
  Exec exec_;  // of the stream that sums and codecs run on
  int version_ = 0;
};

}  // namespace

std::string hardware_of(Device& device) {
  // The host and the place on its bus, as NCCL tells two GPUs apart: parts of a GPU (MIG) have UUIDs of their own, and
  // NCCL does not take two of them.
  char place[32] = {};
  TW_CUDA(cudaDeviceGetPCIBusId(place, sizeof place, device.ordinal()));
  std::string boot;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, boot);
  const std::string text = this_host() + " " + boot + " " + place;
  // NCCL takes ranks with different NCCL_HOSTID as ranks of different hosts: they may share a GPU then.
  const char* host = std::getenv("NCCL_HOSTID");
  return host != nullptr ? text + " " + host : text;
}

std::unique_ptr<NcclCalls> open_nccl(Device& device, Stream& stream) {
  return std::make_unique<NcclLibrary>(device, stream);
}

}  // namespace thinwire
