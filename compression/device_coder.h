// A Coder whose messages lie in device memory: the bytes and bits of coder.h, queued on a stream. The host looks at no
// value and waits for nothing.
#pragma once

#include <memory>
#include <span>

#include "compression/coder.h"
#include "compression/device_codec.h"
#include "compression/device_state.h"

namespace thinwire {

class DeviceCoder {
 public:
  // Of the same point. nullptr where it has no device side, or this build has none: its messages go through host
  // memory. Without one: codecs whose row says so, and tiles of more than kMostDeviceTile elements (block codecs with
  // blocks above 4096, and transforms or residuals in 8 bit around blocks that share no multiple below that with them).
  // Payloads of codecs that take messages whole begin at multiples of 4 bytes.
  static std::unique_ptr<DeviceCoder> make(const Coder& host);

  const Coder& host() const { return host_; }  // the same point on the CPU: names, lengths, what is cut where
  // As Coder::make_state(), in device memory. nullptr if there is none.
  std::unique_ptr<CompressionState> make_state(int64_t count, std::span<const MatrixShape> matrices,
                                               const DevicePlace& place) const;
  // Bytes of the payload of a piece of the message, exactly, whether the codec is framed on the host or not.
  size_t wire_bytes(const Msg& msg, int64_t count, DType dtype) const;

  // As Coder::pack(), with views and `out` in device memory and a state of make_state(). Returns the payload's length,
  // which does not depend on values. tally: where findings are added. Inputs that are not finite raise
  // kDeviceNonFinite.
  size_t queue_pack(Exec& exec, const Msg& msg, View in, View reference, std::span<std::byte> out,
                    CompressionState* state, DeviceTally* tally, View own = View()) const;
  // As Coder::absorb(), with shares and `out` in device memory. Lengths are checked here (Error(kBadData)); a payload
  // that no encoder writes raises kDeviceBadPayload, and `out` may then hold anything.
  void queue_absorb(Exec& exec, const Msg& msg, std::span<const Share> shares, View out, bool accumulate,
                    DeviceTally* tally) const;

 private:
  DeviceCoder(Coder host, std::unique_ptr<DeviceCodec> codec) : host_(std::move(host)), codec_(std::move(codec)) {}
  const Coder::Parts& parts() const { return *host_.parts_; }
  bool whole() const;  // the codec takes whole messages
  int64_t tile() const;

  Coder host_;
  std::unique_ptr<DeviceCodec> codec_;
};

}  // namespace thinwire
