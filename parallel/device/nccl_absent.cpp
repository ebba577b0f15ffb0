// Stands in for NCCL in builds without it: there is none.
#include "parallel/device/nccl_calls.h"

namespace thinwire {

std::string hardware_of(Device&) {
  return "";
}

std::unique_ptr<NcclCalls> open_nccl(Device&, Stream&) {
  return nullptr;
}

}  // namespace thinwire
