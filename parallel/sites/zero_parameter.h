// Site zero.parameter: a unit's weights are gathered before use and after the update, where they are sharded.
#pragma once

#include "engine/base/core/view.h"
#include "engine/base/device/stream.h"
#include "parallel/sites/group.h"

namespace thinwire {

class ZeroParameter {
 public:
  explicit ZeroParameter(Group group) : group_(group) { require_single(group, "zero.parameter"); }
  // After the ticket, `flat` (the unit's working weights) is complete on this rank.
  Ticket acquire(int unit, View flat, Stream& stream) {
    (void)unit, (void)flat, (void)stream;
    return Ticket::finished();
  }

 private:
  Group group_;
};

}  // namespace thinwire
