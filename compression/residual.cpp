// Residuals between messages: what each kind keeps, and the bytes of that.
#include "compression/residual.h"

namespace thinwire {

ResidualDtype stored_in(const ResidualSpec& residual) {
  return residual.kind == ResidualKind::kEma ? ResidualDtype::kInt8 : residual.dtype;
}

bool keeps_residual(ResidualKind kind) {
  return kind == ResidualKind::kErrorFeedback || kind == ResidualKind::kLazy || kind == ResidualKind::kEma;
}

bool keeps(const ResidualSpec& residual, ResidualDtype dtype) {
  return keeps_residual(residual.kind) && stored_in(residual) == dtype;
}

int64_t residual_bytes(const ResidualSpec& residual, int64_t count) {
  const int64_t copies = residual.on_skip == OnSkip::kRestore ? 2 : 1;
  if (keeps(residual, ResidualDtype::kFp32)) return copies * 4 * count;
  if (keeps(residual, ResidualDtype::kBf16)) return copies * 2 * count;
  const bool resets = residual.kind == ResidualKind::kEma && residual.reset_every > 0;
  const int64_t blocks = (count + kResidualBlock - 1) / kResidualBlock;
  const int64_t epoch = resets ? 16 : 0;  // a number and its copy
  if (keeps(residual, ResidualDtype::kInt8)) return copies * (count + 4 * blocks) + epoch;
  return 0;
}

}  // namespace thinwire
