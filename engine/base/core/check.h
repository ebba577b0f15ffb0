// CHECK: states what the programmer relies on; a failure is our fault and leaves with code 70, never undefined
// behaviour.
#pragma once

#include <sstream>
#include <string>

namespace thinwire {

// Throws Error(kInternal) naming file, line and the condition.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& detail);

namespace detail {
template <typename... Args>
std::string join(const Args&... args) {
  std::ostringstream out;
  ((out << args), ...);
  return out.str();
}
}  // namespace detail
}  // namespace thinwire

// TW_CHECK(n == 4, "rows ", n): the arguments after the condition are streamed into the message.
#define TW_CHECK(condition, ...)                                                                       \
  do {                                                                                                 \
    if (!(condition)) [[unlikely]]                                                                     \
      ::thinwire::check_failed(__FILE__, __LINE__, #condition, ::thinwire::detail::join(__VA_ARGS__)); \
  } while (0)
