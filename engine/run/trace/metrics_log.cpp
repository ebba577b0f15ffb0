// Writes and repairs metrics.jsonl.
#include "engine/run/trace/metrics_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/core/error.h"
#include "engine/base/core/log.h"
#include "engine/base/core/shallow_json.h"
#include "engine/base/core/text.h"

namespace thinwire {
namespace {

using Json = nlohmann::ordered_json;

Json number(double v) {
  return std::isfinite(v) ? Json(v) : Json(nullptr);
}
Json number(const std::optional<double>& v) {
  return v ? number(*v) : Json(nullptr);
}

// The number, and beside it what it was when JSON cannot say it.
void put_spelled(Json& j, const std::string& key, double v) {
  j[key] = number(v);
  if (!std::isfinite(v)) j[key + "_text"] = std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf";
}

void put_comm(Json& j, const std::vector<SiteRecord>& sites) {
  Json comm = Json::object();
  for (const SiteRecord& s : sites) {
    Json site;
    site["logical_bytes"] = s.logical_bytes;
    site["wire_bytes"] = s.wire_bytes;
    site["logical_bytes_total"] = s.logical_bytes_total;
    site["wire_bytes_total"] = s.wire_bytes_total;
    site["baseline_dtype"] = s.baseline_dtype;
    site["encode_ms"] = number(s.encode_ms);
    site["decode_ms"] = number(s.decode_ms);
    site["busy_ms"] = number(s.busy_ms);
    site["exposed_ms"] = number(s.exposed_ms);
    site["rel_error"] = number(s.rel_error);
    site["residual_norm"] = number(s.residual_norm);
    if (s.dense_messages > 0) site["dense_messages"] = s.dense_messages;
    comm[s.site] = site;
  }
  j["comm"] = comm;
}

std::string dump(const Json& j) {
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Step of a complete line, nothing otherwise. Our own lines start with the step, so only foreign ones are parsed in
// full.
std::optional<int64_t> step_of_line(std::string_view line) {
  constexpr std::string_view kStart = "{\"step\":";
  int64_t step = 0;
  if (line.starts_with(kStart) && line.ends_with('}')) {
    const char* first = line.data() + kStart.size();
    const auto [end, error] = std::from_chars(first, line.data() + line.size(), step);
    if (error == std::errc() && (*end == ',' || *end == '}')) return step;
  }
  const auto j = parse_shallow(line);
  if (!j.is_object() || !j.contains("step") || !j["step"].is_number_integer()) return std::nullopt;
  return j["step"].get<int64_t>();
}

}  // namespace

std::string text_of(const StragglerRecord& r) {
  const std::string what =
      r.waits ? printed("keeps others waiting in %.0f %% of the steps, and computes no longer than they do,",
                        100.0 * r.ratio)
              : printed("computes %.1f x the median", r.ratio);
  return "rank " + std::to_string(r.rank) + (r.host.empty() ? "" : " (" + r.host + ")") + " " + what + " since step " +
         std::to_string(r.since);
}

std::string to_json_line(const StepRecord& r) {
  Json j;
  j["step"] = r.step;
  j["consumed_samples"] = r.consumed_samples;
  j["consumed_tokens"] = r.consumed_tokens;
  const auto put_computed = [&](const char* key, double v) {
    r.listed ? void(j[key] = nullptr) : put_spelled(j, key, v);
  };
  put_computed("loss", r.loss);
  j["lr"] = number(r.lr);
  put_computed("grad_norm", r.grad_norm);
  j["loss_scale"] = number(r.loss_scale);
  j["skipped"] = r.skipped;
  if (r.listed) j["skipped_by"] = "iterations_to_skip";
  j["wall_s"] = number(r.wall_s);
  j["step_ms"] = number(r.step_ms);
  j["samples_per_s"] = number(r.samples_per_s);
  j["tokens_per_s"] = number(r.tokens_per_s);
  j["model_tflops_per_rank"] = number(r.model_tflops_per_rank);
  j["model_tflops_full_attn"] = number(r.model_tflops_full_attn);
  j["hw_tflops"] = number(r.hw_tflops);
  j["mfu"] = number(r.mfu);
  j["memory_peak_bytes"] = r.memory_peak_bytes;
  Json time = Json::object();
  for (const auto& [name, ms] : r.time_ms) time[name] = number(ms);
  j["time_ms"] = time;
  if (r.attention_imbalance > 0.0) j["attention_imbalance"] = number(r.attention_imbalance);
  j["non_finite"] = r.non_finite.empty() ? Json(nullptr) : Json(r.non_finite);
  if (!r.revisions.empty()) j["revisions"] = Json::parse(r.revisions);
  if (r.spike_spreads) j["spike"] = {{"spreads", number(r.spike_spreads)}, {"median", number(r.spike_median)}};
  if (r.stragglers) {
    Json list = Json::array();
    for (const StragglerRecord& s : *r.stragglers)
      list.push_back({{"rank", s.rank},
                      {"host", s.host},
                      {"kind", s.waits ? "waits" : "computes"},
                      {"ratio", number(s.ratio)},
                      {"since", s.since}});
    j["stragglers"] = list;
  }
  put_comm(j, r.comm);
  return dump(j);
}

std::string to_json_line(const EvalRecord& r) {
  Json j;
  j["step"] = r.step;
  put_spelled(j, "eval_loss", r.eval_loss);
  put_spelled(j, "perplexity", r.perplexity);
  j["wall_s"] = number(r.wall_s);
  j["eval_ms"] = number(r.eval_ms);
  j["eval_tokens"] = r.eval_tokens;
  Json by_position = Json::array();
  for (double loss : r.by_position) by_position.push_back(number(loss));
  j["eval_loss_by_position"] = by_position;
  j["split"] = r.split;
  put_comm(j, r.comm);
  return dump(j);
}

MetricsLog::MetricsLog(std::string path, int64_t resume_step) : path_(std::move(path)) {
  try {
    repair(resume_step);
  } catch (const Error& e) {
    failed(e.what());
  }
  open_for_append();
}

// The file grows with the run, so it is read line by line.
void MetricsLog::repair(int64_t resume_step) {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return;
  // A last line without its newline counts only if it parses: it may have been written in part.
  const auto whole_step = [](std::string_view line, bool ended) {
    return ended || nlohmann::json::accept(line) ? step_of_line(line) : std::nullopt;
  };
  size_t size = 0, kept = 0,
         kept_end = 0;  // of the file, of what is kept with its newlines, where that ends in the file
  bool torn = false;
  read_lines(path_, [&](std::string_view line, bool ended) {
    size += line.size() + (ended ? 1 : 0);
    const std::optional<int64_t> step = whole_step(line, ended);
    if (!step) torn = true;
    if (!step || *step > resume_step) return;
    kept += line.size() + 1;
    kept_end = size;
    torn_ = !ended;
  });
  if (kept == size) return;
  if (torn) log_info(path_ + ": an incomplete line, left by a process that was killed, is removed");
  // Mostly only the end has to go. Truncating needs no disk space; a copy would, and where it failed on a full disk the
  // repeated steps would be in the file twice.
  if (kept_end < size && ::truncate(path_.c_str(), static_cast<off_t>(kept_end)) == 0 && kept == kept_end) return;
  std::string text;
  text.reserve(kept);
  read_lines(path_, [&](std::string_view line, bool ended) {
    const std::optional<int64_t> step = whole_step(line, ended);
    if (step && *step <= resume_step) text.append(line).push_back('\n');
  });
  write_file_atomic(path_, text);
  torn_ = false;
}

void MetricsLog::open_for_append() {
  file_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file_) failed(path_ + ": cannot open: " + std::strerror(errno));
}

void MetricsLog::failed(const std::string& what) {
  if (!warned_) log_warning("warning: " + what + "; metrics are being lost, training goes on");
  warned_ = true;
}

void MetricsLog::write(const StepRecord& record) {
  append(to_json_line(record));
}
void MetricsLog::write(const EvalRecord& record) {
  append(to_json_line(record));
}

void MetricsLog::append(std::string line) {
  if (!file_) open_for_append();
  if (!file_) return;
  line.push_back('\n');
  if (torn_) line.insert(line.begin(), '\n');
  struct stat before {};
  const bool sized = ::fstat(file_.get(), &before) == 0 && S_ISREG(before.st_mode);
  if (write_all(file_, std::as_bytes(std::span(line)))) {
    torn_ = false;
    return;
  }
  failed(path_ + ": cannot write: " + std::strerror(errno));
  if (!sized || ::ftruncate(file_.get(), before.st_size) != 0) torn_ = true;
}

}  // namespace thinwire
