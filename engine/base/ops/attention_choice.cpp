// Which attention the environment asks for, and what is said where it is not to be had.
#include <cstdlib>

#include "engine/base/core/error.h"
#include "engine/base/core/log.h"
#include "engine/base/ops/attention_fused.h"

namespace thinwire {

AttentionChoice attention_choice() {
  const char* const set = std::getenv("THINWIRE_ATTENTION");
  const std::string wish = set == nullptr ? "" : set;
  if (wish.empty() || wish == "picked") return AttentionChoice::kPicked;
  if (wish == "own") return AttentionChoice::kOwn;
  if (wish == "fused") return AttentionChoice::kFused;
  throw Error(ExitCode::kBadConfig, "THINWIRE_ATTENTION=" + wish + ": known are picked, own, fused");
}

bool attention_takes_parts() {
  return attention_choice() == AttentionChoice::kFused;
}

void attention_falls_back(const std::string& what, const std::string& why) {
  if (attention_choice() == AttentionChoice::kFused)
    throw Error(ExitCode::kBadConfig, what + " is not fused, as THINWIRE_ATTENTION=fused asks: " + why);
  log_warning("warning: " + what + " runs on our own kernels, which are slower: " + why);
}

}  // namespace thinwire
