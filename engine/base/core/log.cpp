// spdlog set-up: plain lines on stderr (stdout belongs to program output), the same lines in a file when asked.
#include "engine/base/core/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <memory>

namespace thinwire {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                   spdlog::level::err};  // by LogLevel
  return kLevels[static_cast<size_t>(level)];
}

std::shared_ptr<spdlog::logger> make_logger(const spdlog::sink_ptr& sink) {
  auto logger = std::make_shared<spdlog::logger>("thinwire", sink);
  logger->set_level(spdlog::level::debug);
  logger->flush_on(spdlog::level::info);
  logger->set_error_handler([](const std::string&) {
    static std::atomic<bool> reported = false;
    if (!reported.exchange(true)) fputs("warning: log file cannot be written any more; training goes on\n", stderr);
  });
  return logger;
}

// One logger per process: the console and the log file are process-wide by nature.
struct Sinks {
  std::shared_ptr<spdlog::sinks::stderr_sink_mt> console = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  std::shared_ptr<spdlog::sinks::basic_file_sink_mt> file;
  std::shared_ptr<spdlog::logger> logger = make_logger(console);
  std::shared_ptr<spdlog::logger> file_logger;  // of the file alone
  Sinks() {
    console->set_pattern("%v");
    console->set_level(spdlog::level::info);
  }
};

Sinks& sinks() {
  static Sinks instance;
  return instance;
}

}  // namespace

void log_open_file(const std::string& path) {
  Sinks& s = sinks();
  log_close_file();
  try {
    s.file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, false);
    s.file->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
    s.file_logger = make_logger(s.file);
    s.logger->sinks().push_back(s.file);
  } catch (const spdlog::spdlog_ex& e) {
    log_warning(std::string("warning: no log file: ") + e.what());
  }
}

void log_close_file() {
  Sinks& s = sinks();
  if (!s.file) return;
  auto& list = s.logger->sinks();
  list.erase(std::remove(list.begin(), list.end(), s.file), list.end());
  s.file.reset();
  s.file_logger.reset();
}

void log_set_console_level(LogLevel level) {
  sinks().console->set_level(to_spdlog(level));
}

void log_write(LogLevel level, const std::string& message) {
  sinks().logger->log(to_spdlog(level), "{}", message);
}

// Past the console, whose level other threads' messages need.
void log_write_file(LogLevel level, const std::string& message) {
  if (const auto logger = sinks().file_logger) logger->log(to_spdlog(level), "{}", message);
}

}  // namespace thinwire
