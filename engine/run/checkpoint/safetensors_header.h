// The JSON header of a safetensors file, read event by event: memory grows with what is kept, never with nesting or
// tricks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/run/checkpoint/safetensors.h"

namespace thinwire {

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;
inline constexpr size_t kMaxSafetensorsTensors = 1'000'000;
inline constexpr size_t kMaxSafetensorsRank = 16;

struct SafetensorsHeader {
  std::vector<SafetensorsEntry>
      entries;  // `begin` still relative to the data; `bytes` = END - BEGIN; in file order of the JSON
  std::map<std::string, std::string> metadata;
};

// Throws Error(kBadData) whose message starts with `path`. Checks syntax, types, names and duplicates; ranges are the
// caller's.
SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view text);

}  // namespace thinwire
