// Codec identity: what leaves a rank is what was there. The default of every site.
#pragma once

#include "compression/codec.h"

namespace thinwire {

class Identity final : public Codec {
 public:
  std::string_view name() const override { return "identity"; }
  Traits traits() const override { return {.alias = true, .lossless = true, .stateful = false}; }
  size_t wire_bytes(int64_t count, DType dtype) const override { return static_cast<size_t>(count) * size_of(dtype); }
};

}  // namespace thinwire
