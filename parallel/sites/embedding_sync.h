// Site embedding: the tied embedding's gradient is summed over its holders (first and last stage, data-parallel ranks).
#pragma once

#include "engine/base/core/view.h"
#include "engine/base/device/stream.h"
#include "parallel/sites/group.h"

namespace thinwire {

class EmbeddingSync {
 public:
  explicit EmbeddingSync(Group group) : group_(group) { require_single(group, "embedding"); }
  Ticket reduce(View flat_gradient, Stream& stream) {
    (void)flat_gradient, (void)stream;
    return Ticket::finished();
  }

 private:
  Group group_;
};

}  // namespace thinwire
