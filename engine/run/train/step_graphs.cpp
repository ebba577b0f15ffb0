// Decides once, at the start, and says so in the log.
#include "engine/run/train/step_graphs.h"

#include <array>

#include "engine/base/core/log.h"

namespace thinwire {
namespace {

constexpr std::array<const char*, 4> kPartNames = {"forward pass", "backward pass", "gradient norms", "optimizer step"};

RecordingStream* recording_stream(Replica& r) {
  return r.config().cuda_graphs ? dynamic_cast<RecordingStream*>(&r.stream()) : nullptr;
}

// Why no part can be recorded, or nothing.
std::string nothing_because(Replica& r) {
  const RecordingStream* stream = recording_stream(r);
  if (stream == nullptr) return "device " + r.config().device + " has no launches to save";
  if (const std::string why = stream->cannot_record(); !why.empty()) return why;
  if (r.profiled()) return "every op is timed on its own";
  return r.momentum() != nullptr ? "compression.sends = momentum changes what a step does" : "";
}

}  // namespace

StepGraphs::StepGraphs(Replica& replica) : replica_(replica), segments_(recording_stream(replica)) {
  if (!replica.config().cuda_graphs) return;
  if (const std::string why = nothing_because(replica); !why.empty()) {
    log_info("cuda_graphs: steps are queued op by op: " + why);
    return;
  }
  rest_ = true;
  const bool rounds = replica.config().gradient_dtype != DType::f32;
  // Which chunk is where, and so what has to be moved, is not the same in every pass.
  const bool moves = replica.token_store() != nullptr && replica.token_store()->spills();
  passes_ = replica.mesh() == nullptr && !rounds && !moves;
  if (rounds)
    log_info("cuda_graphs: gradient norms and the optimizer step: grad_dtype bf16 rounds gradients within passes");
  else if (moves && replica.mesh() == nullptr)
    log_info("cuda_graphs: gradient norms and the optimizer step: activation_offload moves chunks within passes");
  else if (!passes_)
    log_info(
        "cuda_graphs: gradient norms alone, and steps of units that no rank gathers: ranks communicate within passes, "
        "and between the steps of units that others gather");
}

void StepGraphs::record(Part part, int chunk, int slot, bool first, const std::function<void()>& body) {
  // A recording of a step's first pass has to round weights for products (Fp8Weights), and an evaluation before it may
  // have done that for their version: passes behind it count on it.
  if (part == kForward && first) replica_.store().bump_version();
  const Recording* made =
      segments_.run({part, chunk, 2 * slot + (first ? 0 : 1)}, replica_.exec().state->memory_moves(), body);
  // What is replayed asks nobody whether it may write.
  if (part <= kBackward) replica_.store().first_products_done(part == kForward);
  if (made == nullptr) return;
  std::string where = kPartNames.at(static_cast<size_t>(part));
  if (part <= kBackward) where += " of chunk " + std::to_string(chunk) + ", slot " + std::to_string(slot);
  log_info("cuda_graphs: " + where + ": recorded, " + std::to_string(made->size()) + " launches");
}

}  // namespace thinwire
