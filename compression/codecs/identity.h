// Codec identity: what leaves a rank is what was there. The default of every site.
#pragma once

#include <cstring>

#include "compression/codec_table.h"

namespace thinwire {

// A channel that holds it calls the plain collective on the caller's memory (law 3); encode and decode are copies.
class Identity final : public Codec {
 public:
  std::string name() const override { return "identity"; }
  Traits traits() const override {
    return {.alias = true, .lossless = true, .unbiased = true, .native = true, .contractive = true, .granule = 1};
  }
  size_t wire_bytes(int64_t count, DType dtype) const override { return static_cast<size_t>(count) * size_of(dtype); }
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CodingState* state) const override;
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override;
};

CodecRow identity_row();

}  // namespace thinwire
