// Runs a few steps of a small model under any layout, with ranks as threads, and compares with one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace thinwire {
struct OpTable;
}

namespace thinwire::mesh {

struct Layout {
  int pipeline = 1, data = 1, tensor = 1;
  int context = 1;  // ranks that share the sequences of each of `data`
  bool sequence_parallel = false;
  std::string schedule = "1f1b";
  int chunks = 1;
  std::string weights = "replicated", gradients = "replicated", optimizer = "replicated", secondary;
  std::string hold;       // empty: the engine's choice
  std::string embedding;  // fused | two_step, empty: default
  int accumulation = 1;   // micro-batches per data rank
  std::string recompute;  // "", "selective", "full"
  int ranks_per_node = 0;
  std::string partition;
  std::vector<std::string> more;     // further overrides
  bool fake_gpu = false;             // on a device whose memory the host cannot touch (tests/support/fake_gpu.h)
  bool fake_nccl = false;            // on devices that talk to each other (tests/support/fake_nccl.h)
  const OpTable* kernels = nullptr;  // and code there: the emulated table
  bool stages = false;               // some messages go through the host all the same

  int ranks() const { return pipeline * data * tensor * context; }
  std::string name() const;  // for messages and for repeating a failure
};

// gpt2 | gpt2_untied | neox | llama | llama_tied | olmo | olmo_trained (its norms have parameters); layers, vocabulary
// and widths do not divide evenly.
struct Model {
  std::string family = "gpt2";
  int layers = 5;
  std::string dtype = "fp32";
  double dropout = 0.0;
  bool documents = false;  // with their own attention, positions and loss mask
  int window = -1;         // sliding_window_width; negative: none
};

// Small ones of each kind, for what need not cut unevenly.
inline const Model kGpt2 = {.family = "gpt2", .layers = 2}, kNeox = {.family = "neox", .layers = 4};
inline const Model kLlama = {.family = "llama", .layers = 2, .dtype = "bf16"};
inline const Model kTied = {.family = "llama_tied", .layers = 3, .dtype = "bf16"};

// `layout` under a stage of ZeRO.
inline Layout zero(int stage, Layout layout) {
  layout.optimizer = "global";
  if (stage > 1) layout.gradients = "global";
  if (stage > 2) layout.weights = "global";
  return layout;
}

// Layouts in chunks, on a device whose chunks wait in the host's memory (offloaded) or not.
struct ChunkedCase {
  Model model;
  Layout layout;
  int samples;
};
inline std::vector<ChunkedCase> chunked_cases() {
  const Model masked{.family = "gpt2", .layers = 3, .dropout = 0.1, .documents = true, .window = 9};
  Layout shared = zero(3, {.data = 2, .context = 2, .recompute = "selective"});
  return {
      {masked, {.accumulation = 2, .recompute = "full"}, 4},
      {kLlama, {.tensor = 2, .recompute = "selective"}, 2},
      {kNeox, {.pipeline = 2, .schedule = "interleaved", .chunks = 2, .accumulation = 4}, 4},
      {{.family = "llama", .layers = 4, .dropout = 0.1},
       {.pipeline = 2, .data = 2, .accumulation = 3, .recompute = "full"},
       6},
      {kTied, {.pipeline = 2, .schedule = "gpipe", .accumulation = 3}, 3},
      {masked, shared, 4},
  };
}
inline Layout in_chunks(Layout layout, bool offloaded) {
  layout.more.insert(layout.more.end(), {"device=cuda", "sequence_chunk_size=5"});  // of 24 tokens
  if (offloaded) layout.more.emplace_back("activation_offload=host");
  return layout;
}

struct Curve {
  std::vector<double> loss, norm;  // norm: -1 in a step that is skipped
  std::vector<double> wire;        // bytes of all ranks in the last step, by site
  std::string end;                 // hashes of what each rank holds then: weights, and what codecs keep, by name
  bool operator==(const Curve&) const = default;
};

// `steps` updates over `samples` sequences each. The engine's own configuration, plan, replica and step. between:
// called before each step, and behind the last, while no rank is in one.
Curve run(const Model& model, const Layout& layout, int samples, int steps,
          const std::function<void(int step)>& between = {});

// The same in two jobs: `then` resumes from all state that `first` has after step `at`. Both have the same ranks.
Curve run_resumed(const Model& model, const Layout& first, const Layout& then, int samples, int steps, int at);

// The first step in full: whole tensors by name, put together from the ranks' owned pieces.
using Tensors = std::map<std::string, std::vector<float>>;
struct FirstUpdate {
  double loss = 0.0;
  std::vector<double> wire;
  Tensors before, gradient, after;  // gradient: reduced, not clipped
};
// first_sample: where the step's `samples` sequences start. weights: set before it, by name.
FirstUpdate first_update(const Model& model, const Layout& layout, int samples, int first_sample = 0,
                         const Tensors& weights = {});

// Relative difference allowed at update `step` (1 first) between two runs of this model: each sum of K terms errs by
// lambda * u * sqrt(K) of its size in fp32, and by lambda * u' / sqrt(tokens) where its results are rounded to 16
// bits, S such sums lie in a row, both runs err, and step s has s updates behind it.
double tolerance(const Model& model, int samples, int step, bool of_norm);

// The largest relative differences seen, and the largest part of their tolerance that they took.
struct Worst {
  double loss = 0.0, norm = 0.0, of_tolerance = 0.0;
};

// Empty if `layout` gives the numbers of one rank; else what differs. worst: raised to what was seen.
std::string compare(const Model& model, const Layout& layout, int samples, int steps, Worst* worst = nullptr);

}  // namespace thinwire::mesh
