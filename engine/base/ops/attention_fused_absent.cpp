// Stands in for cuDNN's attention in builds without its headers: our own kernels do all of it.
#include "engine/base/ops/attention_fused.h"

namespace thinwire {

std::unique_ptr<FusedAttention> make_fused_attention(CudaState&) {
  return nullptr;
}

std::string fused_attention_name() {
  return "no cuDNN";
}

std::string attention_support_fault(int, const std::string&, const AttentionQuestion&) {
  return "cuDNN is not built in";
}

std::string device_properties_json(int) {
  return {};
}

}  // namespace thinwire
