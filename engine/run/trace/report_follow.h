// `report --follow`: keeps the page of a run up to date while the run goes on.
#pragma once

#include <string>

#include "engine/base/core/error.h"

namespace thinwire {

struct FollowOptions {
  std::string run_dir;
  std::string output;    // replaced by rename: whoever opens it reads a whole page
  double every_s = 5;    // between two looks, and until the page loads itself again
  double quiet_s = 300;  // a run whose files have not changed for so long is given up
};

// Waits for the directory, if need be, and returns when the run has ended, or was quiet for too long: kFinished; on
// SIGINT or SIGTERM, whose default it takes away from this process: kPreempted. What it leaves loads itself no more.
// Throws Error(kBadData) where no directory came, Error(kIo) where the page cannot be written.
ExitCode follow_run(const FollowOptions& options);

}  // namespace thinwire
