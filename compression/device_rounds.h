// The kernels of a codec whose payloads add up over ranks: its RoundCodec (round_codec.h) between devices.
//
// Whoever reduces performs, on one stream,
//   for r in [0, rounds()): queue_pack(r), the sum over ranks of what it returns, in place; queue_absorb(r)
// and then queue_result(). Bits, states and their names in checkpoints are the host's.
#pragma once

#include "compression/device_codec.h"

namespace thinwire {

// Device memory that lives until the result is there.
struct RoundJob {
  int64_t count = 0;          // elements of the message
  const float* in = nullptr;  // [count], as they are until the result
  // What was kept, and what shall be [count]; may be the same. nullptr: there is no feedback.
  const float* old = nullptr;
  float* now = nullptr;
  float* room = nullptr;  // room_bytes(), for this message alone
  DeviceTally* tally = nullptr;
};

class DeviceRounds {
 public:
  virtual ~DeviceRounds() = default;
  virtual int rounds() const = 0;
  // As RoundCodec::make_state(), in device memory.
  virtual std::unique_ptr<CompressionState> make_state(int64_t count, std::span<const MatrixShape> matrices,
                                                       const DevicePlace& place) const = 0;
  virtual size_t room_bytes(const CompressionState& state) const = 0;
  // Writes this rank's payload of round r, fp32, to the room. Input that is not finite raises kDeviceNonFinite.
  virtual View queue_pack(int r, Exec& exec, const Msg& msg, const RoundJob& job, CompressionState& state) const = 0;
  virtual void queue_absorb(int r, Exec& exec, const Msg& msg, const RoundJob& job, CompressionState& state) const = 0;
  // out = or += elements [first, first + out.count()) of the decoded sum; may be where `in` is. `now` becomes this
  // rank's own error, without the loss scale.
  virtual void queue_result(Exec& exec, const Msg& msg, const RoundJob& job, int64_t first, View out, bool accumulate,
                            CompressionState& state) const = 0;
};

// nullptr where the build has no kernels, or the codec none for these parameters.
std::unique_ptr<DeviceRounds> make_device_rounds(const CodecSpec& spec);

}  // namespace thinwire
