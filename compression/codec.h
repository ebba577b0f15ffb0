// The narrow door between compression and communication: a codec describes rounds, coded collectives perform them.
//
// So far one codec exists, `identity`: its wire bytes are the caller's own memory, and a Channel that holds it calls
// the plain collective (law 3). Codecs that change bytes join with their packing verbs.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/base/core/dtype.h"

namespace thinwire {

struct Traits {
  bool alias = false;     // the wire bytes are the input's memory: nothing is packed
  bool lossless = false;  // decode(encode(x)) == x, bit for bit
  bool stateful = false;  // keeps residuals or warm starts between messages
};

class Codec {
 public:
  virtual ~Codec() = default;
  virtual std::string_view name() const = 0;
  virtual Traits traits() const = 0;
  // Bytes on the wire for `count` elements of `dtype`, exactly.
  virtual size_t wire_bytes(int64_t count, DType dtype) const = 0;
};

}  // namespace thinwire
