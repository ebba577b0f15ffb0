// The plan of a step against the limits of node, process and device.
#include "engine/run/train/memory_check.h"

#include <algorithm>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/run/trace/console_progress.h"
#include "engine/run/trace/memory_probe.h"
#include "engine/run/train/dry_run.h"

namespace thinwire {
namespace {

std::string size_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

std::string what_to_do(const std::string& planned) {
  return (planned.empty() ? "" : "; planned: " + planned) +
         "; lower train_micro_batch_size_per_gpu, raise recompute_granularity, or find out what else needs memory "
         "here; --dry-run prints the plan";
}

}  // namespace

std::string refuse_what_does_not_fit(const RunConfig& run, int ranks_here, const Device& device, bool saves,
                                     int sharers) {
  const MemoryPlan plan = plan_memory(run);
  const auto planned = static_cast<int64_t>(plan.total() + process_overhead(run));
  const MemoryLimit node = memory_limit();
  if (const auto host = static_cast<int64_t>(plan.host) * ranks_here; host > node.bytes)
    throw_bad_config("not enough host memory: activation_offload host needs " + size_text(host) + " page-locked for " +
                     std::to_string(ranks_here) + (ranks_here > 1 ? " ranks" : " rank") + " of this node; there are " +
                     size_text(node.bytes) + " (" + node.source +
                     "); lower train_micro_batch_size_per_gpu, raise recompute_granularity or start fewer ranks here; "
                     "--dry-run prints the plan");
  if (const auto whole = static_cast<int64_t>(device.memory_total()); whole > 0) {
    const std::string of_a_rank = size_text(planned) + " of a rank";
    const std::string limit = "the device has " + size_text(whole) +
                              (sharers > 1 ? " for " + std::to_string(sharers) + " ranks that share it" : "");
    if (planned <= whole / sharers) return of_a_rank + ", " + limit;  // what else is there shows when memory is taken
    std::string ordered;
    if (run.deterministic) {
      RunConfig other = run;
      other.deterministic = false;
      if (const auto less = planned - static_cast<int64_t>(plan_memory(other).total() + process_overhead(other));
          less > planned / 20)
        ordered = ", say deterministic: false (attention's backward pass then takes " + size_text(less) + " less)";
    }
    throw_bad_config("not enough GPU memory: this configuration needs " + of_a_rank + ", " + limit +
                     "; lower train_micro_batch_size_per_gpu, raise recompute_granularity" + ordered +
                     " or shard by zero_optimization.stage; --dry-run prints the plan");
  }
  // The limit of addresses is compared with the steps alone: a save that gets no memory there says so itself.
  const int64_t saved = saves ? static_cast<int64_t>(save_bytes(run, ranks_here)) : 0;
  const int64_t process = address_limit(), needed = planned * ranks_here + saved;
  const std::string of_a_rank = size_text(ranks_here > 1 ? planned : needed) + " of a rank";
  std::string words =
      ranks_here > 1 ? size_text(needed) + " for the " + std::to_string(ranks_here) + " ranks of a node, " + of_a_rank
                     : of_a_rank;
  words += "; there are " + size_text(node.bytes) + " (" + node.source + ")";
  if (process > 0) words += ", for a process " + size_text(process) + " of addresses (ulimit -v)";
  if (needed > node.bytes || (process > 0 && planned > process)) {
    throw_bad_config("not enough memory: this configuration needs " + words +
                     "; lower train_micro_batch_size_per_gpu, seq_length, the model or train_iters (every rank holds "
                     "the order of all samples), or raise recompute_granularity; --dry-run prints the plan");
  }
  return words;
}

std::string out_of_memory(const std::string& planned) {
  return "out of memory, with " + size_text(current_rss_bytes()) + " in use by this rank" + what_to_do(planned);
}

std::string killed_for_memory(const std::string& planned, int64_t peak) {
  return std::string(kKilledForMemory) + ", with up to " + size_text(peak) + " in use by this rank" +
         what_to_do(planned);
}

std::string last_killed_for_memory(const RunStatus& last) {
  const std::string end = "the last start of this run ended at step " + std::to_string(last.step);
  if (last.message.find(kKilledForMemory) != std::string::npos) return end + ": " + last.message;
  if (last.state != "running" || last.host != this_host()) return "";
  // A batch job's control group goes with the job; what the whole machine has counted says less.
  constexpr const char* kMachine = "/proc/vmstat";
  auto found = std::find_if(last.oom_kills.begin(), last.oom_kills.end(), [&](const auto& kills) {
    return kills.first != kMachine && memory_kills_in(kills.first) >= 0;
  });
  if (found == last.oom_kills.end()) found = last.oom_kills.find(kMachine);
  if (found == last.oom_kills.end() || memory_kills_in(found->first) <= found->second) return "";
  return end + " without a word, and " + found->first + " counts processes that were " + kKilledForMemory + " since" +
         what_to_do(last.planned_memory);
}

}  // namespace thinwire
