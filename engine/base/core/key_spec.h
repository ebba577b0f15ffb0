// Vocabulary of configuration keys: what a module says about each of its keys. Loading, help, schema and docs read one
// table of these.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace thinwire {

// Where a configuration key matters: a checkpoint must agree on model and data keys, the rest may change between runs.
enum class KeyScope { kModel, kData, kLayout, kRuntime };

// JSON types that a key takes; null always means "not given".
enum KeyType : unsigned {
  kBoolKey = 1,
  kIntKey = 2,  // 5e8 and 3.0 count as integers, 0.5 does not
  kRealKey = 4,
  kStringKey = 8,
  kListKey = 16,    // kListKey | kRealKey: a list of numbers, never a bare number
  kObjectKey = 32,  // free form: not looked into
  kAnyKey = 63,
};

enum class KeyStatus {
  kUsed,       // has a field in RunConfig and a line in config.resolved.json
  kShorthand,  // another way to say used keys (Megatron flags mostly); rewritten to those while loading
  kNoted,      // accepted so that public recipes load; has no effect here, and the log says so
  kRefused,    // a feature that we do not have; only its neutral values are accepted
};

// Bounds of numbers (also of each element of a list); an open end excludes the value itself.
struct KeyBounds {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false;
  bool open_max = false;
};

struct KeySpec {
  std::string name;                   // full dotted name in NeoX / DeepSpeed spelling, e.g. "zero_optimization.stage"
  std::vector<std::string> aliases;   // other full names with the same meaning and the same values
  unsigned types = kAnyKey;           // KeyType bits
  std::string default_json = "null";  // JSON text; "null": none, or derived as `default_text` says
  std::string default_text = "";      // words for a derived default
  KeyBounds bounds = {};
  std::vector<std::string> allowed = {};                                // strings that are accepted; empty: any
  std::vector<std::pair<std::string, std::string>> value_aliases = {};  // other spelling of a value -> ours
  std::string unit = "";
  std::string doc = "";  // one sentence; for noted and refused keys the reason
  KeyScope scope = KeyScope::kRuntime;
  KeyStatus status = KeyStatus::kUsed;
  bool required = false;
  bool ramp = false;                      // also takes [[place, value], ...]: what it is from a place of the run on
  bool share = false;                     // also takes a number between 0 and 1 with a decimal point: a part of a whole
  bool or_file = false;                   // strings beside `allowed` pass that name a .json file
  std::vector<std::string> neutral = {};  // refused keys: JSON texts that mean "feature off", besides null and false
};

}  // namespace thinwire
