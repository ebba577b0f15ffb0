// Numbers as text, see text.h.
#include "engine/base/core/text.h"

#include <cstdarg>
#include <cstdio>

namespace thinwire {

std::string printed(const char* format, ...) {
  std::va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, arguments)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  va_end(arguments);
  return text;
}

}  // namespace thinwire
