// The program `reference_check`: proves the reference law on directories of another program's numbers.
#include <CLI/CLI.hpp>

#include "engine/base/core/error.h"
#include "engine/base/core/version.h"
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
    bool version = false;
    std::vector<std::string> arguments;
    app.add_flag("--version", version, "version, git hash, backends and instruction set");
    app.add_option("arguments", arguments, "directories, and configuration overrides key=value");
    try {
      app.parse(argc, argv);
    } catch (const CLI::CallForHelp& e) {
      return app.exit(e);
    } catch (const CLI::ParseError& e) {
      throw_usage(std::string("reference_check: ") + e.what());
    }
    if (version) {
      std::fputs(version_text("reference_check", cpu_ops().isa()).c_str(), stdout);
      return 0;
    }
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
