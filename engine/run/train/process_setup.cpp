// Process start-up and the one place where exceptions become exit codes.
#include "engine/run/train/process_setup.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>

#include "engine/base/core/error.h"
#include "engine/run/train/job.h"
#include "parallel/comm/launcher.h"

namespace thinwire {

void ensure_passive_waiting(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  // Threads that sleep at once lose to a short spin inside one parallel region after another.
  if (std::getenv("GOMP_SPINCOUNT") == nullptr) setenv("GOMP_SPINCOUNT", "10000", 1);
  execv("/proc/self/exe", argv);
  // Where the program cannot be executed again it still runs, only less politely.
}

int run_program(const std::string& name, const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return static_cast<int>(e.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "error: %s: out of memory; --dry-run prints what a configuration needs\n", name.c_str());
    return static_cast<int>(ExitCode::kIo);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: internal error in %s: %s; this is a fault of thinwire, please report it\n",
                 name.c_str(), e.what());
    return static_cast<int>(ExitCode::kInternal);
  }
}

int run_job(const std::string& name, const std::function<int(Job&)>& body) {
  return run_program(name, [&]() -> int {
    std::optional<Job> opened;
    try {
      opened.emplace();
    } catch (const Error& e) {
      if (launch_of_environment().rank > 0) return static_cast<int>(e.code());  // rank 0 speaks for all
      throw;
    }
    Job& job = *opened;
    try {
      const int code = body(job);
      if (code != 0) job.leave_together(static_cast<ExitCode>(code));
      return code;
    } catch (const AgreedError& e) {
      if (job.size() == 1) throw;
      if (job.first()) std::fprintf(stderr, "error: %s\n", e.what());
      job.leave_together(e.code());
      return static_cast<int>(e.code());
    } catch (const Error& e) {
      job.end_all(e.code(), e.what());
      throw;
    } catch (const std::exception& e) {
      job.end_all(ExitCode::kInternal, e.what());
      throw;
    }
  });
}

}  // namespace thinwire
