// The report: tolerant reading, escaping, and a page that is well formed and loads nothing from elsewhere.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/core/error.h"
#include "engine/run/trace/metrics_log.h"
#include "engine/run/trace/report_html.h"
#include "engine/run/trace/run_files.h"
#include "engine/run/trace/status_file.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::test_report {
namespace {

constexpr const char* kEvil = "</script><script>alert('x')</script>&\"";

void make_run(const std::string& dir, int64_t steps, bool evil = false) {
  create_run_directory(dir);
  MetricsLog log(metrics_path(dir), 0);
  for (int64_t s = 1; s <= steps; ++s) {
    StepRecord r;
    r.step = s;
    r.consumed_tokens = 100 * s;
    r.wall_s = 0.5 * static_cast<double>(s);
    r.loss = s == 3 ? std::nan("") : 5.0 - 0.01 * static_cast<double>(s);
    r.skipped = s == 3;
    r.grad_norm = s == 3 ? std::numeric_limits<double>::infinity() : 1.0;
    r.non_finite = s == 3 ? (evil ? kEvil : "layers.0.norm1.weight") : "";
    r.step_ms = 10;
    r.tokens_per_s = 10000;
    r.memory_peak_bytes = 1 << 20;
    r.time_ms = {{"forward", 3}, {evil ? kEvil : "backward", 6}};
    r.comm.push_back({.site = evil ? kEvil : "dp.gradient",
                      .logical_bytes = 400,
                      .wire_bytes = 100,
                      .wire_bytes_total = 800,
                      .baseline_dtype = "fp32",
                      .encode_ms = 0.25,
                      .decode_ms = 0.125,
                      .busy_ms = 4,
                      .exposed_ms = 1});
    if (s % 2 == 0) r.comm.back().rel_error = s % 4 == 0 ? 0.375 : 0.5;
    if (s > 5) r.comm.back().residual_norm = 0.0625 * static_cast<double>(s);
    if (s > 2) r.comm.push_back({.site = "tp.forward", .wire_bytes = s, .baseline_dtype = "fp32", .exposed_ms = 0.5});
    if (s == 5) r.spike_spreads = 12.5, r.spike_median = 3.25;
    if (s % 10 == 0)
      r.stragglers = {
          StragglerRecord{.rank = 3, .host = evil ? kEvil : "n1", .ratio = s == 20 ? 2.25 : 1.5, .since = 4}};
    log.write(r);
    if (s % 10 == 0) {
      EvalRecord e;
      e.step = s;
      e.eval_loss = 5.0 - 0.009 * static_cast<double>(s);
      e.perplexity = std::exp(e.eval_loss);
      e.wall_s = r.wall_s + 0.25;
      e.by_position = {e.eval_loss + 1.0, kNone, e.eval_loss, e.eval_loss - 1.0};
      log.write(e);
    }
  }
  StatusFile(status_path(dir), steps).ended(ExitCode::kFinished, steps, evil ? kEvil : "");
  nlohmann::json config = {{"num_layers", 4}, {"seq_length", 64}, {"optimizer", {{"type", evil ? kEvil : "AdamW"}}}};
  config["tokenizer"] = nullptr;
  config["_notes"] = {{"tokenizer_type", "a remark, which is no fact of the run"}};
  config["compression"] = {{"preset", evil ? kEvil : "thinwire"}, {"adapt", true}, {"sends", "gradient"}};
  config["compression"][evil ? kEvil : "dp.gradient"] = {
      {"codec", evil ? kEvil : "block_int"},
      {"bits", 4},
      {"block", 128},
      {"hadamard", true},
      {"warmup_steps", 7},
      {"residual", evil ? kEvil : "error_feedback"},
      {"algorithm", evil ? kEvil : "two_level"},
      {"sum", {{"codec", "cast"}, {"format", evil ? kEvil : "bf16"}, {"residual", "none"}}}};
  test::spill(resolved_config_path(dir), config.dump());
}

size_t count(const std::string& text, std::string_view what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++n;
  return n;
}

// Elements open and close in order. Script and style contents run to their end tag; void elements have no end.
std::string first_fault(const std::string& html) {
  std::vector<std::string> open;
  size_t at = html.find("<html");
  while ((at = html.find('<', at)) != std::string::npos) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return "unclosed < at " + std::to_string(at);
    const bool closing = html[at + 1] == '/';
    const size_t from = at + (closing ? 2 : 1);
    const std::string name = html.substr(from, html.find_first_of(" />", from) - from);
    const bool self_closing = html[end - 1] == '/';
    at = end + 1;
    if (closing) {
      if (open.empty() || open.back() != name)
        return "</" + name + "> closes " + (open.empty() ? "nothing" : open.back());
      open.pop_back();
      continue;
    }
    if (self_closing || name == "meta" || name == "br") continue;
    open.push_back(name);
    if (name == "script" || name == "style") at = html.find("</" + name, at);
  }
  return open.empty() ? "" : "<" + open.back() + "> is never closed";
}

// Every chart carries its data as JSON: all of it must parse.
void expect_sound_page(const std::string& html) {
  EXPECT_EQ(count(html, "<html"), 1u);  // without one there is no element to find a fault of
  EXPECT_EQ(first_fault(html), "");
  EXPECT_EQ(count(html, "<script>"), 1u);
  constexpr std::string_view kData = "<script type=\"application/json\">";
  for (size_t at = html.find(kData); at != std::string::npos; at = html.find(kData, at + 1)) {
    const size_t from = at + kData.size();
    EXPECT_TRUE(nlohmann::json::accept(html.substr(from, html.find("</script>", from) - from)));
  }
  // The only address is the name of the SVG vocabulary, which nothing loads.
  EXPECT_EQ(count(html, "http"), count(html, "http://www.w3.org/2000/svg"));
  EXPECT_EQ(count(html, "src=\""), 0u);
  EXPECT_EQ(count(html, "nan "), 0u);
  EXPECT_EQ(html.find("inf\""), std::string::npos);
}

TEST(Report, ReadsBackWhatTheRunWrote) {
  const test::Scratch scratch;
  make_run(scratch / "run", 40);
  const RunData run = load_run(scratch / "run");
  EXPECT_EQ(run.name, "run");
  ASSERT_EQ(run.steps.size(), 40u);
  ASSERT_EQ(run.evals.size(), 4u);
  EXPECT_TRUE(run.problems.empty());
  ASSERT_EQ(run.evals[1].by_position.size(), 4u);
  EXPECT_EQ(run.evals[1].by_position[0], run.evals[1].loss + 1.0);
  EXPECT_TRUE(std::isnan(run.evals[1].by_position[1]));
  EXPECT_EQ(run.sequence, 64);
  EXPECT_TRUE(run.steps[2].skipped);
  EXPECT_TRUE(std::isnan(run.steps[2].loss));
  EXPECT_EQ(run.steps[39].loss, 5.0 - 0.01 * 40);
  EXPECT_EQ(run.time_names, (std::vector<std::string>{"forward", "backward"}));
  EXPECT_EQ(run.steps[5].time_ms, (std::vector<double>{3, 6}));
  ASSERT_EQ(run.sites.size(), 2u);
  EXPECT_EQ(run.sites[0].wire_bytes, 4000);
  EXPECT_EQ(run.sites[0].wire_bytes_total, 32000);
  EXPECT_EQ(run.sites[0].busy_ms, 160);
  EXPECT_EQ(run.sites[1].site, "tp.forward");
  const auto column = [&](size_t step, double SiteStep::*field) {
    std::vector<double> values;
    for (const SiteStep& s : run.steps[step].sites) values.push_back(s.*field);
    return values;
  };
  EXPECT_EQ(column(0, &SiteStep::bytes), (std::vector<double>{100, 0}));  // before the site appeared
  EXPECT_EQ(column(9, &SiteStep::bytes), (std::vector<double>{100, 10}));
  EXPECT_EQ(column(9, &SiteStep::exposed_ms), (std::vector<double>{1, 0.5}));
  EXPECT_EQ(column(9, &SiteStep::busy_ms), (std::vector<double>{4, 0}));
  EXPECT_EQ(run.facts.front(), (std::pair<std::string, std::string>{"layers", "4"}));
  for (const auto& [label, value] : run.facts) EXPECT_NE(label, "tokenizer") << value;
  EXPECT_EQ(run.steps[9].wire_bytes_total, 800);
  EXPECT_EQ(run.steps[7].sites[0].rel_error, 0.375);
  EXPECT_TRUE(std::isnan(run.steps[8].sites[0].rel_error));  // not measured in this step
  EXPECT_TRUE(std::isnan(run.steps[8].sites[1].rel_error));
  EXPECT_TRUE(std::isnan(run.steps[4].sites[0].residual_norm));
  EXPECT_EQ(run.steps[7].sites[0].residual_norm, 0.5);
  EXPECT_NEAR(run.sites[0].rel_error(), std::sqrt((0.375 * 0.375 + 0.25) / 2), 1e-12);
  EXPECT_TRUE(std::isnan(run.sites[1].rel_error()));
  EXPECT_EQ(run.preset, "thinwire");
  ASSERT_EQ(run.rules.size(), 1u);
  EXPECT_EQ(run.rules[0].first, "dp.gradient");
  EXPECT_EQ(run.rules[0].second,
            "block_int, 4 bits, block 128, hadamard, error_feedback; sums: cast, bf16; two_level; after 7 steps");
}

// A note on a key has the key's name, and may be there where the key has no value.
TEST(Report, ANoteIsNoFact) {
  const test::Scratch scratch;
  make_run(scratch / "run", 3);
  const nlohmann::json config = {
      {"num_layers", 2}, {"intermediate_size", 8}, {"tokenizer", nullptr}, {"_notes", {{"tokenizer", "not used"}}}};
  test::spill(resolved_config_path(scratch / "run"), config.dump());
  const std::vector<std::pair<std::string, std::string>> facts = {{"layers", "2"}, {"feed-forward", "8"}};
  EXPECT_EQ(load_run(scratch / "run").facts, facts);
}

TEST(Report, ASiteWithSeveralRulesNamesThemAll) {
  const test::Scratch scratch;
  make_run(scratch / "run", 3);
  const nlohmann::json mlp = {
      {"site", "dp.gradient"}, {"codec", "ecsq"}, {"rate", {{0, 4}, {100, 2.5}}}, {"residual", "error_feedback"}};
  const nlohmann::json rest = {{"site", "dp.gradient"}, {"codec", "block_int"}, {"bits", 8}};
  const nlohmann::json end = {{"site", "dp.gradient"}, {"codec", "identity"}};
  const nlohmann::json config = {{"compression", {{"rules", {mlp, rest, end}}}}};
  test::spill(resolved_config_path(scratch / "run"), config.dump());
  const RunData run = load_run(scratch / "run");
  ASSERT_EQ(run.rules.size(), 1u);
  EXPECT_EQ(run.rules[0].first, "dp.gradient");
  EXPECT_EQ(run.rules[0].second, "ecsq, rate in a ramp, error_feedback | block_int, 8 bits");
}

// Every column that the contract of metrics.jsonl has, from the numbers that went in.
TEST(Report, SitesHaveATableAndBars) {
  const test::Scratch scratch;
  make_run(scratch / "run", 40);
  const std::string page = report_page({load_run(scratch / "run")});
  const size_t at = page.find("<td>dp.gradient</td>");
  ASSERT_NE(at, std::string::npos);
  const std::string row = page.substr(at, page.find("</tr>", at) - at);
  EXPECT_EQ(row,
            "<td>dp.gradient</td><td>15.6 KiB</td><td>3.9 KiB</td><td>4.00</td><td>fp32</td><td>31.2 KiB</td>"
            "<td>0.25 ms</td><td>0.125 ms</td><td>4 ms</td><td>1 ms</td><td>75 %</td><td>0.442</td><td>2.5</td>"
            "<td class=\"words\">block_int, 4 bits, block 128, hadamard, error_feedback; sums: cast, bf16; two_level; "
            "after 7 steps</td>");
  for (const char* part : {"Bytes by site", "<title>sent 100 B</title>", "<title>saved 300 B</title>", "Time by site",
                           "<title>exposed 1 ms</title>", "<title>hidden under compute 3 ms</title>",
                           "Relative error of coded messages", "Norm of residuals"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  // A site whose lines have neither error nor residual, nor a count of what it would be: dashes, no curve of its own.
  const size_t other = page.find("<td>tp.forward</td>");
  const std::string bare = page.substr(other, page.find("</tr>", other) - other);
  EXPECT_NE(bare.find("<td>–</td><td>–</td><td class=\"words\">as it is</td>"), std::string::npos) << bare;
  EXPECT_NE(bare.find("<td>0.475 ms</td>"), std::string::npos) << bare;  // 0.5 ms in 38 of 40 steps
}

TEST(Report, ComparisonShowsWhatCompressionBuys) {
  const test::Scratch scratch;
  make_run(scratch / "plain", 80);
  make_run(scratch / "coded", 80);
  // The plain run: no rules, and its metrics from before some fields were written.
  test::spill(resolved_config_path(scratch / "plain"), "{\"num_layers\": 4, \"compression\": {\"preset\": \"none\"}}");
  const std::string path = metrics_path(scratch / "plain");
  std::string lines;
  for (int s = 1; s <= 80; ++s) {
    lines += "{\"step\":" + std::to_string(s) +
             ",\"loss\":4,\"tokens_per_s\":2500,\"comm\":{\"dp.gradient\":{\"wire_bytes\":" +
             "400,\"wire_bytes_total\":1600,\"logical_bytes\":400,\"exposed_ms\":6}}}\n";
  }
  test::spill(path, lines + "{\"step\":80,\"eval_loss\":4.0,\"perplexity\":54}\n");
  const std::vector<RunData> runs = {load_run(scratch / "plain"), load_run(scratch / "coded")};
  const std::string page = compare_page(runs);
  expect_sound_page(page);
  const auto row = [&](const std::string& after, const std::string& name) {
    const size_t table = page.find(after), at = page.find("</i>" + name + "</td>", table);
    return page.substr(at, page.find("</tr>", at) - at);
  };
  EXPECT_EQ(row("<h2>Compression</h2>", "plain"),
            "</i>plain</td><td>none</td><td>4.0000</td><td>baseline</td><td>125.0 KiB</td><td>1.6 KiB</td><td>1x</td>"
            "<td>1.00</td><td>6 ms</td><td>0 ms</td><td>2.5k</td><td>1x</td>");
  // 5 - 0.009 * 80 = 4.28 after 800 bytes a step.
  EXPECT_EQ(row("<h2>Compression</h2>", "coded").substr(0, 150),
            std::string(
                "</i>coded</td><td>thinwire</td><td>4.2800</td><td>+7.00 %</td><td>62.5 KiB</td><td>800 B</td><td>0.5x"
                "</td><td>2.85</td><td>1.5 ms</td><td>0.375 ms</td><td>10.0k</td><td>4x</td>")
                .substr(0, 150));
  for (const char* part :
       {"Training loss by tokens", "Training loss by bytes sent", "all ranks, all sites", "Evaluation loss",
        "What each site sends", "<td>dp.gradient</td><td>as it is</td><td>block_int, 4 bits"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  // Runs that never sent anything have no such tables, and no chart by bytes.
  for (const char* name : {"plain", "coded"})
    test::spill(metrics_path(scratch / name), "{\"step\":1,\"loss\":4,\"comm\":{}}\n");
  const std::string silent = compare_page({load_run(scratch / "plain"), load_run(scratch / "coded")});
  expect_sound_page(silent);
  EXPECT_EQ(silent.find("bytes sent"), std::string::npos);
  EXPECT_EQ(silent.find("<h2>Compression</h2>"), std::string::npos);
}

// The data behind the chart of this title: x and y of its named curves.
nlohmann::json data_behind(const std::string& page, const std::string& title) {
  const size_t heading = page.find("<h3>" + title + "</h3>");
  EXPECT_NE(heading, std::string::npos) << title;
  constexpr std::string_view kData = "<script type=\"application/json\">";
  const size_t from = page.find(kData, heading) + kData.size();
  return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from)).at("series");
}

// Where the lines of a picture end, in the order of their colours.
std::vector<double> ends_of_lines(const std::string& svg) {
  std::vector<double> ends;
  for (size_t at = svg.find("class=\"line"); at != std::string::npos; at = svg.find("class=\"line", at + 1)) {
    const std::string path = svg.substr(at, svg.find("/>", at) - at);
    ends.push_back(std::stod(path.substr(path.rfind('L') + 1)));
  }
  return ends;
}

TEST(Report, LossesStandAgainstTheClock) {
  const test::Scratch scratch;
  make_run(scratch / "fast", 40);
  make_run(scratch / "slow", 40);
  const std::string path = metrics_path(scratch / "slow");
  std::string lines;
  for (int s = 1; s <= 40; ++s)
    lines += "{\"step\":" + std::to_string(s) + ",\"consumed_tokens\":" + std::to_string(50 * s) +
             ",\"loss\":4,\"wall_s\":" + std::to_string(s) + "}\n";
  test::spill(
      path, lines + "{\"step\":20,\"eval_loss\":4.0,\"wall_s\":20.5}\n{\"step\":40,\"eval_loss\":4.0,\"wall_s\":41}\n");
  const std::vector<RunData> runs = {load_run(scratch / "fast"), load_run(scratch / "slow")};
  const nlohmann::json one = data_behind(report_page({runs[0]}), "Loss by time");
  ASSERT_EQ(one.size(), 2u);
  for (size_t i = 0; i < 40; ++i) EXPECT_EQ(one[0]["x"][i], 0.5 * static_cast<double>(i + 1));
  EXPECT_EQ(one[1]["x"], nlohmann::json({5.25, 10.25, 15.25, 20.25}));
  const std::string both = compare_page(runs);
  EXPECT_EQ(data_behind(both, "Training loss by time")[1]["x"][39], 40.0);
  EXPECT_EQ(data_behind(both, "Evaluation loss by time")[1]["x"], nlohmann::json({20.5, 41.0}));
  // Twice the time and half the tokens in as many steps.
  const auto ratio = [&](bool evaluation, const char* x) {
    const std::vector<double> ends = ends_of_lines(loss_picture(runs, evaluation, x));
    EXPECT_EQ(ends.size(), 2u);
    return std::pair(ends[0] < ends[1] - 50, ends[1] < ends[0] - 50);
  };
  EXPECT_EQ(ratio(false, "step"), std::pair(false, false));
  EXPECT_EQ(ratio(false, "wall_s"), std::pair(true, false));
  EXPECT_EQ(ratio(true, "wall_s"), std::pair(true, false));
  EXPECT_EQ(ratio(false, "tokens"), std::pair(false, true));
  // Lines of an older version have no clock: no chart, and no picture.
  test::spill(path, "{\"step\":1,\"loss\":4}\n{\"step\":2,\"loss\":4,\"wall_s\":7}\n");
  const RunData old = load_run(scratch / "slow");
  EXPECT_EQ(report_page({old}).find("Loss by time"), std::string::npos);
  EXPECT_EQ(loss_picture({old}, false, "wall_s"), "");
  // Hours, not tens of thousands of seconds.
  test::spill(path, "{\"step\":1,\"loss\":4,\"wall_s\":3600}\n{\"step\":2,\"loss\":3,\"wall_s\":36000}\n");
  EXPECT_EQ(data_behind(report_page({load_run(scratch / "slow")}), "Loss by time")[0]["x"],
            nlohmann::json({1.0, 10.0}));
}

// A run that was cut off is compared to the whole one where both were evaluated.
TEST(Report, LossesAreComparedAtTheSameStep) {
  const test::Scratch scratch;
  for (const char* name : {"whole", "cut", "other"}) make_run(scratch / name, 10);
  const auto log = [&](const char* name, const std::vector<std::pair<int, double>>& evaluations) {
    std::string lines = "{\"step\":1,\"loss\":4,\"comm\":{\"dp.gradient\":{\"wire_bytes\":4,\"logical_bytes\":4}}}\n";
    for (const auto& [step, loss] : evaluations) {
      lines += "{\"step\":" + std::to_string(step) + ",\"eval_loss\":" + std::to_string(loss) + ",\"perplexity\":1}\n";
    }
    test::spill(metrics_path(scratch / name), lines);
  };
  log("whole", {{10, 4.0}, {20, 2.0}});
  log("cut", {{10, 4.4}});
  log("other", {{15, 3.0}});
  const std::string page =
      compare_page({load_run(scratch / "whole"), load_run(scratch / "cut"), load_run(scratch / "other")});
  EXPECT_NE(page.find("<td>4.4000</td><td>+10.00 % (at step 10)</td>"), std::string::npos) << page;
  EXPECT_NE(page.find("<td>3.0000</td><td>–</td>"), std::string::npos);
}

// Evaluations and checkpoints lie between steps: they leave the rest of a step as it is.
TEST(Report, TimeOfAStepAndBetweenSteps) {
  const test::Scratch scratch;
  make_run(scratch / "run", 1);
  test::spill(metrics_path(scratch / "run"),
              "{\"step\":1,\"loss\":4,\"step_ms\":12345.6,\"time_ms\":{\"forward\":12305.6,\"evaluation\":500}}\n");
  const std::string page = report_page({load_run(scratch / "run")});
  EXPECT_NE(page.find("rest: 40 ms"), std::string::npos);
  EXPECT_NE(page.find("12.35 s"), std::string::npos);
  EXPECT_EQ(page.find("e+0"), std::string::npos);
}

TEST(Report, PagesAreSound) {
  const test::Scratch scratch;
  make_run(scratch / "a", 200);
  make_run(scratch / "b", 7);
  const std::vector<RunData> runs = {load_run(scratch / "a"), load_run(scratch / "b")};
  const std::string single = report_page({runs[0]});
  expect_sound_page(single);
  EXPECT_NE(single.find("layers.0.norm1.weight"), std::string::npos);
  EXPECT_NE(single.find("200 / 200"), std::string::npos);
  for (const char* part :
       {"Communication", "Bytes sent per step", "Exposed per step", "Busy per step", "tp.forward: 6"})
    EXPECT_NE(single.find(part), std::string::npos) << part;
  expect_sound_page(report_page(runs));
  expect_sound_page(compare_page(runs));
  // The second run is too short for an evaluation.
  EXPECT_EQ(count(report_page(runs), "<h3>Loss by position"), 1u);
  EXPECT_EQ(count(compare_page(runs), "<h3>Loss by position"), 1u);
  EXPECT_NE(single.find("tokens in front"), std::string::npos);
  EXPECT_NE(compare_page(runs).find("Exposed communication per step"), std::string::npos);
}

TEST(Report, NothingFromTheRunBecomesMarkup) {
  const test::Scratch scratch;
  const std::string dir = scratch / "<img onerror=x>";
  make_run(dir, 70, true);
  const std::vector<RunData> runs = {load_run(dir), load_run(dir)};
  for (const std::string& page : {report_page(runs), compare_page(runs)}) {
    expect_sound_page(page);
    EXPECT_EQ(page.find("<img"), std::string::npos);
    EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  }
}

TEST(Report, MissingAndBrokenFilesAreNamed) {
  const test::Scratch scratch;
  create_run_directory(scratch / "empty");
  EXPECT_EQ(load_run(scratch / "empty").problems.size(), 3u);
  expect_sound_page(report_page({load_run(scratch / "empty")}));
  expect_sound_page(compare_page({load_run(scratch / "empty"), load_run(scratch / "empty")}));

  make_run(scratch / "torn", 5);
  const std::string metrics = metrics_path(scratch / "torn");
  test::spill(metrics, test::slurp(metrics) + "\xff\xfe\n{\"step\":6,\"loss\":4.");
  test::spill(status_path(scratch / "torn"), "{");
  test::spill(resolved_config_path(scratch / "torn"), "\xff");
  const RunData torn = load_run(scratch / "torn");
  EXPECT_EQ(torn.steps.size(), 5u);
  ASSERT_EQ(torn.problems.size(), 3u);
  EXPECT_NE(torn.problems[0].find("2 lines"), std::string::npos);
  EXPECT_NE(torn.problems[0].find("torn"), std::string::npos);
  expect_sound_page(report_page({torn}));

  // Right JSON, wrong kinds of values.
  test::spill(
      metrics,
      "{\"step\":1,\"loss\":\"x\",\"comm\":[],\"time_ms\":{\"a\":null},\"skipped\":3}\n{\"step\":2,\"comm\":{\"x\":7}"
      "}\n");
  const RunData odd = load_run(scratch / "torn");
  EXPECT_EQ(odd.steps.size(), 2u);
  expect_sound_page(report_page({odd}));

  try {
    load_run(scratch / "absent");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadData);
    EXPECT_NE(std::string(e.what()).find("absent"), std::string::npos);
  }
}

TEST(Report, SpikesAndSlowRanksAreListed) {
  const test::Scratch scratch;
  make_run(scratch / "r", 30);
  const RunData run = load_run(scratch / "r");
  ASSERT_EQ(run.stragglers.size(), 1u);
  EXPECT_EQ(run.stragglers[0].first.ratio, 2.25);
  EXPECT_EQ(run.stragglers[0].second, 30);
  const std::string html = report_page({run});
  EXPECT_NE(html.find("rank 3 (n1) computes 2.2 x the median since step 4, last seen in step 30"), std::string::npos);
  EXPECT_NE(html.find("<td>5</td><td>4.9500</td><td>3.2500</td><td>12.5</td><td>applied</td>"), std::string::npos);
}

// What evaluates and does not train: train_iters 0, or a load that has them all.
TEST(Report, AnEvaluationAloneIsShown) {
  const test::Scratch scratch;
  create_run_directory(scratch / "r");
  test::spill(metrics_path(scratch / "r"),
              "{\"step\":0,\"eval_loss\":3.25,\"perplexity\":25.79,\"eval_loss_by_position\":[4,3,2.75]}\n");
  const RunData run = load_run(scratch / "r");
  for (const std::string& problem : run.problems) EXPECT_EQ(problem.find("no training step"), std::string::npos);
  const std::string page = report_page({run});
  expect_sound_page(page);
  EXPECT_NE(page.find("<b>3.2500</b>"), std::string::npos);
  EXPECT_NE(page.find("<h3>Loss by position"), std::string::npos);
  EXPECT_EQ(page.find("training loss"), std::string::npos);
}

TEST(Report, TilesSayWhatTheStepsSay) {
  const test::Scratch scratch;
  create_run_directory(scratch / "r");
  test::spill(metrics_path(scratch / "r"),
              "{\"step\":1,\"loss\":4,\"step_ms\":10}\n{\"step\":2,\"loss\":9,\"step_ms\":20,\"skipped\":true,"
              "\"spike\":{\"spreads\":12,\"median\":4}}\n{\"step\":2,\"eval_loss\":null}\n");
  const std::string page = report_page({load_run(scratch / "r")});
  EXPECT_NE(page.find("<b>15 ms</b><em>median; 95 % within 19.5 ms</em>"), std::string::npos);  // of two: their mean
  EXPECT_NE(page.find("<b>1</b><em>losses that jumped</em>"), std::string::npos);
  EXPECT_NE(page.find("<b>–</b><em>none was finite</em>"), std::string::npos);
  test::spill(metrics_path(scratch / "r"),
              "{\"step\":1,\"loss\":4}\n{\"step\":2,\"loss\":null,\"skipped\":true,"
              "\"skipped_by\":\"iterations_to_skip\",\"loss_scale\":1}\n");
  const std::string named = report_page({load_run(scratch / "r")});
  EXPECT_NE(named.find("<b>1</b><em>named by iterations_to_skip</em>"), std::string::npos);
  EXPECT_NE(named.find("<td>none: iterations_to_skip</td>"), std::string::npos);
}

TEST(Report, ARepeatedStepCountsOnce) {
  const test::Scratch scratch;
  create_run_directory(scratch / "r");
  const std::string comm = "\"comm\":{\"dp.gradient\":{\"wire_bytes\":10,\"logical_bytes\":20}}";
  test::spill(metrics_path(scratch / "r"), "{\"step\":1,\"loss\":9," + comm + "}\n{\"step\":2,\"loss\":8," + comm +
                                               "}\n{\"step\":1,\"loss\":7," + comm + "}\n");
  const RunData run = load_run(scratch / "r");
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_EQ(run.steps[0].loss, 7.0);
  EXPECT_EQ(run.sites[0].wire_bytes, 20.0);
}

}  // namespace
}  // namespace thinwire::test_report
