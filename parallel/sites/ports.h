// The site objects that a layer is given. A layer never sees groups, communicators or codecs: only these.
#pragma once

#include "parallel/sites/control.h"
#include "parallel/sites/dp_gradient.h"
#include "parallel/sites/embedding_sync.h"
#include "parallel/sites/pp_boundary.h"
#include "parallel/sites/tp_activation.h"
#include "parallel/sites/zero_parameter.h"

namespace thinwire {

struct Ports {
  TpActivation tp{Group{}};
  PpBoundary pp{Group{}};
  DpGradient dp{Group{}};
  ZeroParameter zero{Group{}};
  EmbeddingSync embedding{Group{}};
  Control control{Group{}};
};

}  // namespace thinwire
