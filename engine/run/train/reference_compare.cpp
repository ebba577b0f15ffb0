// Runs a dumped model through our layers and compares every quantity of the dump.
//
// Tolerances. One rounding of the compute dtype is at most u = eps / 2 relative. A sum of K terms collects K of them;
// they are independent and of either sign, so the error grows like a random walk: lambda * u * sqrt(K), exceeded with
// probability below exp(-lambda^2 / 2) (Higham and Mary 2019); lambda = 6. A value that lies behind S such sums in a
// row collects S of them, again independent: T = lambda * u * sqrt(K * S), relative to the largest magnitude of the
// quantity. K is the longest sum of the model (hidden, feed-forward, vocabulary, sequence; for gradients of parameters
// the tokens of the batch too). S counts the sums on the longest path: 7 per layer (two norms, qkv, scores, values,
// output, two feed-forward) and 3 (final norm, head, loss) forward, and twice as many backward. Step s of the
// trajectory has s steps behind it that each carry the gradient's error, so T times s.
//
// Final weights: 2e-3 of what ten steps change, as the norm of a tensor. Adam divides a gradient by its own size, so
// noise n in an element g moves its weight by n / g of its way. n has the standard deviation u * sqrt(K * S) of the
// row's size. A tensor that misses the plain ratio says so and is judged again: where n is more than 2e-3 of g, only
// what goes beyond lambda * n / g of the longest way (steps * rate; a flipped sign is 2 of it) counts as error.
// Elements without a gradient (below 1e-12: noise alone) are left out.
#include "engine/run/train/reference_compare.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/shallow_json.h"
#include "engine/run/checkpoint/hf_names.h"
#include "engine/run/config/load_config.h"
#include "engine/run/train/backend.h"
#include "engine/run/train/bare_training.h"
#include "engine/run/train/device_traffic_choice.h"
#include "engine/run/train/evaluate.h"
#include "engine/run/train/gather_tensors.h"
#include "engine/run/train/trainer.h"
#include "model/params.h"

namespace thinwire {
namespace {

constexpr double kLambda = 6.0, kFinalTolerance = 2e-3;

using Values = std::map<std::string, std::vector<float>>;  // by our names

struct Dump {
  std::string directory;
  ModelConfig model;
  int64_t steps = 0, batch = 0, length = 0;
  std::vector<int64_t> tokens;
  std::vector<float> logits;
  std::vector<int64_t> positions;  // of the rows of logits in each sequence; empty: all
  Values initial, gradients, final;
  nlohmann::json trajectory;
};

Dump read_dump(const std::string& directory) {
  Dump d;
  d.directory = directory;
  d.model = read_hf_model(directory);
  const SafetensorsFile tokens(directory + "/tokens.safetensors");
  const std::vector<int64_t>& shape = tokens.at("tokens").shape;
  if (shape.size() != 3 || shape[0] < 1)
    throw_bad_data(directory + "/tokens.safetensors: tokens must be [steps, batch, seq + 1], of one step at least");
  d.steps = shape[0], d.batch = shape[1], d.length = shape[2] - 1;
  d.tokens = tokens.read_i64("tokens");
  for (int64_t t : d.tokens) {
    if (t < 0 || t >= d.model.vocab)
      throw_bad_data(directory + "/tokens.safetensors: token " + std::to_string(t) + " is outside the vocabulary");
  }
  d.model.seq_length = d.length;
  // Rotary angles go on past the configured length, as in transformers; a learned table ends there.
  if (d.model.positions == PositionKind::kRotary)
    d.model.max_positions = std::max(d.model.max_positions, d.length);
  else if (d.length > d.model.max_positions)
    throw_bad_data(directory + "/tokens.safetensors: " + std::to_string(d.length) + " positions, config.json has " +
                   std::to_string(d.model.max_positions));
  const ParamList params = list_parameters(d.model);
  const HfMapping mapping(d.model, params);
  const auto read = [&](const char* file, Values& into) {
    mapping.read_hf(HfTensors(directory + "/" + file),
                    [&](const ParamSpec& p, std::vector<float> v) { into[p.name] = std::move(v); });
  };
  read("model.safetensors", d.initial);
  read("step1_gradients.safetensors", d.gradients);
  read("step10_model.safetensors", d.final);
  const SafetensorsFile logits(directory + "/step1_logits.safetensors");
  d.logits.resize(static_cast<size_t>(logits.at("logits").count()));
  logits.read_f32("logits", d.logits);
  if (logits.find("positions")) d.positions = logits.read_i64("positions");
  for (int64_t p : d.positions) {
    if (p < 0 || p >= d.length)
      throw_bad_data(directory + "/step1_logits.safetensors: position " + std::to_string(p) + " of " +
                     std::to_string(d.length));
  }
  const int64_t rows = d.positions.empty() ? d.length : static_cast<int64_t>(d.positions.size());
  if (static_cast<int64_t>(d.logits.size()) != d.batch * rows * d.model.vocab)
    throw_bad_data(directory + "/step1_logits.safetensors: wrong size");
  d.trajectory = parse_shallow(read_file(directory + "/trajectory.json", 1 << 24));
  if (!d.trajectory.is_object() || !d.trajectory.contains("trajectory") || !d.trajectory.contains("optimizer")) {
    throw_bad_data(directory + "/trajectory.json: needs \"optimizer\" and \"trajectory\"");
  }
  const nlohmann::json& steps = d.trajectory["trajectory"];
  const auto whole = [](const nlohmann::json& step) {
    return step.is_object() && step.contains("loss") && step["loss"].is_number() && step.contains("grad_norm") &&
           step["grad_norm"].is_number();
  };
  if (!steps.is_array() || static_cast<int64_t>(steps.size()) < d.steps ||
      !std::all_of(steps.begin(), steps.end(), whole))
    throw_bad_data(directory + "/trajectory.json: needs loss and grad_norm of " + std::to_string(d.steps) + " steps");
  return d;
}

RunConfig run_config(const Dump& d, const std::vector<std::string>& overrides, int ranks) {
  const auto set = [](const char* key, int64_t value) { return std::string(key) + "=" + std::to_string(value); };
  std::vector<std::string> all = {set("num_layers", d.model.layers),
                                  set("hidden_size", d.model.heads * 2),
                                  set("num_attention_heads", d.model.heads),
                                  set("vocab_size", d.model.vocab),
                                  set("seq_length", d.length),
                                  set("max_position_embeddings", d.model.max_positions),
                                  set("train_batch_size", d.batch),
                                  set("train_iters", d.steps),
                                  "lr_decay_style=constant",
                                  "warmup=0",
                                  "optimizer.params.lr=1e-3",
                                  "run_dir=runs/reference"};
  // The configuration knows only the shape of a GPT-2; heads and widths of the dump take its place below.
  if (d.model.kv_heads != d.model.heads) all.push_back(set("num_kv_heads", d.model.kv_heads));
  const bool batch_given = std::any_of(overrides.begin(), overrides.end(), [](const std::string& o) {
    return o.rfind("gradient_accumulation_steps", 0) == 0 || o.rfind("train_micro_batch_size_per_gpu", 0) == 0 ||
           o.rfind("micro_batch_size", 0) == 0;
  });
  if (!batch_given) all.push_back("gradient_accumulation_steps=1");
  all.insert(all.end(), overrides.begin(), overrides.end());
  ConfigOptions options;
  options.data_required = false;
  options.ranks = ranks;
  RunConfig run = load_config({}, all, options).run;
  if (run.data.global_batch != d.batch || run.data.seq_length != d.length)
    throw_bad_config("train_batch_size and seq_length are those of the directory, " + std::to_string(d.batch) +
                     " and " + std::to_string(d.length) + ": leave them out");
  refuse_what_is_not_here(run);
  const ModelConfig said = run.model;  // how to compute is what the keys say
  run.model = d.model;
  run.model.recompute = said.recompute, run.model.dtype = said.dtype, run.model.fp8 = said.fp8;
  run.model.sequence_chunk = said.sequence_chunk, run.model.offload = said.offload;
  run.model.hidden_dropout = run.model.attention_dropout = 0.0f;  // a dump holds no masks: it is made without
  // Python's None, null here, is what was not done.
  if (const auto documents = d.trajectory.find("documents"); documents != d.trajectory.end() && !documents->is_null()) {
    DocumentRules& rules = run.data.documents;
    rules.eod_token = documents->at("eod_token");
    rules.mask_loss = documents->value("eod_mask_loss", false);
    rules.reset_attention = documents->value("reset_attention_mask", false);
    rules.reset_positions = documents->value("reset_position_ids", false);
  }

  const nlohmann::json& o = d.trajectory.at("optimizer");
  run.optim.lr = o.at("lr"), run.optim.min_lr = run.optim.lr;
  run.optim.beta1 = o.at("betas").at(0), run.optim.beta2 = o.at("betas").at(1);
  run.optim.eps = o.at("eps"), run.optim.weight_decay = o.at("weight_decay");
  const auto clip = d.trajectory.find("clip");
  run.optim.clip = clip == d.trajectory.end() || clip->is_null() ? 0.0 : clip->get<double>();
  run.optim.warmup_iters = 0;
  run.optim.decay = LrDecay::kConstant;
  return run;
}

class Comparison {
 public:
  Comparison(const Dump& dump, const RunConfig& run, std::FILE* out) : dump_(dump), run_(run), out_(out) {
    const ModelConfig& m = run.model;
    const double u = epsilon_of(m.dtype) / 2.0;
    const double k =
        static_cast<double>(std::max({m.hidden, m.ffn_in_width(), m.padded_vocab, dump.length, m.attention_width()}));
    const double tokens = static_cast<double>(dump.batch * dump.length);
    const double s = 7.0 * static_cast<double>(m.layers) + 3.0;
    forward_ = kLambda * u * std::sqrt(k * s);
    backward_ = kLambda * u * std::sqrt(std::max(k, tokens) * 3.0 * s);
    std::fprintf(out, "# %s: %s\n", dump.directory.c_str(), std::string(name_of(m.dtype)).c_str());
    std::fprintf(out,
                 "# tolerance = lambda u sqrt(K S) of the largest magnitude: lambda 6, u %.3g, K %g, S %g -> forward "
                 "%.3g; K %g, S %g -> backward %.3g\n",
                 u, k, s, forward_, std::max(k, tokens), 3.0 * s, backward_);
    std::fprintf(out, "# step s of the trajectory: s times; final weights: %.3g of what ten steps change\n",
                 kFinalTolerance);
  }

  double forward() const { return forward_; }
  double backward() const { return backward_; }
  double deviation() const { return backward_ / kLambda; }  // of one element of a gradient, over its row's size

  void report(const std::string& name, double abs_err, double rel_err, double tolerance) {
    const bool ok = rel_err <= tolerance;  // false for NaN
    all_ok_ = all_ok_ && ok;
    std::fprintf(out_, "%-44s %.3e %.3e %.3e %s\n", name.c_str(), abs_err, rel_err, tolerance, ok ? "ok" : "FAIL");
  }
  void arrays(const std::string& name, const std::vector<float>& ours, const std::vector<float>& reference,
              double tolerance) {
    TW_CHECK(ours.size() == reference.size(), name);
    double largest = 0.0, error = 0.0;
    for (size_t i = 0; i < ours.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(reference[i])));
      const double e = std::abs(static_cast<double>(ours[i]) - reference[i]);
      error = e > error || std::isnan(e) ? e : error;
    }
    report(name, error, largest > 0.0 ? error / largest : error, tolerance);
  }
  void scalar(const std::string& name, double ours, double reference, double tolerance) {
    report(name, std::abs(ours - reference), std::abs(ours - reference) / std::abs(reference), tolerance);
  }
  void remark(const std::string& text) { std::fprintf(out_, "# %s\n", text.c_str()); }
  bool all_ok() const { return all_ok_; }

 private:
  const Dump& dump_;
  const RunConfig& run_;
  std::FILE* out_;
  double forward_ = 0.0, backward_ = 0.0;
  bool all_ok_ = true;
};

// The model of the dump on all ranks of the job.
class Subject {
 public:
  Subject(const Dump& dump, const RunConfig& run, Job& job)
      : dump_(dump),
        backend_(open_backend(run.device, job.local_rank())),
        traffic_(choose_device_traffic(run, job, *backend_.device)),
        replica_(run, layout_of(run, job.rank(), job.nodes()), job.mesh(), backend_.device.get(), backend_.ops, true) {
    replica_.connect();
    for (const ParamSpec& p : replica_.store().params())
      replica_.store().set(replica_.device(), replica_.stream(), p.name, dump.initial.at(p.name));
    replica_.weights_changed();
  }

  Replica& replica() { return replica_; }
  int micros() const { return static_cast<int>(replica_.config().accumulation); }

  // Micro-batch `micro` of this rank: the ranks of the data-parallel group take turns within a micro-step.
  Batch batch(int64_t step, int64_t micro) const {
    const int64_t rows = replica_.config().data.micro_batch, width = dump_.length + 1;
    Batch b;
    b.first_sample = step * dump_.batch + first_row(micro), b.rows = rows;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t* row = &dump_.tokens[static_cast<size_t>((b.first_sample + r) * width)];
      for (int64_t t = 0; t < dump_.length; ++t) {
        b.inputs.push_back(static_cast<int32_t>(row[t]));
        b.targets.push_back(static_cast<int32_t>(row[t + 1]));
      }
      b.sample_ids.push_back(b.first_sample + r);
    }
    apply_document_rules(replica_.config().data.documents, dump_.length, b);
    return b;
  }

  // Of the first step, [batch * length, vocab], on rank 0.
  std::vector<float> logits() {
    Replica& r = replica_;
    const ModelConfig& m = r.config().model;
    const LayerRange columns = r.layout().shard.vocab();
    const int64_t used = std::max<int64_t>(0, std::min(columns.first + columns.count, m.vocab) - columns.first);
    std::string parts;
    Arena arena(&r.device());
    Ticket leaving;
    for (int64_t micro = 0; micro < micros(); ++micro) {
      r.traffic().begin(r.evaluation_uses());
      run_micro_batch(r, batch(0, micro), leaving, [&](Stage& stage, const MicroBatch& on_device) {
        stage.all_logits(r.exec(), on_device, [&](int64_t first, View chunk) {
          const View wide = arena.take(MemoryCategory::kWorkspace, DType::f32, {chunk.rows(), chunk.cols()});
          r.exec().ops.cast(r.exec(), {chunk, wide});
          std::vector<float> rows(static_cast<size_t>(wide.count())), kept;
          r.read(wide, rows.data());
          for (int64_t i = 0; i < chunk.rows(); ++i)
            kept.insert(kept.end(), rows.begin() + i * chunk.cols(), rows.begin() + i * chunk.cols() + used);
          for (const auto& [row, at, count] : whole_rows(first, chunk.rows())) {
            const auto from = kept.begin() + row * used;
            append_part(parts, "logits",
                        {dump_.batch * dump_.length, m.vocab, first_row(micro) * dump_.length + at, count,
                         columns.first, used, 0, count * used},
                        {from, from + count * used});
          }
        });
      });
    }
    leaving.wait(r.stream());
    PartsInto whole;
    for (const std::string& part : r.ports().control.collect(parts)) whole.add(part);
    return whole.finish()["logits"];
  }

 private:
  int64_t first_row(int64_t micro) const {
    const RankLayout& layout = replica_.layout();
    return (micro * layout.data_size() + layout.data_rank()) * replica_.config().data.micro_batch;
  }

  struct Rows {
    int64_t row, at, count;  // of the `first` ones, the token of the micro-batch, and how many
  };
  // Where rows [first, first + count) of this rank lie in whole sequences.
  std::vector<Rows> whole_rows(int64_t first, int64_t count) const {
    const SequenceCut& cut = replica_.layout().shard.cut;
    if (cut.whole()) return {{0, first, count}};
    std::vector<Rows> rows;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t sample = (first + i) / cut.count(), row = (first + i) % cut.count();
      const SequenceCut::Run run = row < cut.front().count ? cut.front() : cut.back();
      rows.push_back({i, sample * cut.length + run.first + row - run.row, 1});
    }
    return rows;
  }

  const Dump& dump_;
  Backend backend_;
  std::unique_ptr<DeviceTraffic> traffic_;
  Replica replica_;
};

// The rows that the dump has, of those of all tokens.
std::vector<float> at_positions(const Dump& d, std::vector<float> all) {
  if (d.positions.empty() || all.empty()) return all;
  std::vector<float> some;
  for (int64_t b = 0; b < d.batch; ++b) {
    for (int64_t p : d.positions) {
      const auto row = all.begin() + (b * d.length + p) * d.model.vocab;
      some.insert(some.end(), row, row + d.model.vocab);
    }
  }
  return some;
}

// Root mean square of each row of a gradient: the scale that the rounding of that row's elements goes by. An element of
// a bias is a sum over the tokens of dy; its matrix sums dy times inputs of size one, so the matrix's row tells the
// size of the terms even where they cancel. They do for the bias of k: all but sin(angle) of it, next to nothing for
// the slow pairs of a large rotary base.
std::vector<double> row_scales(const ParamSpec& p, const Values& gradients) {
  const std::vector<float>* from = &gradients.at(p.name);
  size_t rows = p.is_vector ? 1 : static_cast<size_t>(p.rows);
  if (p.is_vector && p.name.ends_with(".bias")) {
    const auto matrix = gradients.find(p.name.substr(0, p.name.size() - 4) + "weight");
    if (matrix != gradients.end() && matrix->second.size() > from->size()) {
      rows = from->size();
      from = &matrix->second;
    }
  }
  const size_t width = from->size() / rows;
  std::vector<double> scales(rows, 0.0);
  for (size_t i = 0; i < rows * width; ++i) scales[i / width] += static_cast<double>((*from)[i]) * (*from)[i];
  for (double& scale : scales) scale = std::sqrt(scale / static_cast<double>(width));
  return scales;
}

void compare_final(const Dump& d, const OptimConfig& optim, const Values& weights, Comparison& compare) {
  if (compare.deviation() > kFinalTolerance) {
    compare.remark("final weights: not compared, the gradients' rounding alone is more than the tolerance");
    return;
  }
  const double reach = static_cast<double>(d.steps) * optim.lr;  // of an element in all steps
  for (const ParamSpec& p : list_parameters(d.model)) {
    const std::vector<float>& ours = weights.at(p.name);
    const std::vector<float>&start = d.initial.at(p.name), &end = d.final.at(p.name),
          &gradient = d.gradients.at(p.name);
    const std::vector<double> scales = row_scales(p, d.gradients);
    const size_t width = ours.size() / scales.size();
    double plain = 0.0, beyond = 0.0, update = 0.0, largest = 0.0;
    for (size_t i = 0; i < ours.size(); ++i) {
      const double g = std::abs(static_cast<double>(gradient[i]));
      if (g < 1e-12) continue;
      double e = std::abs(static_cast<double>(ours[i]) - end[i]);
      plain += e * e;
      const double w = static_cast<double>(end[i]) - start[i];
      largest = e > largest || std::isnan(e) ? e : largest;
      const double noise = compare.deviation() * scales[i / width];
      if (noise > kFinalTolerance * g)
        e = std::max(e - reach * std::min(2.0, kLambda * noise / g), std::isnan(e) ? e : 0.0);
      beyond += e * e, update += w * w;
    }
    if (update == 0.0) continue;  // no element has a gradient
    const double ratio = std::sqrt(plain / update);
    const bool noisy = ratio > kFinalTolerance;
    if (noisy) {
      compare.remark("step10." + p.name + ": plain ratio " + std::to_string(ratio) +
                     "; below, what goes beyond the noise that Adam amplifies");
    }
    compare.report("step10." + p.name, largest, noisy ? std::sqrt(beyond / update) : ratio, kFinalTolerance);
  }
}

}  // namespace

bool check_reference(const std::string& directory, const std::vector<std::string>& overrides, std::FILE* out,
                     Job& job) {
  Dump dump;
  RunConfig run;
  job.agree([&] {
    if (!std::filesystem::is_directory(directory)) throw_bad_data(directory + ": no such directory");
    dump = read_dump(directory);
    try {
      run = run_config(dump, overrides, job.size());
    } catch (const nlohmann::json::exception& e) {
      throw_bad_data(directory + "/trajectory.json: " + e.what());
    }
  });
  job.form_mesh(run, directory);
  job.share_cores(run);
  Subject subject(dump, run, job);
  Replica& r = subject.replica();
  std::optional<Comparison> compare;
  if (job.first()) compare.emplace(dump, run, out);

  const std::vector<float> logits = at_positions(dump, subject.logits());
  if (compare) compare->arrays("logits", logits, dump.logits, compare->forward());

  BareTraining training(r);
  Values gradients;
  bool taken = false;
  training.step.set_gradient_sink([&] {
    if (std::exchange(taken, true)) return;
    std::vector<View> pieces;
    for (const OwnedPiece& piece : r.store().owned()) pieces.push_back(piece.gradient);
    gradients = gather_tensors(r, pieces);
    for (auto& [name, values] : gradients) {
      for (float& g : values) g /= static_cast<float>(training.scaler.scale());
    }
  });
  for (int64_t s = 0; s < dump.steps; ++s) {
    int64_t micro = 0;
    const StepOutcome outcome = training.take_step(subject.micros(), [&] { return subject.batch(s, micro++); });
    if (!compare) continue;
    if (s == 0) {
      for (const ParamSpec& p : list_parameters(dump.model))
        compare->arrays("gradient." + p.name, gradients.at(p.name), dump.gradients.at(p.name), compare->backward());
    }
    const nlohmann::json& reference = dump.trajectory.at("trajectory").at(static_cast<size_t>(s));
    const double times = static_cast<double>(s + 1);
    compare->scalar("loss.step" + std::to_string(s + 1), outcome.loss, reference.at("loss"),
                    compare->forward() * times);
    compare->scalar("grad_norm.step" + std::to_string(s + 1), outcome.grad_norm, reference.at("grad_norm"),
                    compare->backward() * times);
  }
  r.traffic().drain();
  const Values weights = gather_tensors(r, {});
  if (compare) compare_final(dump, run.optim, weights, *compare);
  return job.control().agree_max(compare && !compare->all_ok()) == 0;
}

}  // namespace thinwire
