// Codecs on a GPU in builds without CUDA: there are none.
#include "compression/device_rounds.h"
#include "engine/base/core/check.h"

namespace thinwire {

std::unique_ptr<DeviceCodec> make_device_codec(const CodecSpec&) {
  return nullptr;
}

std::unique_ptr<DeviceRounds> make_device_rounds(const CodecSpec&) {
  return nullptr;
}

void queue_tally(Exec&, const DeviceTally*, uint32_t, double*) {
  TW_CHECK(false, "this build has no kernels for codecs");
}

}  // namespace thinwire
