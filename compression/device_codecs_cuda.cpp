// Finds the device side of a codec by its name.
#include "compression/codec_table.h"
#include "compression/codecs/device_makers.h"

namespace thinwire {

std::unique_ptr<DeviceCodec> make_device_codec(const CodecSpec& spec) {
  constexpr struct {
    const char* codec;
    std::unique_ptr<DeviceCodec> (*make)(const CodecSpec&);
  } kMakers[] = {{"identity", make_identity_cuda},   {"cast", make_cast_cuda},
                 {"block_int", make_block_int_cuda}, {"mx", make_mx_cuda},
                 {"e3m0", make_e3m0_cuda},           {"zfp", make_zfp_cuda},
                 {"low_rank", make_low_rank_cuda}};
  for (const auto& maker : kMakers)
    if (spec.codec == maker.codec) return maker.make(codec_spec(spec.codec, spec.parameters));
  return nullptr;
}

std::unique_ptr<DeviceRounds> make_device_rounds(const CodecSpec& spec) {
  return spec.codec == "low_rank" ? make_low_rank_rounds_cuda(codec_spec(spec.codec, spec.parameters)) : nullptr;
}

}  // namespace thinwire
