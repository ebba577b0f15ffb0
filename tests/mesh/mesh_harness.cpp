// Configuration text, threads and tolerances behind the mesh law.
#include "tests/mesh/mesh_harness.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>

#include "compression/codec_table.h"
#include "engine/base/core/philox.h"
#include "engine/run/config/load_config.h"
#include "engine/run/train/backend.h"
#include "engine/run/train/bare_training.h"
#include "engine/run/train/gather_tensors.h"
#include "engine/run/train/job.h"
#include "engine/run/train/step_rehearsal.h"
#include "engine/run/train/weight_hashes.h"
#include "parallel/device/device_traffic.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/local_world.h"

namespace thinwire::mesh {
namespace {

constexpr int kLength = 24, kVocab = 97;

std::vector<std::string> model_overrides(const Model& m) {
  std::vector<std::string> o = {"num_layers=" + std::to_string(m.layers),
                                "hidden_size=96",
                                "seq_length=" + std::to_string(kLength),
                                "max_position_embeddings=" + std::to_string(kLength),
                                "vocab_size=" + std::to_string(kVocab),
                                "make_vocab_size_divisible_by=1",
                                "precision=" + m.dtype,
                                "threads_per_rank=1",
                                "optimizer.params.lr=1e-3",
                                "lr_decay_style=constant",
                                "warmup=0",
                                "train_iters=10",
                                "run_dir=runs/mesh"};
  const auto add = [&](std::initializer_list<const char*> list) { o.insert(o.end(), list.begin(), list.end()); };
  if (m.family.rfind("gpt2", 0) == 0) {
    add({"num_attention_heads=12", "pos_emb=learned", "norm=layernorm", "bias_gelu_fusion=true"});
    o.push_back(std::string("no_weight_tying=") + (m.family == "gpt2_untied" ? "true" : "false"));
  } else if (m.family == "neox") {
    add({"num_attention_heads=12", "pos_emb=rotary", "rotary_pct=0.5", "gpt_j_residual=true", "no_weight_tying=true"});
  } else if (m.family.rfind("olmo", 0) == 0) {
    add({"num_attention_heads=12", "pos_emb=rotary", "activation=swiglu", "ffn_hidden_size=100",
         "use_bias_in_attn_linear=false", "use_bias_in_mlp=false"});
    o.push_back(std::string("norm=") + (m.family == "olmo" ? "non_parametric_layernorm" : "layernorm"));
  } else {
    add({"num_attention_heads=24", "num_kv_heads=12", "pos_emb=rotary", "norm=rmsnorm", "activation=swiglu",
         "ffn_hidden_size=100", "use_bias_in_attn_linear=false", "use_bias_in_mlp=false"});
    o.push_back(std::string("no_weight_tying=") + (m.family == "llama_tied" ? "false" : "true"));
  }
  if (m.dropout > 0.0) {
    o.push_back("hidden_dropout=" + std::to_string(m.dropout));
    o.push_back("attention_dropout=" + std::to_string(m.dropout));
  }
  if (m.window >= 0) o.push_back("sliding_window_width=" + std::to_string(m.window));
  if (m.documents) add({"eod_token=7", "eod_mask_loss=true", "reset_attention_mask=true", "reset_position_ids=true"});
  return o;
}

std::vector<std::string> layout_overrides(const Layout& l, int samples) {
  std::vector<std::string> o = {
      "pipe_parallel_size=" + std::to_string(l.pipeline),
      "model_parallel_size=" + std::to_string(l.tensor),
      "train_batch_size=" + std::to_string(samples),
      "train_micro_batch_size_per_gpu=" + std::to_string(samples / (l.data * l.accumulation)),
      "schedule=" + l.schedule,
      "placement.weights=" + l.weights,
      "placement.gradients=" + l.gradients,
      "placement.optimizer=" + l.optimizer,
      "watchdog_seconds=60",
  };
  if (l.context > 1) o.push_back("context_parallel_size=" + std::to_string(l.context));
  if (l.chunks > 1) o.push_back("virtual_chunks=" + std::to_string(l.chunks));
  if (l.sequence_parallel) o.push_back("sequence_parallel=true");
  if (!l.secondary.empty()) o.push_back("placement.secondary=" + l.secondary);
  if (!l.hold.empty()) o.push_back("hold=" + l.hold);
  if (!l.embedding.empty()) o.push_back("embedding_sync=" + l.embedding);
  if (!l.partition.empty()) o.push_back("pipe_partition_method=" + l.partition);
  if (l.ranks_per_node > 0) o.push_back("ranks_per_node=" + std::to_string(l.ranks_per_node));
  if (l.recompute == "full") o.push_back("checkpoint_activations=true");
  if (l.recompute == "selective") o.push_back("recompute_granularity=selective");
  o.insert(o.end(), l.more.begin(), l.more.end());
  return o;
}

// Sample `number` of the stream: its tokens follow a noisy rule, so that there is something to learn.
Batch make_batch(const DocumentRules& documents, int64_t first, int64_t rows) {
  Batch b;
  b.first_sample = first, b.rows = rows;
  for (int64_t r = 0; r < rows; ++r) {
    uint64_t state = static_cast<uint64_t>(first + r) * 0x9E3779B97F4A7C15ull + 1;
    int32_t token = static_cast<int32_t>(state >> 33) % kVocab;
    for (int t = 0; t < kLength; ++t) {
      b.inputs.push_back(token);
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      token = (state >> 60) < 3 ? static_cast<int32_t>((state >> 33) % kVocab) : (token * 5 + 7) % kVocab;
      b.targets.push_back(token);
    }
    b.sample_ids.push_back(first + r);
  }
  apply_document_rules(documents, kLength, b);
  return b;
}

// The wire law, at run time: every site sends what --dry-run says, to the byte.
void check_prices(const SitePrices& prices, const StepOutcome& outcome) {
  for (size_t site = 0; site < kSiteNames.size(); ++site) {
    const int64_t sent = outcome.sites[site].wire_bytes;
    TW_CHECK(prices[site].exact ? sent == prices[site].bytes : sent <= prices[site].bytes, kSiteNames[site], ": sent ",
             sent, " bytes, priced ", prices[site].bytes);
  }
}

uint64_t hash_of(Replica& replica, View v, uint64_t hash) {
  std::vector<unsigned char> bytes(v.bytes());
  if (!bytes.empty()) replica.read(v, bytes.data());
  for (size_t i = 0; i < bytes.size(); ++i) hash = (hash ^ bytes[i]) * 1099511628211ull;
  return hash;
}

// Of lines "key hash" that all ranks bring: one hash per key. Returns how many ranks brought each key.
std::map<std::string, int> check_same(Job& job, const std::string& mine, const char* what) {
  std::map<std::string, std::string> hash_of_key;
  std::map<std::string, int> holders;
  for (const std::string& text : job.control().collect(mine)) {
    std::istringstream lines(text);
    for (std::string key, hash; lines >> key >> hash; ++holders[key]) {
      const auto [at, first] = hash_of_key.emplace(key, hash);
      TW_CHECK(at->second == hash, what, " ", key, " differ");
    }
  }
  return holders;
}

constexpr uint64_t kHashStart = 1469598103934665603ull;

// The replica law: ranks that hold the same range of a unit hold the same bits, whether that is all of it, a share of
// sharded weights, or a tied embedding's copy on the other stage. (A unit has one number on all stages.)
void check_replicas(Job& job, Replica& replica) {
  const RankLayout& layout = replica.layout();
  std::ostringstream mine;
  for (size_t u = 0; u < replica.store().units().size(); ++u) {
    const UnitMemory& unit = replica.store().units()[u];
    if (unit.count == 0 || unit.shard.weights.count == 0) continue;
    const Range& range = unit.shard.weights;
    mine << (unit.tied ? "tied." : "unit.") << u << ".tensor." << layout.at.tensor << ".at." << range.first << '+'
         << range.count << ' ' << hash_of(replica, unit.weights, kHashStart) << '\n';
  }
  const std::map<std::string, int> holders = check_same(job, mine.str(), "replicas of");
  for (const auto& [key, count] : holders)
    TW_CHECK(!job.first() || key.rfind("tied.", 0) != 0 || count >= 2, key, " has one holder, not one on each stage");
}

// Hashes what a visit shows, wherever it lies.
class HashingVisitor final : public StateVisitor {
 public:
  HashingVisitor(Replica& replica, std::ostream& out) : replica_(replica), out_(out) {}
  void tensor(const GlobalSlice& slice) override {
    std::vector<unsigned char> bytes(slice.local.bytes());
    replica_.device().copy_at_rest(bytes.data(), slice.local.data, bytes.size());
    uint64_t hash = kHashStart;
    for (unsigned char byte : bytes) hash = (hash ^ byte) * 1099511628211ull;
    out_ << slice.name << ' ' << hash << '\n';
  }
  void integer(const std::string& name, int64_t& value) override { out_ << name << ' ' << value << '\n'; }
  void real(const std::string& name, double& value) override { out_ << name << ' ' << value << '\n'; }
  void text(const std::string& name, std::string& value) override { out_ << name << ' ' << value << '\n'; }

 private:
  Replica& replica_;
  std::ostream& out_;
};

// What is gathered of sharded weights is the same on all ranks, forward and backward (there from the secondary copy,
// where there is one and the memory was another's since), and where weights are not coded it is the ranks' own shares.
void check_gathers(Job& job, Replica& replica) {
  const RankLayout& layout = replica.layout();
  const bool coded = replica.config().compression.rules.contains(Site::kZeroParameter);
  std::vector<UnitUse> uses;
  for (size_t u = 0; u < replica.store().units().size(); ++u)
    if (replica.store().units()[u].shard.gather.members.size() > 1) uses.push_back({static_cast<int>(u), false});
  for (size_t i = uses.size(); i-- > 0;) uses.push_back({uses[i].unit, true});
  std::ostringstream mine;
  UnitTraffic& traffic = replica.traffic();
  traffic.begin(uses);
  for (const UnitUse& use : uses) {
    const UnitMemory& unit = replica.store().units()[static_cast<size_t>(use.unit)];
    traffic.acquire(use.unit, use.backward);
    const Range& range = unit.shard.weights;
    TW_CHECK(coded || hash_of(replica, unit.full.element_range(range.first, range.count), kHashStart) ==
                          hash_of(replica, unit.weights, kHashStart),
             "unit ", use.unit, use.backward ? " backward" : " forward", ": gathered what this rank does not have");
    mine << "unit." << use.unit << (coded ? use.backward ? ".backward" : ".forward" : "") << ".tensor."
         << layout.at.tensor << ' ' << hash_of(replica, unit.full, kHashStart) << '\n';
    traffic.release(use.unit, use.backward);
    traffic.set_node_end();
  }
  check_same(job, mine.str(), "gathered copies of");
  traffic.drain();
}

// All state of a rank between two jobs, as a checkpoint would hold it.
struct Kept {
  std::map<std::string, std::vector<char>> tensors;
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> reals;
  TrainProgress progress;
  std::optional<LossScaler> scaler;
};

class KeepingVisitor final : public StateVisitor {
 public:
  // loads: from `kept`, else into it.
  KeepingVisitor(Device& device, Kept& kept, bool loads) : device_(device), kept_(kept), loads_(loads) {}
  void tensor(const GlobalSlice& s) override {
    std::vector<char>& bytes = kept_.tensors[s.name + "@" + std::to_string(s.row) + "." + std::to_string(s.col) + "." +
                                             std::to_string(s.first)];
    TW_CHECK(loads_ ? bytes.size() == s.local.bytes() : bytes.empty(), s.name, " in another size, or twice");
    if (!loads_) bytes.resize(s.local.bytes());
    device_.copy_at_rest(loads_ ? s.local.data : bytes.data(), loads_ ? bytes.data() : s.local.data, bytes.size());
  }
  void integer(const std::string& name, int64_t& value) override {
    loads_ ? value = kept_.integers.at(name) : kept_.integers[name] = value;
  }
  void real(const std::string& name, double& value) override {
    loads_ ? value = kept_.reals.at(name) : kept_.reals[name] = value;
  }
  void text(const std::string&, std::string&) override { TW_CHECK(false, "a text among the tensors"); }

 private:
  Device& device_;
  Kept& kept_;
  bool loads_;
};

// What one run is: the configuration's overrides, and what is asked of it.
struct Order {
  std::vector<std::string> overrides;
  int steps = 1, first_sample = 0;
  bool fake_gpu = false;
  const OpTable* kernels = nullptr;
  bool stages = false;
  test::FakeFabric* fabric = nullptr;  // what the ranks' devices talk over, and where it says what was wrong
  test::Findings* findings = nullptr;
  const Tensors* weights = nullptr;
  FirstUpdate* first = nullptr;       // filled by rank 0
  std::vector<Kept>* kept = nullptr;  // by rank: filled at the end, or (resumes) gone on from
  bool resumes = false;
  std::function<void(int step)> between = {};
};

Curve run_rank(Transport& transport, const Order& order) {
  Job job(transport);
  ConfigOptions options;
  options.ranks = job.size();
  RunConfig config;
  job.agree([&] { config = load_config({}, order.overrides, options).run; });
  job.form_mesh(config, "mesh law");
  Backend backend;
  std::unique_ptr<DeviceTraffic> traffic;
  test::RunnerGpu* runner = nullptr;
  if (order.fabric != nullptr) {
    auto gpu = std::make_unique<test::RunnerGpu>(*order.findings, static_cast<uint64_t>(job.rank()) + 1, 200);
    runner = gpu.get();
    backend = {std::move(gpu), &test::runner_gpu_ops()};
    const auto open = [&](Device& device, Stream& stream) {
      auto calls = std::make_unique<test::FakeNccl>(*order.fabric, device);
      if (order.kernels != nullptr) calls->use_kernels(*order.kernels, stream);
      return calls;
    };
    DeviceTraffic::Options options;
    options.scratch_bytes = 256 << 10;
    traffic = std::make_unique<DeviceTraffic>(*backend.device, open, options);
    if (job.mesh() != nullptr) job.mesh()->use_device(traffic.get());
  } else if (order.fake_gpu)
    backend = {std::make_unique<test::FakeGpu>(), &test::fake_gpu_ops()};
  else
    backend = open_backend(config.device, job.rank());
  Replica replica(config, layout_of(config, job.rank(), job.nodes()), job.mesh(), backend.device.get(), backend.ops,
                  true);
  replica.connect();
  replica.set_fresh_weights();
  if (order.weights != nullptr && !order.weights->empty()) {
    for (const auto& [name, values] : *order.weights)
      replica.store().set(replica.device(), replica.stream(), name, values);
    replica.weights_changed();
  }
  BareTraining training(replica);
  if (order.resumes) {
    Kept& kept = order.kept->at(static_cast<size_t>(job.rank()));
    KeepingVisitor loading(replica.device(), kept, true);
    replica.visit(loading, false);
    replica.weights_changed(replica.has_replica_state());
    training.progress = kept.progress, training.scaler = *kept.scaler;
  }
  Curve curve;
  FirstUpdate told;
  if (order.first != nullptr) {
    told.before = gather_tensors(replica, {});
    training.step.set_gradient_sink([&] {
      std::vector<View> pieces;
      for (const OwnedPiece& piece : replica.store().owned()) pieces.push_back(piece.gradient);
      told.gradient = gather_tensors(replica, pieces);
    });
  }
  int64_t warm_up = 0;  // prices are those behind it
  for (const auto& [site, rules] : config.compression.rules)
    for (const SiteRule& rule : rules) warm_up = std::max(warm_up, rule.warmup_steps);
  StepRehearsal rehearsal(config, replica.layout());
  const SitePrices prices = rehearsal.take_step(static_cast<int>(config.accumulation));
  const int64_t dp = replica.layout().data_size(), d = replica.layout().data_rank(), rows = config.data.micro_batch;
  const auto between = [&](int step) {
    if (!order.between) return;
    job.control().barrier();
    if (job.first()) order.between(step);
    job.control().barrier();
  };
  std::vector<Batch> batches;  // made before, so that a step's allocations are the engine's own
  for (int s = 0; s < order.steps; ++s) {
    for (int64_t micro = 0; micro < config.accumulation; ++micro)
      batches.push_back(make_batch(config.data.documents,
                                   order.first_sample + s * config.data.global_batch + (micro * dp + d) * rows, rows));
  }
  const bool offloads =
      std::ranges::any_of(order.overrides, [](const std::string& o) { return o.starts_with("activation_offload="); });
  TW_CHECK(!offloads || (replica.token_store() != nullptr && replica.token_store()->spills()), "nothing is offloaded");
  curve.loss.reserve(static_cast<size_t>(order.steps)), curve.norm.reserve(static_cast<size_t>(order.steps));
  auto batch = batches.begin();
  bool stepped = true;  // the step before was not skipped
  const int64_t host_bytes = runner != nullptr ? runner->host_bytes() : 0;
  for (int s = 0; s < order.steps; ++s) {
    between(s);
    const StepOutcome outcome =
        training.take_step(static_cast<int>(config.accumulation), [&] { return std::move(*batch++); });
    curve.loss.push_back(outcome.loss), curve.norm.push_back(outcome.skipped ? -1.0 : outcome.grad_norm);
    curve.wire.assign(outcome.wire_total.begin(), outcome.wire_total.end());
    if (const TokenStore* tokens = replica.token_store(); s == 0 && tokens != nullptr && tokens->spills()) {
      const TokenStore& priced = *rehearsal.replica().token_store();
      TW_CHECK(tokens->written() == priced.written() && tokens->read_back() == priced.read_back(),
               "offload: ", tokens->written(), " bytes written and ", tokens->read_back(), " read back, priced ",
               priced.written(), " and ", priced.read_back());
    }
    // (The price is that of the host's algorithms, which between nodes are others.)
    const bool priced = runner == nullptr || config.layout.ranks_per_node == 0;
    if (s > warm_up && job.mesh() != nullptr && !order.between && priced && stepped)
      check_prices(prices, outcome);  // the first has no gathers behind a step
    stepped = !outcome.skipped;
  }
  if (runner != nullptr) {
    // Tokens went to the device and sums came back, chunks out and in, and nothing else crossed: what ranks send each
    // other stays there.
    const TokenStore* store = replica.token_store();
    const int64_t moved = store != nullptr ? store->written() + store->read_back() : 0;
    const int64_t tokens = config.accumulation * replica.chunks() * config.data.micro_batch * (kLength * 20 + 8);
    const int64_t crossed = runner->host_bytes() - host_bytes;
    TW_CHECK(order.stages || crossed - moved <= order.steps * (tokens + 2048), crossed,
             " bytes crossed between host and device, ", moved, " of them chunks");
    TW_CHECK((order.stages || moved > 0) == (runner->host_blocks() > 0), runner->host_blocks(), " blocks were staged");
  }
  between(order.steps);
  replica.traffic().finish_param_sync();
  replica.traffic().drain();
  check_replicas(job, replica);
  check_weight_hashes(replica, order.steps);  // the engine's own: whole tensors of tensor ranks, gathered copies
  // What codecs keep is what was planned before the mesh was there, but for a few KiB of lists and of small matrices
  // that low_rank and sketch take when they are first used. (On a device low_rank works in the scratch of its ops,
  // which all messages share: it keeps less.)
  const int64_t kept = job.mesh() != nullptr ? job.mesh()->state_bytes() : 0;
  const auto planned = static_cast<int64_t>(rehearsal.replica().memory()[MemoryCategory::kResiduals]);
  const bool rounds = std::ranges::any_of(config.compression.rules, [](const auto& site) {
    return std::ranges::any_of(site.second, [](const SiteRule& rule) { return codec_row(rule.codec.codec).rounds; });
  });
  const bool less = rounds && order.kernels != nullptr;
  TW_CHECK((less || kept >= planned) && kept <= planned + (rounds ? planned / 200 + (16 << 10) : 0), "codecs keep ",
           kept, " bytes where ", planned, " were planned");
  if (order.first != nullptr) {
    told.after = gather_tensors(replica, {});
    told.loss = curve.loss.front(), told.wire = curve.wire;
    if (job.first()) *order.first = std::move(told);
  }
  if (order.kept != nullptr && !order.resumes) {
    Kept& kept = order.kept->at(static_cast<size_t>(job.rank()));
    KeepingVisitor saving(replica.device(), kept, false);
    replica.visit(saving, false);
    kept.progress = training.progress, kept.scaler = training.scaler;
  }
  std::ostringstream mine;
  HashingVisitor hashes(replica, mine);
  replica.visit(hashes, false);
  for (const std::string& text : job.control().collect(mine.str())) curve.end += text;
  curve.end = job.control().share(curve.end);
  check_gathers(job, replica);  // the last: it counts, and may code, once more
  job.control().barrier();
  return curve;
}

}  // namespace

std::string Layout::name() const {
  std::ostringstream text;
  text << "pp" << pipeline << " dp" << data << " cp" << context << " tp" << tensor << (sequence_parallel ? " sp" : "")
       << " " << schedule;
  if (chunks > 1) text << " v" << chunks;
  text << " w=" << weights << " g=" << gradients << " o=" << optimizer;
  if (!secondary.empty()) text << " s=" << secondary;
  if (!hold.empty()) text << " hold=" << hold;
  if (!embedding.empty()) text << " embedding=" << embedding;
  text << " acc" << accumulation;
  if (!recompute.empty()) text << " recompute=" << recompute;
  if (ranks_per_node > 0) text << " per_node=" << ranks_per_node;
  if (!partition.empty()) text << " partition=" << partition;
  for (const std::string& o : more) text << " " << o;
  return text.str();
}

namespace {

std::vector<std::string> overrides_of(const Model& model, const Layout& layout, int samples) {
  std::vector<std::string> overrides = model_overrides(model);
  // The same laws on a GPU: ranks are threads that share it.
  if (const char* device = std::getenv("THINWIRE_TEST_DEVICE")) overrides.push_back(std::string("device=") + device);
  for (const std::string& o : layout_overrides(layout, samples)) overrides.push_back(o);
  return overrides;
}

Curve run_order(const Layout& layout, Order order) {
  test::Findings findings;
  test::FakeFabric fabric(findings, 60.0);
  if (layout.fake_nccl)
    order.fabric = &fabric, order.findings = &findings, order.kernels = layout.kernels, order.stages = layout.stages;
  std::vector<Curve> curves(static_cast<size_t>(layout.ranks()));
  run_local_ranks(layout.ranks(), [&](Transport& transport) {
    curves[static_cast<size_t>(transport.rank())] = run_rank(transport, order);
  });
  TW_CHECK(!findings.any(), findings.text());
  for (const Curve& c : curves) TW_CHECK(c == curves[0], "ranks report different losses, norms or bytes");
  return curves[0];
}

}  // namespace

Curve run(const Model& model, const Layout& layout, int samples, int steps,
          const std::function<void(int step)>& between) {
  return run_order(layout, {.overrides = overrides_of(model, layout, samples),
                            .steps = steps,
                            .fake_gpu = layout.fake_gpu,
                            .between = between});
}

Curve run_resumed(const Model& model, const Layout& first, const Layout& then, int samples, int steps, int at) {
  std::vector<Kept> kept(static_cast<size_t>(first.ranks()));
  Curve curve = run_order(
      first,
      {.overrides = overrides_of(model, first, samples), .steps = at, .fake_gpu = first.fake_gpu, .kept = &kept});
  const Curve rest = run_order(then, {.overrides = overrides_of(model, then, samples),
                                      .steps = steps - at,
                                      .first_sample = at * samples,
                                      .fake_gpu = then.fake_gpu,
                                      .kept = &kept,
                                      .resumes = true});
  curve.loss.insert(curve.loss.end(), rest.loss.begin(), rest.loss.end());
  curve.norm.insert(curve.norm.end(), rest.norm.begin(), rest.norm.end());
  curve.wire = rest.wire, curve.end = rest.end;
  return curve;
}

FirstUpdate first_update(const Model& model, const Layout& layout, int samples, int first_sample,
                         const Tensors& weights) {
  FirstUpdate first;
  run_order(layout, {.overrides = overrides_of(model, layout, samples),
                     .first_sample = first_sample,
                     .fake_gpu = layout.fake_gpu,
                     .weights = &weights,
                     .first = &first});
  return first;
}

double tolerance(const Model& model, int samples, int step, bool of_norm) {
  // Of a mean over as many numbers, each rounded by itself.
  const double rounding = model.dtype == "fp32" ? 0.0 : std::ldexp(1.0, -8) / std::sqrt(samples * double{kLength});
  const double longest = std::max(400.0, of_norm ? static_cast<double>(samples * kLength) : 0.0);
  const double sums = (7.0 * model.layers + 3.0) * (of_norm ? 3.0 : 1.0);
  return 6.0 * (std::ldexp(1.0, -24) * std::sqrt(longest) + rounding) * std::sqrt(sums) * std::sqrt(2.0) * step;
}

std::string compare(const Model& model, const Layout& layout, int samples, int steps, Worst* worst) {
  static std::mutex mutex;
  static std::map<std::string, Curve> known;  // the one-rank runs, by model and batch
  const std::string key = model.family + "/" + std::to_string(model.layers) + "/" + model.dtype + "/" +
                          std::to_string(model.dropout) + (model.documents ? "d" : "") + "w" +
                          std::to_string(model.window) + "/" + std::to_string(samples) + "/" + std::to_string(steps);
  Curve one;
  {
    const std::lock_guard lock(mutex);
    if (known.find(key) == known.end()) known[key] = run(model, Layout{}, samples, steps);
    one = known[key];
  }
  Curve many;
  try {
    many = run(model, layout, samples, steps);
  } catch (const std::exception& e) {
    return model.family + ", " + layout.name() + ": " + e.what();
  }
  for (int s = 0; s < steps; ++s) {
    const size_t i = static_cast<size_t>(s);
    const double loss = std::abs(many.loss[i] - one.loss[i]) / std::abs(one.loss[i]);
    const double norm = std::abs(many.norm[i] - one.norm[i]) / std::abs(one.norm[i]);
    if (worst != nullptr) {
      worst->loss = std::max(worst->loss, loss), worst->norm = std::max(worst->norm, norm);
      worst->of_tolerance = std::max({worst->of_tolerance, loss / tolerance(model, samples, s + 1, false),
                                      norm / tolerance(model, samples, s + 1, true)});
    }
    if (!(loss <= tolerance(model, samples, s + 1, false)) || !(norm <= tolerance(model, samples, s + 1, true))) {
      std::ostringstream text;
      text.precision(9);
      text << model.family << " " << model.layers << " layers " << model.dtype << ", " << layout.name() << ": step "
           << s + 1 << " loss " << many.loss[i] << " (one rank " << one.loss[i] << ", off " << loss << " of "
           << tolerance(model, samples, s + 1, false) << "), norm " << many.norm[i] << " (" << one.norm[i] << ", off "
           << norm << " of " << tolerance(model, samples, s + 1, true) << ")";
      return text.str();
    }
  }
  return "";
}

}  // namespace thinwire::mesh
