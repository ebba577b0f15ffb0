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
#include "engine/run/trace/report_follow.h"
#include "engine/run/trace/report_html.h"
#include "engine/run/trace/run_files.h"

namespace {

using namespace thinwire;

struct Options {
  std::vector<std::string> dirs;
  std::string output, svg, x = "step";
  bool compare = false, draw = false, follow = false;
  double every_s = 5, quiet_s = 300;
};

void make_report(const Options& o) {
  const std::vector<std::string>& dirs = o.dirs;
  std::string output = o.output;
  if (o.compare && dirs.size() < 2) throw_usage("--compare needs at least two run directories");
  if (output.empty()) {
    if (dirs.size() > 1 || !o.svg.empty())
      throw_usage("--output FILE is needed with more than one run directory, and with --svg");
    output = report_path(dirs.front());
  }
  std::vector<RunData> runs;
  for (const std::string& dir : dirs) {
    runs.push_back(load_run(dir));
    for (const std::string& problem : runs.back().problems)
      std::fprintf(stderr, "%s: %s\n", dir.c_str(), problem.c_str());
  }
  const std::string page = !o.svg.empty() ? loss_picture(runs, o.svg == "eval_loss", o.x)
                           : o.compare    ? compare_page(runs)
                                          : report_page(runs);
  if (page.empty()) throw_bad_data("no run has values of " + o.svg + " along " + o.x);
  write_file_atomic(output, page);
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
  Options o;
  app.add_option("RUN_DIR", o.dirs, "Run directories (each holds metrics.jsonl, config.resolved.json, status.json)");
  app.add_option("--output", o.output,
                 "The file to write (default: RUN_DIR/report.html for one run, standard output for --draw)");
  app.add_flag("--compare", o.compare, "Lay the runs over each other in every chart");
  CLI::Option* svg = app.add_option("--svg", o.svg, "Instead of a page a picture: loss or eval_loss of all runs")
                         ->check(CLI::IsMember({"loss", "eval_loss"}));
  app.add_option("--x", o.x, "What the picture has it against: step, tokens, or wall_s, the clock")
      ->check(CLI::IsMember({"step", "tokens", "wall_s"}))
      ->needs(svg);
  CLI::Option* follow = app.add_flag("--follow", o.follow,
                                     "Keep the page of one run up to date, and let it load itself again, until the run "
                                     "has ended; waits for a directory that is not there yet");
  app.add_option("--every", o.every_s, "Seconds between two looks of --follow (5)")
      ->check(CLI::Range(0.1, 3600.0))
      ->needs(follow);
  app.add_option("--quiet", o.quiet_s, "Seconds without news after which --follow takes the run for dead (300)")
      ->check(CLI::Range(1.0, 1e7))
      ->needs(follow);
  app.add_flag("--draw", o.draw, "Draw the page or chart that standard input describes as JSON (docs/programs.md)");
  add_version(app, "report", [] { return std::string("not used"); });
  app.footer(
      "Exit codes: 0 written, 64 wrong command line, 65 no such run directory or description, 74 the page cannot be "
      "written, 75 --follow was stopped by a signal.");
  if (const auto code = parse_command_line(app, "report", argc, argv)) return *code;
  if (o.draw) {
    draw_input(o.dirs, o.output);
    finish_printing("report");
    return 0;
  }
  if (o.dirs.empty()) throw_usage("no run directory given: report RUN_DIR ... [--compare] [--output F.html]");
  if (o.compare + o.follow + !o.svg.empty() > 1) throw_usage("--compare, --follow and --svg exclude each other");
  if (!o.follow) {
    make_report(o);
    finish_printing("report");
    return 0;
  }
  if (o.dirs.size() != 1) throw_usage("--follow takes one run directory");
  const std::string& dir = o.dirs.front();
  return static_cast<int>(follow_run({.run_dir = dir,
                                      .output = o.output.empty() ? report_path(dir) : o.output,
                                      .every_s = o.every_s,
                                      .quiet_s = o.quiet_s}));
}

}  // namespace

int main(int argc, char** argv) {
  return thinwire::run_program("report", [&] { return run(argc, argv); });
}
