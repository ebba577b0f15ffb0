// metrics.jsonl: one line of JSON per training step and per evaluation, for programs and for the report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/core/file.h"

namespace thinwire {

// What one site sent in one step, seen from rank 0; `*_total` is summed over ranks.
struct SiteRecord {
  std::string site;           // "dp.gradient", "tp.forward", ...
  int64_t logical_bytes = 0;  // the same collective algorithm, uncompressed, in `baseline_dtype`
  int64_t wire_bytes = 0;     // what was really sent
  int64_t logical_bytes_total = 0;
  int64_t wire_bytes_total = 0;
  std::string baseline_dtype;  // "fp32", "bf16", "fp16"
  double encode_ms = 0.0, decode_ms = 0.0;
  double busy_ms = 0.0;                 // time with at least one operation of the site open
  double exposed_ms = 0.0;              // part of it during which compute waited
  std::optional<double> rel_error;      // null: not measured in this step
  std::optional<double> residual_norm;  // null: the site keeps no residual
  int64_t dense_messages = 0;           // of a sketch, whose union left nothing out; 0 is not written
};

// A rank that computes longer than its like, or keeps others waiting (straggler_watch.h).
struct StragglerRecord {
  int rank = 0;
  std::string host;    // may be empty
  bool waits = false;  // false: it computes too long; true: others wait for its messages
  double ratio = 0.0;  // of its median to that of its like; of the steps in which others waited for it
  int64_t since = 0;   // steps that were done when it began
};
// "rank 37 (n12) computes 1.6 x the median since step 400"
std::string text_of(const StragglerRecord& record);

// One step. Numbers are written with full double precision (reading them back gives the same bits). JSON has no NaN or
// infinity: such a number is written as null, and `loss` and `grad_norm` then get a neighbour `loss_text` /
// `grad_norm_text`
// ("nan", "inf", "-inf") that is absent otherwise.
struct StepRecord {
  int64_t step = 0;              // 1 is the first step
  int64_t consumed_samples = 0;  // including this step
  int64_t consumed_tokens = 0;
  double loss = 0.0;       // mean over the tokens of the step
  double lr = 0.0;         // that the optimizer used in this step
  double grad_norm = 0.0;  // global L2 norm before clipping
  double loss_scale = 1.0;
  bool skipped = false;  // non-finite, a spike, or listed: no state was changed
  // iterations_to_skip names it: loss and grad_norm are null alone, and "skipped_by" names the key, absent otherwise.
  bool listed = false;
  double wall_s = 0.0;  // since the run's first start, restarts included
  double step_ms = 0.0;
  double samples_per_s = 0.0;
  double tokens_per_s = 0.0;
  double model_tflops_per_rank = 0.0;   // model_flops_per_token, causal half (flops.h)
  double model_tflops_full_attn = 0.0;  // full_attention_flops_per_token
  double hw_tflops = 0.0;               // hardware_flops_per_token
  std::optional<double> mfu;            // model_tflops_per_rank / peak, a fraction; null when no peak is known
  int64_t memory_peak_bytes = 0;
  // Where step_ms went, in this order; names: data, forward, backward, optimizer, and whatever the trainer adds.
  // evaluation and checkpoint are time between the step before and this one, not part of step_ms.
  std::vector<std::pair<std::string, double>> time_ms;
  double attention_imbalance =
      0.0;  // busiest context-parallel rank over the mean; written where sequences are cut over ranks, absent otherwise
  std::string non_finite;  // name of the first tensor with NaN or infinity; empty is written as null
  // A loss that jumped: spreads above the median of those before (spike_guard.h). Written as "spike", absent otherwise.
  std::optional<double> spike_spreads, spike_median;
  // In steps in which ranks were compared (straggler_watch.h); empty: none was named. Absent in all others.
  std::optional<std::vector<StragglerRecord>> stragglers;
  std::vector<SiteRecord> comm;  // only sites that exist in this layout: one rank writes "comm":{}
  std::string revisions;         // plan revisions that this step is the first one under, a list in JSON; empty: none
};

struct EvalRecord {
  int64_t step = 0;  // after this many steps
  double eval_loss = 0.0;
  double perplexity = 0.0;  // exp(eval_loss); null (with perplexity_text) when it overflows
  double wall_s = 0.0;
  double eval_ms = 0.0;
  int64_t eval_tokens = 0;
  std::vector<double> by_position;  // "eval_loss_by_position", 16 (token_positions.h); null where there was no token
  std::string split = "valid";
  std::vector<SiteRecord> comm;  // of the evaluation alone; of it a step's line holds control's last sum only
};

// One line, without the newline.
std::string to_json_line(const StepRecord& record);
std::string to_json_line(const EvalRecord& record);

// Appends lines. Each line is one write, so kill -9 can leave at most the last one incomplete. A failure (disk full,
// quota) is logged once, and later lines are tried again. A line that did not fit is truncated away where the file
// system allows it.
class MetricsLog {
 public:
  // Opens `path`, made if missing. An existing file is repaired first. Removed are: lines whose step is above
  // `resume_step` (of the checkpoint, 0 for a new run: these steps are taken again), lines that are no complete JSON
  // object, and an incomplete last line. At the end of the file this truncates in place, also on a full disk; elsewhere
  // it writes a new file and renames it.
  MetricsLog(std::string path, int64_t resume_step);
  void write(const StepRecord& record);
  void write(const EvalRecord& record);

 private:
  void open_for_append();
  void repair(int64_t resume_step);
  void append(std::string line);
  void failed(const std::string& what);

  std::string path_;
  Descriptor file_;
  bool torn_ = false;  // the file may end in a fragment that could not be cut off
  bool warned_ = false;
};

}  // namespace thinwire
