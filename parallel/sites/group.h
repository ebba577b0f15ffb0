// A group of ranks as a site sees it: how many there are and which one we are. Groups of one need no communicator.
#pragma once

#include "engine/base/core/check.h"

namespace thinwire {

struct Group {
  int rank = 0;
  int size = 1;
};

// The sites of this version serve groups of one rank, where every exchange is the identity and returns a finished
// Ticket.
inline void require_single(const Group& group, const char* site) {
  TW_CHECK(group.size == 1, "site ", site, " was given a group of ", group.size,
           " ranks, but this build has no communicator");
}

}  // namespace thinwire
