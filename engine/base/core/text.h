// Numbers as text.
#pragma once

#include <string>

namespace thinwire {

// What std::snprintf would write, as a string of its length.
[[gnu::format(printf, 1, 2)]] std::string printed(const char* format, ...);

}  // namespace thinwire
