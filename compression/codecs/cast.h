// Codec cast: every element as a shorter floating-point number.
#pragma once

#include <memory>

#include "compression/codec_table.h"

namespace thinwire {

// spec.format: "bf16" (also when empty), "fp16", "e4m3" or "e5m2" (OCP 8-bit formats). wire_bytes = n * 2 or n * 1.
// Rounding is to nearest, ties to even; subnormals are kept; -0 stays -0; NaN stays NaN.
//   bf16, fp16   what rounds beyond the largest finite number becomes infinite, and non_finite says so even though the
//                input was finite: for fp16 from 65520 on, as in fp16 training, where the step is then skipped
//   e4m3, e5m2   finite input saturates (448, 57344) without a flag: these formats are for values whose range is known.
//                e4m3 has no infinity: an infinite input becomes NaN
// Takes fp32, bf16 and fp16; decodes to all three. Throws Error(kBadConfig) for other formats.
std::shared_ptr<const Codec> make_cast(const CodecSpec& spec);

CodecRow cast_row();

}  // namespace thinwire
