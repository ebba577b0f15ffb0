// The program `train`: reads its command line and configuration, then prices, prints or trains.
#include <CLI/CLI.hpp>
#include <iostream>

#include "data/print_samples.h"
#include "engine/base/core/error.h"
#include "engine/base/core/version.h"
#include "engine/base/ops/ops.h"
#include "engine/run/config/key_table.h"
#include "engine/run/train/dry_run.h"
#include "engine/run/train/process_setup.h"
#include "engine/run/train/trainer.h"
#include "parallel/schedule/plan.h"

namespace {

using namespace thinwire;

struct Options {
  std::vector<std::string> configs;
  std::vector<std::string> overrides;
  bool dry_run = false, print_schedule = false, allow_faults = false;
  int64_t ranks = 0, print_samples = -1;
  std::string format = "text";
};

int run(const Options& o, int argc, char** argv) {
  if (o.configs.empty() && o.overrides.empty()) {
    throw_usage("train: no configuration; use train --config configs/quickstart.json (train --help lists everything)");
  }
  const LaunchedRanks launched = launched_ranks();
  const bool trains = !o.dry_run && !o.print_schedule && o.print_samples < 0;
  // Rank 0 speaks for all, so that a message and a printed line appear once.
  if (launched.rank > 0) return trains ? static_cast<int>(ExitCode::kBadConfig) : 0;
  if (launched.count > 1 && trains) {
    throw_bad_config(std::to_string(launched.count) +
                     " ranks were started, but this version trains with one: use ./train or mpirun -n 1 ./train "
                     "(--dry-run prices larger layouts)");
  }
  ConfigOptions options;
  options.dry_run = o.dry_run;
  options.ranks = o.ranks > 0 || !o.dry_run || launched.count == 1 ? o.ranks : launched.count;
  options.data_required = !o.dry_run && !o.print_schedule;
  options.allow_faults = o.allow_faults;
  ResolvedConfig config = load_config(o.configs, o.overrides, options);
  for (int i = 0; i < argc; ++i) config.run.command_line += (i > 0 ? " " : "") + std::string(argv[i]);
  if (o.dry_run) {
    std::fputs(dry_run_text(config.run).c_str(), stdout);
    return 0;
  }
  if (o.print_schedule) {
    if (config.run.layout.pipeline > 1) {
      throw_bad_config("pipe_parallel_size: " + std::to_string(config.run.layout.pipeline) +
                       " stages: this version has schedules of one stage only");
    }
    const Plan plan = one_stage_plan(static_cast<int>(config.run.accumulation));
    if (o.format == "svg")
      std::fputs(to_svg(plan).c_str(), stdout);
    else
      std::printf("rank 0: %s\n", to_string(plan).c_str());
    return 0;
  }
  if (o.print_samples >= 0) {
    SampleStream stream(config.run.data, EvalCheck::kLeaveOut);
    print_samples(stream, o.print_samples, std::cout);
    return 0;
  }
  return static_cast<int>(train(config, o.allow_faults));
}

}  // namespace

int main(int argc, char** argv) {
  ensure_passive_waiting(argv);
  return run_program("train", [&]() -> int {
    Options o;
    CLI::App app{
        "Trains a GPT-2, GPT-NeoX or Llama model as a JSON configuration says. Exit codes: 0 finished, 64 usage, 65 "
        "bad data or "
        "checkpoint, 70 internal, 73 run directory busy, 74 I/O, 75 preempted and saved (requeue), 76 diverged, 78 bad "
        "configuration."};
    app.set_help_flag("");
    bool help = false, version = false;
    app.add_flag("-h,--help", help, "this text and every configuration key");
    app.add_flag("--version", version, "version, git hash, backends and instruction set");
    app.add_option("--config", o.configs, "configuration file; may be given several times, later ones win")
        ->allow_extra_args(false);
    app.add_flag("--dry-run", o.dry_run, "print parameters, memory, FLOPs and bytes, or every violation, and exit");
    app.add_option("--ranks", o.ranks, "with --dry-run: price this many ranks")
        ->check(CLI::Range(int64_t{1}, int64_t{1000000}));
    app.add_option("--print-samples", o.print_samples, "print the first N samples in consumption order and exit")
        ->check(CLI::Range(int64_t{0}, int64_t{1000000000000}));
    app.add_flag("--print-schedule", o.print_schedule, "print what each pipeline rank executes in one update");
    app.add_option("--format", o.format, "of --print-schedule: text or svg")->check(CLI::IsMember({"text", "svg"}));
    app.add_flag("--allow-faults", o.allow_faults, "permit the key `faults`, which injects failures for tests");
    app.add_option("overrides", o.overrides, "key.sub=value, as JSON or text");
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      throw_usage(std::string("train: ") + e.what() + " (train --help lists everything)");
    }
    if (help) {
      std::fputs(app.help().c_str(), stdout);
      std::fputs(help_text().c_str(), stdout);
      return 0;
    }
    if (version) {
      std::fputs(version_text("train", cpu_ops().isa()).c_str(), stdout);
      return 0;
    }
    for (const std::string& text : o.overrides) {
      if (text.find('=') == std::string::npos)
        throw_usage("train: \"" + text + "\" is not key=value; configuration files follow --config");
    }
    return run(o, argc, argv);
  });
}
