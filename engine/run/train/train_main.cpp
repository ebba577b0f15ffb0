// The program `train`: reads its command line and configuration, then prices, prints or trains.
#include <CLI/CLI.hpp>
#include <ctime>
#include <functional>
#include <iostream>

#include "data/sample_stream.h"
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/text.h"
#include "engine/base/core/version.h"
#include "engine/base/ops/ops.h"
#include "engine/run/checkpoint/run_lock.h"
#include "engine/run/config/key_table.h"
#include "engine/run/config/resolved_json.h"
#include "engine/run/trace/memory_probe.h"
#include "engine/run/trace/run_files.h"
#include "engine/run/trace/status_file.h"
#include "engine/run/train/compression_setup.h"
#include "engine/run/train/dry_run.h"
#include "engine/run/train/memory_check.h"
#include "engine/run/train/plan_picture.h"
#include "engine/run/train/plan_revisions.h"
#include "engine/run/train/planner_port.h"
#include "engine/run/train/process_setup.h"
#include "engine/run/train/rank_layout.h"
#include "engine/run/train/trainer.h"
#include "parallel/schedule/plan.h"
#include "parallel/wire/launcher.h"

namespace {

using namespace thinwire;

struct Options {
  std::vector<std::string> configs;
  std::vector<std::string> overrides;
  std::vector<std::string> args_files, megatron_words;
  bool dry_run = false, print_config = false, print_schedule = false, allow_faults = false;
  int64_t ranks = 0, print_samples = -1;
  std::string format = "text", cluster;
};

// job: nullptr where nobody trains, or before the ranks have met.
ResolvedConfig load(const Options& o, int64_t ranks, const Job* job, int argc, char** argv, bool data_required = true) {
  ConfigOptions options;
  if (job != nullptr) options.found_ranks_per_node = job->ranks_per_node(), options.machines = job->machines();
  if (o.dry_run && !o.cluster.empty()) {
    const ClusterShape shape = cluster_shape(o.cluster);
    options.found_ranks_per_node = shape.ranks_per_node;
    if (ranks == 0) ranks = shape.ranks;
  }
  options.dry_run = o.dry_run;
  options.ranks = ranks;
  options.data_required = data_required && !o.dry_run && !o.print_schedule && !o.print_config;
  options.allow_faults = o.allow_faults;
  options.args_files = o.args_files, options.megatron_words = o.megatron_words;
  ResolvedConfig config = load_config(o.configs, o.overrides, options);
  for (int i = 0; i < argc; ++i) config.run.command_line += (i > 0 ? " " : "") + std::string(argv[i]);
  return config;
}

// Of the last status that rank 0 wrote; 0 if there is none.
int64_t last_step(const std::string& run_dir) {
  try {
    return read_status(status_path(run_dir)).step;
  } catch (const Error&) {
    return 0;
  }
}

// What must be equal on all ranks: the build and every key.
std::string fingerprint_of(const ResolvedConfig& config) {
  const std::string keys = resolved_json(config).dump();
  return version_text("train", cpu_ops().isa()).substr(0, 40) + " keys " +
         std::to_string(std::hash<std::string>{}(keys));
}

// For the report, which puts it beside what the run measures.
void write_prediction(const RunConfig& config, const std::string& cluster) {
  const std::string line = predicted_json(config, cluster);
  if (config.run_dir.empty() || is_locked(config.run_dir)) return;  // the lock is taken, and refused, later
  make_directories(config.run_dir);
  write_file_atomic(prediction_path(config.run_dir), line, false);
}

int print(const Options& o, const ResolvedConfig& config) {
  if (o.print_config) {
    std::puts(resolved_json(config).dump(2).c_str());
  } else if (o.dry_run) {
    if (const std::string& path = config.run.compression.revisions; !path.empty())
      PlanRevisions::replayed(path, read_revisions(path), config, coding_ways(config.run, mesh_shape(config.run)));
    std::fputs(dry_run_text(config.run).c_str(), stdout);
    if (!o.cluster.empty()) std::fputs(predicted_text(config.run, o.cluster).c_str(), stdout);
    const std::vector<std::string> notes = note_lines(config);
    if (!notes.empty()) std::puts("keys without effect, or read otherwise than where they come from:");
    for (const std::string& line : notes) std::printf("  %s\n", line.c_str());
  } else if (o.print_schedule) {
    const RankLayout layout = layout_of(config.run, 0);
    const std::vector<Plan> plans = make_plans(layout.pipeline);
    if (o.format == "svg") {
      std::fputs(plan_picture(plans, layout.pipeline, node_costs(config.run)).c_str(), stdout);
    } else {
      for (size_t stage = 0; stage < plans.size(); ++stage)
        std::printf("rank %zu: %s\n", stage, to_string(plans[stage]).c_str());
    }
  } else {
    SampleStream stream(config.run.data, EvalCheck::kLeaveOut);
    print_samples(stream, o.print_samples, std::cout);
  }
  finish_printing("train");
  return 0;
}

constexpr const char* kFooter =
    R"(Keys that most runs set (--help-keys lists all, --help-keys lr those about lr):
  data_path=PREFIX  run_dir=DIR  train_iters=N  train_batch_size=N
  optimizer.params.lr=1e-3  precision=bfloat16  compression=PRESET
  model_parallel_size=N  pipe_parallel_size=N  zero_optimization.stage=0..3
Examples:
  train --config gpt2_tiny.json --dry-run
  mpirun -n 2 train --config gpt2_tiny.json train_iters=50 compression=thinwire
Exit codes: 0 finished, 64 usage, 65 bad data or checkpoint, 70 internal,
71 hung peer (requeue), 73 run directory busy, 74 I/O, 75 preempted and saved
(requeue), 76 diverged, 78 bad configuration.)";

int print_keys(const std::string& pattern) {
  const std::string text = help_keys(pattern);
  if (text.empty()) {
    const std::string nearest = key_table().nearest(normalised_key(pattern));
    throw_usage("train: no configuration key is about \"" + pattern + "\"" +
                (nearest.empty() ? "" : "; nearest: " + nearest) + " (train --help-keys lists all)");
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

// Takes flags that are keys (`--num-layers 12 --bf16`) out of the words, with the values behind them; an override
// (key=value) ends a flag's values.
std::vector<std::string> take_key_flags(std::vector<char*>& words) {
  const auto names_key = [](const std::string& name) {
    const std::string key = normalised_key(name.substr(0, name.find('=')));
    return key_table().find(key) != nullptr || key_table().is_section(key);
  };
  std::vector<std::string> taken;
  std::vector<char*> left;
  bool inside = false;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string word = words[i];
    if (i > 0 && word.compare(0, 2, "--") == 0)
      inside = names_key(word.substr(2));
    else if (word.find('=') != std::string::npos && names_key(word))
      inside = false;
    if (inside)
      taken.push_back(word);
    else
      left.push_back(words[i]);
  }
  words = left;
  return taken;
}

int run(const Options& o, int argc, char** argv) {
  if (o.configs.empty() && o.overrides.empty() && o.args_files.empty() && o.megatron_words.empty()) {
    throw_usage("train: no configuration; use train --config configs/quickstart.json (train --help)");
  }
  const bool trains = !o.dry_run && !o.print_config && !o.print_schedule && o.print_samples < 0;
  if (trains && o.ranks > 0)
    throw_usage("train: --ranks is for --dry-run; mpirun -n " + std::to_string(o.ranks) + " starts as many");
  const Launch launched = launch_of_environment();
  if (!trains) {
    // Needs no other ranks: rank 0 speaks for all, so that a message and a printed line appear once.
    if (launched.rank > 0) return 0;
    return print(o, load(o, o.ranks > 0 || launched.count == 1 ? o.ranks : launched.count, nullptr, argc, argv));
  }
  ResolvedConfig config;
  const auto write_end = [&config, began = utc_text(std::time(nullptr))](const std::string& message, ExitCode code) {
    StatusFile file(status_path(config.run.run_dir), config.run.train_iters);
    file.adopt(began);
    file.ended(code, last_step(config.run.run_dir), message);
  };
  const auto write_lost = [&](const std::string& message) { write_end(message, ExitCode::kHungPeer); };
  Keeper::Options keeping;
  if (launched.count > 1) {
    // Before the ranks meet: how long that may take, and where to write that it took longer. What is wrong with the
    // configuration is said when they have met.
    failure_of([&] { config = load(o, launched.count, nullptr, argc, argv, false); });
    keeping.start_seconds = config.run.layout.start_timeout_s;
    keeping.on_end = [&](const std::string& message, Keeper::Note note, int code) {
      if (config.run.run_dir.empty() || (note == Keeper::Note::kStarting && is_locked(config.run.run_dir))) return;
      make_directories(config.run.run_dir);
      write_end(message, static_cast<ExitCode>(code));
    };
    keeping.lost_memory = [before = memory_kills()](const std::string& planned, int64_t peak) {
      return memory_kills_in(before.file) > before.count ? killed_for_memory(planned, peak) : "";
    };
  }
  const auto body = [&](Job& job) {
    config = {};
    try {
      job.agree([&] { config = load(o, job.size(), &job, argc, argv); });
      job.on_hang(write_lost);
      if (!o.cluster.empty()) {
        job.agree([&] {
          if (job.rank() == 0) write_prediction(config.run, o.cluster);
        });
      }
      job.form_mesh(config.run, fingerprint_of(config));
      return static_cast<int>(train(config, o.allow_faults, job));
    } catch (const Error& e) {
      // Of MPI, perhaps before there was a session that says so.
      if (e.code() == ExitCode::kHungPeer && !config.run.run_dir.empty()) {
        failure_of([&] { make_directories(config.run.run_dir); });
        write_lost("rank " + std::to_string(job.rank()) + ": " + e.what());
      }
      throw;
    }
  };
  return run_job("train", body, keeping);
}

}  // namespace

int main(int argc, char** argv) {
  ensure_passive_waiting(argv);
  const auto program = [&]() -> int {
    Options o;
    CLI::App app{"Trains a GPT-2, GPT-NeoX or Llama model as configuration files say."};
    app.footer(kFooter);
    add_version(app, "train", [] { return cpu_ops().isa(); });
    app.add_option("--config", o.configs, "configuration, JSON or YAML; of several the later win")
        ->type_name("FILE")
        ->allow_extra_args(false);
    app.add_option("--args-file", o.args_files,
                   "command line of Megatron-LM (--num-layers 12 ...); such flags may also be given here")
        ->type_name("FILE")
        ->allow_extra_args(false);
    app.add_flag("--dry-run", o.dry_run, "print parameters, memory, FLOPs and bytes, or all that is wrong");
    app.add_flag("--print-config", o.print_config, "print every key with its final value");
    app.add_option("--ranks", o.ranks, "with --dry-run: price this many ranks")
        ->check(CLI::Range(int64_t{1}, int64_t{1000000}));
    app.add_option("--cluster", o.cluster, "--dry-run adds milliseconds; report shows predicted beside measured")
        ->type_name("FILE");
    app.add_option("--print-samples", o.print_samples, "print the first N samples in the order of training")
        ->check(CLI::Range(int64_t{0}, int64_t{1000000000000}));
    CLI::Option* const schedule =
        app.add_flag("--print-schedule", o.print_schedule, "print what each pipeline rank does in a step");
    app.add_option("--format", o.format, "of --print-schedule")->check(CLI::IsMember({"text", "svg"}))->needs(schedule);
    app.add_flag("--allow-faults", o.allow_faults, "permit the key `faults` (failures for tests)");
    app.add_option("overrides", o.overrides, "key.sub=value, as JSON or text, on top of the files")->type_name("");
    std::string pattern;
    const CLI::Option* keys =
        app.add_option("--help-keys", pattern, "print the configuration keys, or those about PATTERN")
            ->type_name("PATTERN")
            ->expected(0, 1);
    std::vector<char*> words(argv, argv + argc);
    o.megatron_words = take_key_flags(words);
    if (const auto code = parse_command_line(app, "train", static_cast<int>(words.size()), words.data(),
                                             {.man = man_keys, .words = completion_keys}))
      return *code;
    if (keys->count() > 0) return print_keys(pattern);
    for (const std::string& text : o.overrides) {
      if (text.find('=') == std::string::npos)
        throw_usage("train: \"" + text + "\" is not key=value; configuration files follow --config");
    }
    return run(o, argc, argv);
  };
  return run_program("train", program, kMemoryHint);
}
