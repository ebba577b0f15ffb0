// The program `report`: run directories in, one HTML page out.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/program.h"
#include "engine/run/trace/report_html.h"
#include "engine/run/trace/run_files.h"

namespace {

using namespace thinwire;

void make_report(const std::vector<std::string>& dirs, bool compare, std::string output) {
  if (compare && dirs.size() < 2) throw_usage("--compare needs at least two run directories");
  if (output.empty()) {
    if (dirs.size() > 1) throw_usage("--output FILE is needed with more than one run directory");
    output = report_path(dirs.front());
  }
  std::vector<RunData> runs;
  for (const std::string& dir : dirs) {
    runs.push_back(load_run(dir));
    for (const std::string& problem : runs.back().problems)
      std::fprintf(stderr, "%s: %s\n", dir.c_str(), problem.c_str());
  }
  write_file_atomic(output, compare ? compare_page(runs) : report_page(runs));
  std::printf("%s\n", output.c_str());
}

void draw_input(const std::vector<std::string>& dirs, const std::string& output) {
  if (!dirs.empty()) throw_usage("--draw reads standard input and takes no run directories");
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  const std::string drawn = draw_document(text);
  if (output.empty())
    std::fwrite(drawn.data(), 1, drawn.size(), stdout);
  else
    write_file_atomic(output, drawn);
}

int run(int argc, char** argv) {
  CLI::App app("Writes a self-contained HTML page about one or more run directories.", "report");
  std::vector<std::string> dirs;
  std::string output;
  bool compare = false, draw = false;
  app.add_option("RUN_DIR", dirs, "Run directories (each holds metrics.jsonl, config.resolved.json, status.json)");
  app.add_option("--output", output,
                 "The file to write (default: RUN_DIR/report.html for one run, standard output for --draw)");
  app.add_flag("--compare", compare, "Lay the runs over each other in every chart");
  app.add_flag("--draw", draw, "Draw the page or chart that standard input describes as JSON (docs/programs.md)");
  add_version(app, "report", [] { return std::string("not used"); });
  app.footer(
      "Exit codes: 0 written, 64 wrong command line, 65 no such run directory or description, 74 the page cannot be "
      "written.");
  if (const auto code = parse_command_line(app, "report", argc, argv)) return *code;
  if (draw) {
    draw_input(dirs, output);
    return 0;
  }
  if (dirs.empty()) throw_usage("no run directory given: report RUN_DIR ... [--compare] [--output F.html]");
  make_report(dirs, compare, output);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return thinwire::run_program("report", [&] { return run(argc, argv); });
}
