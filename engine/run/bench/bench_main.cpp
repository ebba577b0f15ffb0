// The program `bench`: proves ops, codecs and collectives against oracles and times them, or times full training steps.
#include <CLI/CLI.hpp>

#include "engine/base/core/error.h"
#include "engine/base/ops/ops.h"
#include "engine/run/bench/benches.h"
#include "engine/run/train/process_setup.h"
#include "engine/run/train/replica.h"

int main(int argc, char** argv) {
  using namespace thinwire;
  ensure_passive_waiting(argv);
  const auto run = [&]() -> int {
    CLI::App app{
        "Proves and times: bench op [filter], bench codec [filter ...], bench comm [filter], bench step SHAPE [key="
        "value ...]. Every line carries the command that repeats it."};
    bool json = false;
    StepBench step_options;
    std::string filter, device = "cpu";
    std::vector<std::string> filters;
    int threads = 0;
    add_version(app, "bench", [] { return cpu_ops().isa(); });
    CLI::App* step = app.add_subcommand("step", "the training step of a shape: " + shape_names());
    step->add_option("shape", step_options.shape, "shape name")->required();
    step->add_option("overrides", step_options.overrides,
                     "configuration overrides, e.g. precision=bfloat16 threads_per_rank=1 train_iters=20");
    step->add_flag("--json", step_options.json, "end with one JSON line");
    step->add_flag("--profile", step_options.profile, "time every op and print its share");
    step->add_option("--warm-up", step_options.warm_up, "first steps that are not counted")->check(CLI::Range(0, 1000));
    CLI::App* op =
        app.add_subcommand("op", "single ops at shapes of real models, with their share of the machine's rate");
    op->add_option("filter", filter, "only ops whose name contains this");
    op->add_option("--threads", threads, "CPU threads (default: all)")->check(CLI::Range(0, most_threads()));
    op->add_option("--device", device, "cpu | cuda")->check(CLI::IsMember({"cpu", "cuda"}));
    op->add_flag("--json", json, "one JSON object per line");
    CLI::App* comm = app.add_subcommand("comm", "messages and collectives between ranks, beside plain MPI");
    comm->add_option("filter", filter, "only cases whose name (verb/bytes) contains this");
    comm->add_flag("--json", json, "one JSON object per line");
    CLI::App* codec = app.add_subcommand(
        "codec", "codecs on one core beside memcpy, libzfp and zstd, and their fidelity (cases CODEC/snr)");
    codec->add_option("filters", filters, "only cases whose name (codec/bytes, codec/snr) contains all of these");
    codec->add_flag("--json", json, "one JSON object per line");
    if (const auto code = parse_command_line(app, "bench", argc, argv)) return *code;
    if (step->parsed()) return run_job("bench", [&](Job& job) { return bench_step(step_options, job); });
    if (op->parsed()) return bench_op(filter, device, threads, json);
    if (codec->parsed()) return bench_codec(filters, json);
    if (comm->parsed()) return bench_comm(filter, json);
    throw_usage(
        "bench: say what to measure: bench op [filter], bench codec [filter ...], bench comm [filter] or bench step "
        "SHAPE (bench --help)");
  };
  return run_program("bench", run, kMemoryHint);
}
