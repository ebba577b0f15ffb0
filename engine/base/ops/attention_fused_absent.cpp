// Stands in for cuDNN's attention in builds without its headers: our own kernels do all of it.
#include "engine/base/ops/attention_fused.h"

namespace thinwire {

std::unique_ptr<FusedAttention> make_fused_attention(CudaState&) {
  if (attention_choice() != AttentionChoice::kOwn)
    attention_falls_back("attention",
                         "built without cuDNN or its front end (scripts/install_deps.sh fetches that one)");
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
