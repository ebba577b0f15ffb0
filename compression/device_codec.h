// The seam between a DeviceCoder and the kernels of its codec: jobs as plain numbers, and who queues them.
//
// A message is worked on in tiles of the coder, each by one block of threads: what becomes of a tile is the Coder's
// business of coder_pack.cpp and coder_absorb.cpp, in one kernel. A codec that takes messages whole (granule 0) has
// kernels of its own in front of that one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "compression/codec.h"
#include "compression/rule.h"
#include "engine/base/device/device.h"
#include "engine/base/ops/ops.h"

namespace thinwire {

// Elements of the largest tile that a block of threads takes at once.
inline constexpr int64_t kMostDeviceTile = 4096;

// What queued work found, in device memory: zeroed by its owner, added to by kernels, read by nobody but kernels
// (queue_tally) until the step ends.
struct DeviceTally {
  uint32_t flags = 0;  // bits of DeviceFlag
  uint32_t unused = 0;
  double error_square = 0.0, signal_square = 0.0, residual_square = 0.0;  // as in CompressionStats
};
enum DeviceFlag : uint32_t {
  kDeviceNonFinite = 1,   // an input was NaN or infinite (law 8)
  kDeviceBadPayload = 2,  // a payload that no encoder writes: the job has to end
};

struct DevicePlace;  // device_state.h

// A vector in device memory; type: 0 fp32, 1 bf16, 2 fp16.
struct DeviceVector {
  void* data = nullptr;
  int type = 0;
};

enum class DeviceResidual : uint8_t { kNone, kFp32, kBf16, kInt8, kEma };

struct PackJob {
  int64_t count = 0;                // elements of the piece
  int64_t tile = 0;                 // elements, all but the last
  int64_t tile_bytes = 0;           // of payload; 0: it is the whole message's, wherever a tile lies
  uint64_t first = 0;               // Msg::first
  DeviceVector in, reference, own;  // reference, own: may have no data
  uint8_t* out = nullptr;
  bool hadamard = false;
  bool own_adds = false;  // own += decoded instead of =
  bool vectors = false;   // all vectors begin at multiples of four of their elements in memory, as do tiles
  // Residual: what was kept, what shall be.
  DeviceResidual residual = DeviceResidual::kNone;
  const void* old = nullptr;
  void* now = nullptr;
  const float* old_scales = nullptr;
  float* now_scales = nullptr;
  float loss_scale = 1.0f, unscale = 1.0f, beta = 0.0f;
  uint32_t chance0 = 0, chance1 = 0;  // key of what residuals are rounded by
  // Errors are measured of tiles whose number in the piece, plus this, is a multiple of sample_every, a power of two
  // (0: of none).
  uint64_t sample_phase = 0;
  uint32_t sample_every = 1;
  DeviceTally* tally = nullptr;
};

struct DeviceShare {
  const void* data = nullptr;
  int type = 0;  // of plain elements (DeviceVector); kPayload: coded ones
};
inline constexpr int kPayload = 3;

struct AbsorbJob {
  int64_t count = 0, tile = 0, tile_bytes = 0;
  std::span<const DeviceShare> shares;  // in the order in which they are added; of the host
  int transform_at = -1;  // the sum is transformed in front of this share (the number of shares: behind all); -1: not
  DeviceVector out;
  bool accumulate = false, vectors = false;
  DeviceTally* tally = nullptr;
};

// The kernels of one codec with its parameters. Everything is queued on the stream of `exec`.
class DeviceCodec {
 public:
  virtual ~DeviceCodec() = default;
  // state: what make_state() gave, or nullptr.
  virtual void queue_pack(Exec& exec, const Msg& msg, const PackJob& job, CompressionState* state) const = 0;
  virtual void queue_absorb(Exec& exec, const Msg& msg, const AbsorbJob& job) const = 0;

  // Of codecs that take messages whole. Bytes of a payload, exactly: they follow from the message's matrices, so that
  // both ends know them before anything is packed, and no length travels.
  virtual size_t whole_bytes(const Msg& msg, int64_t count) const;
  // As Codec::make_state(), in device memory.
  virtual std::unique_ptr<CompressionState> make_state(int64_t count, std::span<const MatrixShape> matrices,
                                                       const DevicePlace& place) const;
};

// nullptr where the build has no kernels, or the codec none for these parameters.
std::unique_ptr<DeviceCodec> make_device_codec(const CodecSpec& spec);

// sum[0] += 1 if the tally has any of these flags: how a finding gets into the sums that `control` reduces.
void queue_tally(Exec& exec, const DeviceTally* tally, uint32_t flags, double* sum);

}  // namespace thinwire
