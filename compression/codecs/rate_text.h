// A rate as codecs say it in their names: "2.25", "8".
#pragma once

#include <string>

namespace thinwire {

inline std::string rate_text(double rate) {
  std::string text = std::to_string(rate);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace thinwire
