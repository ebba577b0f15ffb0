// Builds a replica of the shape and times steps; the first ones warm up caches and are not counted.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/base/core/error.h"
#include "engine/base/ops/op_watch.h"
#include "engine/run/bench/benches.h"
#include "engine/run/config/load_config.h"
#include "engine/run/trace/flops.h"
#include "engine/run/trace/memory_probe.h"
#include "engine/run/train/backend.h"
#include "engine/run/train/bare_training.h"
#include "engine/run/train/device_traffic_choice.h"
#include "engine/run/train/dry_run.h"
#include "engine/run/train/product_choice.h"
#include "engine/run/train/synthetic_batches.h"
#include "engine/run/train/trainer.h"

namespace thinwire {
namespace {

void add_sites(std::array<SiteCounters, kSiteNames.size()>& sum, const StepOutcome& outcome) {
  for (size_t site = 0; site < sum.size(); ++site) {
    sum[site].operations += outcome.sites[site].operations;
    sum[site].wire_bytes += outcome.sites[site].wire_bytes;
    sum[site].busy_ns += outcome.sites[site].busy_ns;
    sum[site].exposed_ns += outcome.sites[site].exposed_ns;
    sum[site].compression.add(outcome.sites[site].compression);
  }
}

}  // namespace

int bench_step(const StepBench& bench, Job& job) {
  const auto& [shape, overrides, json, profile, warm_up] = bench;
  std::vector<std::string> all = shape_overrides(shape);
  if (all.empty()) throw_usage("bench step: no shape \"" + shape + "\" (known: " + shape_names() + ")");
  all.emplace_back("run_dir=runs/bench");
  all.insert(all.end(), overrides.begin(), overrides.end());
  ConfigOptions options;
  options.data_required = false;
  options.ranks = job.size();
  options.found_ranks_per_node = job.ranks_per_node(), options.machines = job.machines();
  RunConfig config;
  job.agree([&] {
    config = load_config({}, all, options).run;
    refuse_what_is_not_here(config);
  });
  job.form_mesh(config, shape);
  job.share_cores(config);

  Backend backend;
  job.agree([&] { backend = open_backend(config.device, job.local_rank()); });
  const std::unique_ptr<DeviceTraffic> traffic = choose_device_traffic(config, job, *backend.device);
  const RankLayout layout = layout_of(config, job.rank(), job.nodes());
  const WatchedTable table = make_watched_table(*backend.ops);  // outlives the replica's Exec, as the profile does
  OpProfile op_times;
  const ProductTable products = choose_products(config, job, *backend.device, *backend.ops);
  Replica replica(config, layout, job.mesh(), backend.device.get(), backend.ops, true);
  replica.connect();
  use_products(replica.exec(), products);
  if (profile) replica.use_exec(make_watched_exec(table, *backend.device, replica.exec(), op_times));
  replica.set_fresh_weights();
  BareTraining training(replica);
  const int micros = static_cast<int>(config.accumulation);
  int64_t next = 0;
  const auto batches = [&] {
    const int64_t index = next++ * layout.data_size() + layout.data_rank();
    return synthetic_batch(index, config.data.micro_batch, config.data.seq_length, config.model.vocab);
  };

  const int64_t counted = std::max<int64_t>(1, config.train_iters);
  std::vector<double> ms;
  std::array<SiteCounters, kSiteNames.size()> sites{};
  double loss = 0.0;
  for (int64_t i = 0; i < warm_up + counted; ++i) {
    if (i == warm_up) {
      training.timer.reset();
      op_times.times.clear();
      op_times.sizes.clear();
    }
    const auto start = std::chrono::steady_clock::now();
    const StepOutcome outcome = [&] {
      try {
        return training.take_step(micros, batches);
      } catch (const AgreedError&) {
        throw;
      } catch (const Error& e) {
        job.end_all(e.code(), e.what());  // before the replica goes: its memory may wait for messages of others
        throw;
      }
    }();
    loss = outcome.loss;
    if (i >= warm_up) add_sites(sites, outcome);
    const double took = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    if (i >= warm_up) ms.push_back(took);
    if (!json && job.first()) std::printf("step %lld: %.1f ms, loss %.4f\n", static_cast<long long>(i + 1), took, loss);
  }
  replica.traffic().drain();
  if (!job.first()) return 0;
  const int64_t peak =
      backend.device->memory_total() > 0 ? static_cast<int64_t>(backend.device->memory_peak()) : peak_rss_bytes();
  const double step_ms = median(ms);
  const double tokens = static_cast<double>(config.data.global_batch * config.data.seq_length);
  const double tokens_per_s = tokens / step_ms * 1e3;
  nlohmann::ordered_json line = {
      {"bench", "step"},
      {"shape", shape},
      {"dtype", name_of(config.model.dtype)},
      {"threads", replica.exec().threads},
      {"device", backend.device->description()},
      {"isa", backend.ops->isa()},
      {"tokens_per_s", tokens_per_s},
      {"step_ms", step_ms},
      {"step_ms_min", *std::min_element(ms.begin(), ms.end())},
      {"steps", counted},
      {"ranks", job.size()},
      {"model_tflops_per_rank", tokens_per_s * model_flops_per_token(config.model) / 1e12 / job.size()},
      {"model_tflops_full_attn", tokens_per_s * full_attention_flops_per_token(config.model) / 1e12 / job.size()},
      {"memory_peak_bytes", peak},
      {"memory_plan_bytes", replica.memory().total() + process_overhead(config)},
      {"loss", loss}};
  for (StepPart part : {StepPart::kForward, StepPart::kBackward, StepPart::kOptimizer}) {
    line["time_ms"][std::string(name_of(part))] = training.timer.ms(part) / static_cast<double>(counted);
  }
  for (size_t site = 0; site < sites.size(); ++site) {
    const SiteCounters& c = sites[site];
    if (c.operations == 0) continue;
    const double n = static_cast<double>(counted);
    const auto mean_ms = [n](int64_t ns) { return static_cast<double>(ns) * 1e-6 / n; };
    line["comm"][std::string(kSiteNames[site])] = {{"wire_bytes", static_cast<double>(c.wire_bytes) / n},
                                                   {"encode_ms", mean_ms(c.compression.encode_ns)},
                                                   {"decode_ms", mean_ms(c.compression.decode_ns)},
                                                   {"busy_ms", mean_ms(c.busy_ns)},
                                                   {"exposed_ms", mean_ms(c.exposed_ns)}};
  }
  if (profile) {
    line["each_ms"] = ms;
    for (const auto& [name, t] : op_times.times) {
      const double per_step = t.ms / static_cast<double>(counted);
      line["ops"][name] = {
          {"ms", per_step}, {"calls", t.calls / counted}, {"share", t.ms / static_cast<double>(counted) / step_ms}};
      if (t.flops > 0.0) line["ops"][name]["gflops"] = t.flops / t.ms / 1e6;
      if (!json)
        std::printf("%-20s %9.2f ms  %5.1f %%  %s\n", name.c_str(), per_step, 100.0 * per_step / step_ms,
                    t.flops > 0.0 ? (std::to_string(static_cast<int>(t.flops / t.ms / 1e6)) + " GFLOP/s").c_str() : "");
    }
  }
  for (const auto& [size, t] : op_times.sizes)
    line["sizes"].push_back({{"op", size.op},
                             {"flops", size.flops},
                             {"bytes", size.bytes},
                             {"calls", t.calls},
                             {"ms", t.ms},
                             {"least_ms", t.least_ms}});
  std::string command =
      (job.size() > 1 ? "mpirun -n " + std::to_string(job.size()) + " " : "") + "build/bench step " + shape;
  for (const std::string& o : overrides) command += " " + o;
  if (profile) command += " --profile";
  if (warm_up != StepBench{}.warm_up) command += " --warm-up " + std::to_string(warm_up);
  line["command"] = command + " --json";
  if (json) {
    std::printf("%s\n", line.dump().c_str());
  } else {
    std::printf("%s %s: %.0f tokens/s, %.1f ms, %.3f model TFLOP/s (causal), peak %lld MiB\n", shape.c_str(),
                line["dtype"].get<std::string>().c_str(), tokens_per_s, step_ms,
                line["model_tflops_per_rank"].get<double>(), static_cast<long long>(peak >> 20));
    std::printf("again: %s\n", line["command"].get<std::string>().c_str());
  }
  return 0;
}

}  // namespace thinwire
