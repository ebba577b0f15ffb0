// An attention over keys that come in parts (keys_at_once), as one op for each part.
#pragma once

#include <algorithm>
#include <type_traits>

#include "engine/base/ops/ops.h"

namespace thinwire {

// Calls body(op of a part), the first keys first.
template <typename Op, typename Body>
void for_key_parts(const Op& op, const Body& body) {
  const int64_t keys = op.shape.kv_len, step = op.keys_at_once > 0 ? op.keys_at_once : keys;
  if (step >= keys) return body(op);
  for (int64_t k = 0; k < keys; k += step) {
    Op part = op;
    part.keys_at_once = 0, part.shape.kv_len = std::min(step, keys - k), part.shape.first_key += k;
    part.k_at.offset += k * op.k_at.token, part.v_at.offset += k * op.v_at.token;
    if constexpr (std::is_same_v<Op, AttentionForward>)
      part.merge = op.merge || k > 0;
    else
      part.add_dq = op.add_dq || k > 0;
    body(part);
  }
}

}  // namespace thinwire
