// From the parameters of a rule to the codec that has them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compression/codec.h"
#include "compression/round_codec.h"
#include "compression/rule.h"

namespace thinwire {

// `codec` is set for all but sketches; `rounds` for low_rank and sketch, which use them wherever something is summed.
struct MadeCodec {
  std::shared_ptr<const Codec> codec;
  std::shared_ptr<const RoundCodec> rounds;
};

// Throws Error(kBadConfig) naming the parameter and what it may be.
MadeCodec make_codec(const CodecSpec& spec);
// Names that `codec` may have, in the order of docs/codecs.md.
const std::vector<std::string>& codec_names();

// What adapt may send in place of a codec that is `light`: fixed lengths, a few more bits, a fraction of the time, the
// same blocks, the same state of residuals. Others: as they are.
CodecSpec light_codec(const CodecSpec& spec);

// Whether what becomes of an element depends on none outside of its own aligned run of `elements` (a matrix codec: of
// its matrix). Ranks that hold a tensor among different neighbours get equal copies from such a codec alone.
bool codes_within(const CodecSpec& spec, int64_t elements);

}  // namespace thinwire
