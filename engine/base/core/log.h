// The log: spdlog behind five functions. Messages are for a person; numbers for programs go to metrics.jsonl.
#pragma once

#include <string>

namespace thinwire {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Adds a file beside the console. Failing to write there later is reported once and never stops training.
void log_open_file(const std::string& path);
void log_close_file();
void log_set_console_level(LogLevel level);
void log_write(LogLevel level, const std::string& message);
// To the file alone, for what the console hears from elsewhere. Nothing without a file.
void log_write_file(LogLevel level, const std::string& message);

inline void log_info(const std::string& m) {
  log_write(LogLevel::kInfo, m);
}
inline void log_debug(const std::string& m) {
  log_write(LogLevel::kDebug, m);
}
inline void log_warning(const std::string& m) {
  log_write(LogLevel::kWarning, m);
}
inline void log_error(const std::string& m) {
  log_write(LogLevel::kError, m);
}

}  // namespace thinwire
