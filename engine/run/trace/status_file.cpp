// JSON text of status_file.h, replaced by rename so that a reader never sees half of it.
#include "engine/run/trace/status_file.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "engine/base/core/file.h"
#include "engine/base/core/log.h"
#include "engine/base/core/shallow_json.h"
#include "engine/base/core/text.h"
#include "engine/run/trace/memory_probe.h"

namespace thinwire {
namespace {

std::string utc_now() {
  return utc_text(std::time(nullptr));
}

// Unix seconds; nothing where the text is no such time.
std::optional<double> unix_seconds(const std::string& utc) {
  std::tm parts{};
  const char* end = ::strptime(utc.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (end == nullptr || *end != 0) return std::nullopt;
  return static_cast<double>(::timegm(&parts));
}

// visit(key, field) for every field, in the order of the file.
template <typename Status, typename Visit>
void visit_fields(Status& s, const Visit& visit) {
  visit("state", s.state);
  visit("code", s.code);
  visit("reason", s.reason);
  visit("message", s.message);
  visit("step", s.step);
  visit("total_steps", s.total_steps);
  visit("requeue", s.requeue);
  visit("host", s.host);
  visit("pid", s.pid);
  visit("first_started", s.first_started);
  visit("started", s.started);
  visit("updated", s.updated);
  visit("spike", s.spike);
  visit("stragglers", s.stragglers);
  visit("planned_memory", s.planned_memory);
  visit("oom_kills", s.oom_kills);
}

std::string to_json(const RunStatus& s) {
  nlohmann::ordered_json j;
  visit_fields(s, [&](const char* key, const auto& field) {
    if constexpr (requires { field.has_value(); })
      j[key] = field ? nlohmann::ordered_json(*field) : nlohmann::ordered_json(nullptr);
    else
      j[key] = field;
  });
  // `replace`: a message may quote bytes of a broken file that are no UTF-8.
  return j.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string reason_of(ExitCode code) {
  constexpr std::pair<ExitCode, const char*> kReasons[] = {{ExitCode::kFinished, "finished"},
                                                           {ExitCode::kUsage, "usage"},
                                                           {ExitCode::kBadData, "bad_data"},
                                                           {ExitCode::kInternal, "internal"},
                                                           {ExitCode::kHungPeer, "hung_peer"},
                                                           {ExitCode::kBusy, "busy"},
                                                           {ExitCode::kIo, "io"},
                                                           {ExitCode::kPreempted, "preempted"},
                                                           {ExitCode::kDiverged, "diverged"},
                                                           {ExitCode::kBadConfig, "bad_config"}};
  for (const auto& [known, word] : kReasons)
    if (known == code) return word;
  return "internal";
}

constexpr size_t kStatusLimit = 1 << 20;

RunStatus status_of(const std::string& text, const std::string& path) {
  const auto j = parse_shallow(text);
  if (!j.is_object()) throw_bad_data(path + ": not a JSON object; the run rewrites it when it starts again");
  RunStatus s;
  s.state = s.reason = "";
  try {
    visit_fields(s, [&]<typename Value>(const char* key, Value& field) {
      if (!j.contains(key)) return;
      const auto& there = j[key];
      // A number that is no whole one may be larger than what it is read into.
      if constexpr (!std::is_same_v<Value, std::string>)
        for (const auto& [name, v] : there.items())
          if (v.is_number_float()) throw_bad_data(path + ": " + (name.empty() ? key : name) + " is no whole number");
      if constexpr (!requires { field.has_value(); })
        field = there.template get<Value>();
      else if (!there.is_null())
        field = there.template get<typename Value::value_type>();
    });
    if (!j.contains("first_started")) s.first_started = s.started;
  } catch (const nlohmann::json::exception& e) {
    throw_bad_data(path + ": " + e.what());
  }
  return s;
}

}  // namespace

RunStatus read_status(const std::string& path) {
  return status_of(read_file(path, kStatusLimit), path);
}

StatusFile::StatusFile(std::string path, int64_t total_steps, std::chrono::milliseconds min_interval)
    : path_(std::move(path)), min_interval_(min_interval) {
  status_.host = this_host();
  status_.pid = ::getpid();
  status_.started = utc_now();
  status_.total_steps = total_steps;
  status_.first_started = status_.started;
  const MemoryKills kills = memory_kills();
  for (const std::string& file : {kills.file, std::string("/proc/vmstat")})
    if (const int64_t count = memory_kills_in(file); count >= 0) status_.oom_kills[file] = count;
  try {
    known_ = read_file(path_, kStatusLimit);  // which waits for errors to pass
    last_ = status_of(known_, path_);
    if (const std::optional<double> then = unix_seconds(last_->first_started)) {
      status_.first_started = last_->first_started;
      // With fractions of a second, which the text lacks: else a job could begin before the one before it ended.
      const auto now = std::chrono::system_clock::now().time_since_epoch();
      before_ = std::max(0.0, std::chrono::duration<double>(now).count() - *then);
    }
  } catch (const Error&) {
    // The run's first job, or a file that was damaged: time counts from now.
    if (known_.empty()) known_ = read_file_now(path_);
  }
}

double StatusFile::wall_seconds() const {
  return before_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

void StatusFile::running(int64_t step) {
  status_.state = status_.reason = "running";
  status_.code.reset();
  status_.requeue = false;
  status_.step = step;
  if (last_write_ && std::chrono::steady_clock::now() - *last_write_ < min_interval_) return;
  write(false);
}

void StatusFile::spike(const std::string& text) {
  status_.spike = text;
  last_write_.reset();
}

void StatusFile::stragglers(std::vector<std::string> lines) {
  if (lines == status_.stragglers) return;
  status_.stragglers = std::move(lines);
  last_write_.reset();
}

void StatusFile::adopt(const std::string& since) {
  if (!last_ || last_->started < since) return;
  const int64_t total_steps = last_->total_steps > 0 ? last_->total_steps : status_.total_steps;
  status_ = *last_;
  status_.total_steps = total_steps;
}

void StatusFile::plans_memory(const std::string& planned) {
  status_.planned_memory = planned;
  write(false);  // memory is taken before the first step
}

void StatusFile::ended(ExitCode code, int64_t step, const std::string& message) {
  if (code == ExitCode::kHungPeer && failed_just_now()) return;
  status_.state = code == ExitCode::kFinished ? "finished" : code == ExitCode::kPreempted ? "preempted" : "failed";
  status_.code = static_cast<int>(code);
  status_.reason = reason_of(code);
  status_.message = message;
  status_.requeue = code == ExitCode::kHungPeer || code == ExitCode::kPreempted;
  status_.step = step;
  write(true);
}

// Whether the file holds another rank's own failure: that this rank cannot be reached since then is no news. (A failure
// of the job before is no longer there: running() has replaced it.)
bool StatusFile::failed_just_now() const {
  constexpr double kJustNow = 10.0;  // seconds
  try {
    const RunStatus there = read_status(path_);
    const bool own =
        there.code != static_cast<int>(ExitCode::kHungPeer) || there.message.find(kGpuFault) != std::string::npos;
    return there.state == "failed" && own &&
           static_cast<double>(std::time(nullptr)) - unix_seconds(there.updated).value_or(0.0) <= kJustNow;
  } catch (const Error&) {
    return false;
  }
}

bool StatusFile::others_wrote() const {
  const std::string now = read_file_now(path_);
  return !now.empty() && now != known_;
}

void StatusFile::write(bool durable) {
  status_.updated = utc_now();
  last_write_ = std::chrono::steady_clock::now();
  if (!durable && others_wrote()) return;  // what goes on must not take the place of an end
  try {
    std::string text = to_json(status_);
    write_file_atomic(path_, text, durable);
    known_ = std::move(text);
  } catch (const Error& e) {
    if (!warned_) log_warning(std::string("warning: ") + e.what() + "; status.json is not up to date, the run goes on");
    warned_ = true;
  }
}

}  // namespace thinwire
