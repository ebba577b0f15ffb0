// Errors agreed through the control site, see agreement.h.
#include "engine/run/checkpoint/agreement.h"

#include "engine/base/core/program.h"
#include "parallel/sites/control.h"

namespace thinwire {

Control& one_rank() {
  static Control control;
  return control;
}

void on_all_ranks(Control& control, const std::function<void()>& action) {
  if (control.size() == 1) return action();
  const Failure failure = failure_of(action);
  control.agree_on_error(failure.code, failure.message);
}

void on_all_ranks(Control& control, uint64_t meet_every, const std::function<void(const GotOn&)>& action) {
  if (control.size() == 1) return action([](uint64_t) {});
  // What a rank says where all meet; the largest is what all hear.
  constexpr int64_t kDone = 0, kGoesOn = 1, kFailed = 2;
  struct OtherFailed {};
  int64_t heard = kGoesOn;
  uint64_t since = 0;
  const GotOn got_on = [&](uint64_t bytes) {
    since += bytes;
    if (since < meet_every) return;
    since = 0;
    heard = control.agree_max(kGoesOn);
    if (heard == kFailed) throw OtherFailed();
  };
  const Failure failure = failure_of([&] {
    try {
      action(got_on);
    } catch (const OtherFailed&) {
    }
  });
  while (heard == kGoesOn) heard = control.agree_max(failure.code == 0 ? kDone : kFailed);
  control.agree_on_error(failure.code, failure.message);
}

void on_rank_0(Control& control, const std::function<void()>& action) {
  on_all_ranks(control, [&] {
    if (control.rank() == 0) action();
  });
}

}  // namespace thinwire
