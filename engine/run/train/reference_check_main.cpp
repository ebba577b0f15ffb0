// The program `reference_check`: proves the reference law on directories of another program's numbers.
#include <CLI/CLI.hpp>

#include "engine/base/core/error.h"
#include "engine/base/ops/ops.h"
#include "engine/run/train/process_setup.h"
#include "engine/run/train/reference_compare.h"

int main(int argc, char** argv) {
  using namespace thinwire;
  ensure_passive_waiting(argv);
  return run_program("reference_check", [&]() -> int {
    CLI::App app{
        "Compares logits, loss, gradients and ten optimizer steps with dumps of an independent framework. Exit code 0 "
        "only if all hold."};
    std::vector<std::string> arguments;
    add_version(app, "reference_check", [] { return cpu_ops().isa(); });
    app.add_option("arguments", arguments, "directories, and configuration overrides key=value");
    if (const auto code = parse_command_line(app, "reference_check", argc, argv)) return *code;
    std::vector<std::string> directories, overrides;
    for (const std::string& a : arguments) (a.find('=') == std::string::npos ? directories : overrides).push_back(a);
    if (directories.empty())
      throw_usage("reference_check: name at least one directory, e.g. tests/golden/models/llama_gqa");
    return run_job("reference_check", [&](Job& job) {
      bool all = true;
      for (const std::string& d : directories) all = check_reference(d, overrides, stdout, job) && all;
      if (job.first()) std::printf("%s\n", all ? "all ok" : "FAILED");
      return all ? 0 : 1;
    });
  });
}
