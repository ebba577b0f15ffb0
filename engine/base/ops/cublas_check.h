// How cuBLASLt calls are checked: every failure names the call, its file and line.
#pragma once

#include <cublasLt.h>

#include <string>

#include "engine/base/core/error.h"

namespace thinwire {

[[noreturn]] inline void cublas_failed(cublasStatus_t status, const char* call, const char* file, int line) {
  throw Error(ExitCode::kInternal, std::string("cuBLASLt: ") + cublasLtGetStatusName(status) + " in " + call + " at " +
                                       file + ":" + std::to_string(line));
}

}  // namespace thinwire

#define TW_CUBLAS(call)                                                                           \
  do {                                                                                            \
    if (const cublasStatus_t tw_status = (call); tw_status != CUBLAS_STATUS_SUCCESS) [[unlikely]] \
      ::thinwire::cublas_failed(tw_status, #call, __FILE__, __LINE__);                            \
  } while (0)
