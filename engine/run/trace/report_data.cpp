// Tolerant reading of metrics.jsonl, status.json and config.resolved.json.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/shallow_json.h"
#include "engine/run/trace/report_html.h"
#include "engine/run/trace/run_files.h"

namespace thinwire {
namespace {

using Json = nlohmann::ordered_json;

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

double get(const Json& j, const char* key, double otherwise = kNone) {
  const auto it = j.find(key);
  return it != j.end() && it->is_number() ? it->get<double>() : otherwise;
}

std::string get_text(const Json& j, const char* key) {
  const auto it = j.find(key);
  return it != j.end() && it->is_string() ? it->get<std::string>() : "";
}

size_t index_of(std::vector<std::string>& names, const std::string& name) {
  const auto it = std::find(names.begin(), names.end(), name);
  if (it != names.end()) return static_cast<size_t>(it - names.begin());
  names.push_back(name);
  return names.size() - 1;
}

// The fields of SiteTotals that are sums over steps, by their keys in metrics.jsonl.
constexpr std::pair<const char*, double SiteTotals::*> kSums[] = {{"logical_bytes", &SiteTotals::logical_bytes},
                                                                  {"wire_bytes", &SiteTotals::wire_bytes},
                                                                  {"wire_bytes_total", &SiteTotals::wire_bytes_total},
                                                                  {"encode_ms", &SiteTotals::encode_ms},
                                                                  {"decode_ms", &SiteTotals::decode_ms},
                                                                  {"busy_ms", &SiteTotals::busy_ms},
                                                                  {"exposed_ms", &SiteTotals::exposed_ms}};

class MetricsReader {
 public:
  explicit MetricsReader(RunData& run) : run_(run) {}

  // Of lines that repeat a step the last counts.
  void line(std::string_view text) {
    const Json j = parse_shallow<Json>(text);
    const auto step = j.is_object() ? j.find("step") : j.end();
    last_is_broken_ = !j.is_object() || step == j.end() || !step->is_number_integer();
    if (last_is_broken_) {
      ++broken_;
      return;
    }
    const int64_t at = step->get<int64_t>();
    if (!j.contains("eval_loss")) {
      steps_[at] = read_step(at, j);
      read_stragglers(at, j);
      sites_[at] = read_sites(j);
    } else if (const auto split = j.find("split");
               split == j.end() || *split == "valid") {  // a test split is no point of the validation curve
      EvalPoint& e = evals_[at] = {at, get(j, "eval_loss"), get(j, "perplexity"), get(j, "wall_s"), {}};
      const auto parts = j.find("eval_loss_by_position");
      if (parts == j.end() || !parts->is_array()) return;
      for (const Json& v : *parts) e.by_position.push_back(v.is_number() ? v.get<double>() : kNone);
    }
  }

  // torn_tail: no line end closes the last line.
  void finish(bool torn_tail) {
    for (const auto& [step, point] : evals_) run_.evals.push_back(point);
    for (auto& [step, point] : steps_) {
      for (SiteTotals& s : sites_[step]) add(point, std::move(s));
      run_.steps.push_back(std::move(point));
    }
    for (StepPoint& p : run_.steps) {
      p.time_ms.resize(run_.time_names.size(), 0.0);
      p.sites.resize(run_.sites.size());
    }
    if (broken_ > 0) {
      run_.problems.push_back(
          "metrics.jsonl: " + std::to_string(broken_) + (broken_ == 1 ? " line is" : " lines are") +
          " no complete JSON record and left out" +
          (torn_tail && last_is_broken_ ? " (the last one is torn: the run was killed or is writing it now)" : ""));
    }
  }

 private:
  StepPoint read_step(int64_t step, const Json& j) {
    StepPoint p{.step = step,
                .wall_s = get(j, "wall_s"),
                .consumed_tokens = get(j, "consumed_tokens"),
                .loss = get(j, "loss"),
                .lr = get(j, "lr"),
                .grad_norm = get(j, "grad_norm"),
                .loss_scale = get(j, "loss_scale"),
                .step_ms = get(j, "step_ms"),
                .tokens_per_s = get(j, "tokens_per_s"),
                .tflops = get(j, "model_tflops_per_rank"),
                .mfu = get(j, "mfu"),
                .memory_bytes = get(j, "memory_peak_bytes"),
                .skipped = j.contains("skipped") && j["skipped"].is_boolean() && j["skipped"].get<bool>(),
                .non_finite = get_text(j, "non_finite"),
                .skipped_by = get_text(j, "skipped_by")};
    if (const auto spike = j.find("spike"); spike != j.end() && spike->is_object())
      p.spike_spreads = get(*spike, "spreads"), p.spike_median = get(*spike, "median");
    if (const auto time = j.find("time_ms"); time != j.end() && time->is_object()) {
      for (const auto& [name, ms] : time->items()) {
        const size_t at = index_of(run_.time_names, name);
        if (p.time_ms.size() <= at) p.time_ms.resize(at + 1, 0.0);
        if (ms.is_number()) p.time_ms[at] = std::max(0.0, ms.get<double>());
      }
    }
    return p;
  }

  void read_stragglers(int64_t step, const Json& j) {
    const auto list = j.find("stragglers");
    if (list == j.end() || !list->is_array()) return;
    for (const Json& s : *list) {
      if (!s.is_object()) continue;
      StragglerRecord r;
      r.rank = static_cast<int>(std::clamp(get(s, "rank", 0.0), 0.0, 1e9));
      r.host = get_text(s, "host");
      r.waits = get_text(s, "kind") == "waits";
      r.ratio = get(s, "ratio", 0.0);
      r.since = static_cast<int64_t>(std::clamp(get(s, "since", 0.0), 0.0, 1e15));
      const auto known = std::find_if(run_.stragglers.begin(), run_.stragglers.end(), [&](const auto& k) {
        return k.first.rank == r.rank && k.first.waits == r.waits && k.first.since == r.since;
      });
      if (known == run_.stragglers.end()) {
        run_.stragglers.emplace_back(std::move(r), step);
      } else {
        known->first.ratio = std::max(known->first.ratio, r.ratio), known->second = std::max(known->second, step);
      }
    }
  }

  static std::vector<SiteTotals> read_sites(const Json& j) {
    std::vector<SiteTotals> sites;
    const auto comm = j.find("comm");
    if (comm == j.end() || !comm->is_object()) return sites;
    for (const auto& [name, s] : comm->items()) {
      if (!s.is_object()) continue;
      SiteTotals site{.site = name, .baseline_dtype = get_text(s, "baseline_dtype")};
      for (const auto& [key, field] : kSums) site.*field = get(s, key, 0.0);
      if (const double e = get(s, "rel_error"); !std::isnan(e)) site.rel_error_square = e * e, site.rel_errors = 1;
      site.last_residual_norm = get(s, "residual_norm");
      sites.push_back(std::move(site));
    }
    return sites;
  }

  void add(StepPoint& p, SiteTotals s) {
    const auto known =
        std::find_if(run_.sites.begin(), run_.sites.end(), [&](const SiteTotals& t) { return t.site == s.site; });
    const auto at = static_cast<size_t>(known - run_.sites.begin());
    if (p.sites.size() <= at) p.sites.resize(at + 1);
    p.sites[at] = {std::max(0.0, s.wire_bytes), std::max(0.0, s.busy_ms), std::max(0.0, s.exposed_ms), s.rel_error(),
                   s.last_residual_norm};
    p.wire_bytes += s.wire_bytes;
    p.logical_bytes += s.logical_bytes;
    p.wire_bytes_total += s.wire_bytes_total;
    if (known == run_.sites.end()) return run_.sites.push_back(std::move(s));
    for (const auto& [key, field] : kSums) (*known).*field += s.*field;
    known->rel_error_square += s.rel_error_square;
    known->rel_errors += s.rel_errors;
    if (!std::isnan(s.last_residual_norm)) known->last_residual_norm = s.last_residual_norm;
  }

  RunData& run_;
  std::map<int64_t, StepPoint> steps_;
  std::map<int64_t, std::vector<SiteTotals>> sites_;
  std::map<int64_t, EvalPoint> evals_;
  int64_t broken_ = 0;
  bool last_is_broken_ = false;
};

void load_metrics(RunData& run) {
  const std::string path = metrics_path(run.directory);
  if (!exists(path)) {
    run.problems.push_back(
        "metrics.jsonl is missing: the run has not finished its first step, or this is no run directory");
    return;
  }
  MetricsReader reader(run);
  bool torn_tail = false;
  read_lines(path, [&](std::string_view line, bool ended) {
    if (!line.empty()) reader.line(line);
    torn_tail = !ended;
  });
  reader.finish(torn_tail);
  if (run.steps.empty() && run.evals.empty()) run.problems.push_back("metrics.jsonl holds no training step yet");
}

// "block_int, 4 bits, block 128, hadamard, error_feedback": the codec, and the fields that rules of it differ in.
std::string codec_in_words(const Json& c) {
  if (!c.is_object()) return "";
  std::string words = get_text(c, "codec");
  if (words.empty()) words = "as it is";
  const auto add = [&](const std::string& text) { words += ", " + text; };
  const auto plain = [&](const char* key) { return c[key].is_string() ? get_text(c, key) : c[key].dump(); };
  for (const char* key : {"format", "bits", "rate", "rank", "density", "keep", "block"}) {
    if (c.contains(key) && c[key].is_array()) add(std::string(key) + " in a ramp");
    if (!c.contains(key) || !c[key].is_primitive() || c[key].is_null() || plain(key).empty() || plain(key) == "0")
      continue;
    const std::string name = key;
    add(name == "format" ? plain(key) : name == "bits" ? plain(key) + " bits" : name + " " + plain(key));
  }
  if (c.contains("hadamard") && c["hadamard"].is_boolean() && c["hadamard"].get<bool>()) add("hadamard");
  if (const std::string residual = get_text(c, "residual"); !residual.empty() && residual != "none") add(residual);
  return words;
}

std::string rule_in_words(const Json& rule) {
  std::string words = codec_in_words(rule);
  if (const auto sum = rule.find("sum"); sum != rule.end() && sum->is_object()) {
    const std::string of_sums = codec_in_words(*sum);
    words += "; sums: " + (of_sums == words ? "likewise" : of_sums);
  }
  if (const std::string a = get_text(rule, "algorithm"); !a.empty() && a != "direct") words += "; " + a;
  if (const double w = get(rule, "warmup_steps"); w > 0)
    words += "; after " + std::to_string(std::llround(w)) + " steps";
  return words;
}

void load_rules(RunData& run, const Json& config) {
  const auto all = config.find("compression");
  if (all == config.end() || !all->is_object()) return;
  run.preset = get_text(*all, "preset");
  if (get_text(*all, "sends") == "momentum") run.preset += run.preset.empty() ? "sends momenta" : " (sends momenta)";
  for (const auto& [site, rule] : all->items())
    if (rule.is_object() && rule.contains("codec")) run.rules.emplace_back(site, rule_in_words(rule));
  // A site with several rules has them in a list.
  const auto list = all->find("rules");
  if (list == all->end() || !list->is_array()) return;
  for (const Json& rule : *list) {
    const std::string site = get_text(rule, "site");
    if (site.empty() || get_text(rule, "codec") == "identity") continue;
    const auto known = std::find_if(run.rules.begin(), run.rules.end(), [&](const auto& r) { return r.first == site; });
    if (known == run.rules.end())
      run.rules.emplace_back(site, rule_in_words(rule));
    else
      known->second += " | " + rule_in_words(rule);
  }
}

void load_facts(RunData& run) {
  const std::string path = resolved_config_path(run.directory);
  if (!exists(path)) {
    run.problems.push_back("config.resolved.json is missing: the facts about model and configuration are not shown");
    return;
  }
  run.config_text = read_file(path);
  const Json j = parse_shallow<Json>(run.config_text, true);
  if (!j.is_object()) {
    run.problems.push_back(
        "config.resolved.json is no JSON object: the facts about model and configuration are not shown");
    return;
  }
  load_rules(run, j);
  run.sequence = get(j, "seq_length");
  constexpr std::pair<const char*, const char*> kWanted[] = {{"layers", "/num_layers"},
                                                             {"hidden", "/hidden_size"},
                                                             {"heads", "/num_attention_heads"},
                                                             {"KV heads", "/num_kv_heads"},
                                                             {"feed-forward", "/ffn_hidden_size"},
                                                             {"feed-forward", "/intermediate_size"},  // version 1
                                                             {"sequence", "/seq_length"},
                                                             {"vocabulary", "/vocab_size"},
                                                             {"batch", "/train_batch_size"},
                                                             {"micro batch", "/train_micro_batch_size_per_gpu"},
                                                             {"ranks", "/global_num_gpus"},
                                                             {"stages", "/pipe_parallel_size"},
                                                             {"tensor ranks", "/model_parallel_size"},
                                                             {"schedule", "/schedule"},
                                                             {"ZeRO stage", "/zero_optimization/stage"},
                                                             {"positions", "/pos_emb"},
                                                             {"norm", "/norm"},
                                                             {"activation", "/activation"},
                                                             {"precision", "/precision"},
                                                             {"optimizer", "/optimizer/type"},
                                                             {"learning rate", "/optimizer/params/lr"},
                                                             {"steps", "/train_iters"},
                                                             {"device", "/device"},
                                                             {"seed", "/seed"},
                                                             {"compression", "/compression/preset"},
                                                             {"tokenizer", "/tokenizer"}};
  for (const auto& [label, path] : kWanted) {
    const Json::json_pointer place(path);
    if (!j.contains(place)) continue;
    const Json& value = j[place];
    if (value.is_primitive() && !value.is_null())
      run.facts.emplace_back(label, value.is_string() ? value.get<std::string>() : value.dump());
  }
}

void load_status(RunData& run) {
  const std::string path = status_path(run.directory);
  if (!exists(path)) {
    run.problems.push_back("status.json is missing: whether the run is still going is not known");
    return;
  }
  try {
    run.status = read_status(path);
  } catch (const Error& e) {
    run.problems.push_back(e.what());
  }
}

void load_prediction(RunData& run) {
  const std::string path = prediction_path(run.directory);
  if (!exists(path)) return;
  const Json j = parse_shallow<Json>(read_file(path));
  if (!j.is_object() || std::isnan(get(j, "step_ms"))) {
    run.problems.push_back("prediction.json is no line of plan --json: what was predicted is not shown");
    return;
  }
  PredictedStep p{.cluster = get_text(j, "cluster"),
                  .ranking_only = j.value("ranking_only", Json()) == true,
                  .step_ms = get(j, "step_ms"),
                  .tokens_per_s = get(j, "tokens_per_s"),
                  .memory_bytes = get(j, "memory_bytes")};
  if (const auto comm = j.find("comm"); comm != j.end() && comm->is_object()) {
    for (const auto& [site, numbers] : comm->items())
      if (numbers.is_object()) p.sites.push_back({site, get(numbers, "wire_bytes"), get(numbers, "exposed_ms")});
  }
  run.predicted = std::move(p);
}

}  // namespace

double StepPoint::sum(double SiteStep::*field) const {
  double sum = 0.0;
  for (const SiteStep& s : sites) sum += s.*field;
  return sum;
}

double SiteTotals::rel_error() const {
  return rel_errors == 0 ? kNone : std::sqrt(rel_error_square / static_cast<double>(rel_errors));
}

RunData load_run(const std::string& run_dir) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(run_dir, ignored)) {
    throw_bad_data(run_dir +
                   ": no such run directory; give the directory that holds metrics.jsonl (key run_dir of the run)");
  }
  RunData run;
  run.directory = run_dir;
  run.name = run_name(run_dir);
  load_metrics(run);
  load_facts(run);
  load_status(run);
  load_prediction(run);
  return run;
}

}  // namespace thinwire
