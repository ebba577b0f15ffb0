// The codecs that have kernels for a GPU: each makes its device side in name_cuda.cu, from values of all parameters.
#pragma once

#include <memory>

#include "compression/device_codec.h"
#include "compression/device_rounds.h"

namespace thinwire {

// nullptr for parameters that the kernels do not cover.
std::unique_ptr<DeviceCodec> make_identity_cuda(const CodecSpec& spec);
std::unique_ptr<DeviceCodec> make_cast_cuda(const CodecSpec& spec);
std::unique_ptr<DeviceCodec> make_block_int_cuda(const CodecSpec& spec);
std::unique_ptr<DeviceCodec> make_mx_cuda(const CodecSpec& spec);
std::unique_ptr<DeviceCodec> make_e3m0_cuda(const CodecSpec& spec);
std::unique_ptr<DeviceCodec> make_zfp_cuda(const CodecSpec& spec);
std::unique_ptr<DeviceCodec> make_low_rank_cuda(const CodecSpec& spec);  // point to point
std::unique_ptr<DeviceRounds> make_low_rank_rounds_cuda(const CodecSpec& spec);

}  // namespace thinwire
