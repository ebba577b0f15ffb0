// Site control: losses, norms, overflow flags, votes and descriptions of state. Never coded, always exact, summed in
// rank order.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/core/view.h"
#include "engine/base/device/stream.h"
#include "parallel/channel/channel.h"

namespace thinwire {

class Control {
 public:
  Control() = default;  // one rank
  explicit Control(Channel world) : world_(std::move(world)) {}

  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  // Sums fp64 values over all ranks, in place, in rank order.
  Ticket sum(View values, Stream& stream);
  // The largest value any rank gave: how ranks agree to stop, to skip a step, to save. Blocks the host.
  int64_t agree_max(int64_t value);
  // Rank 0 receives every rank's text, in rank order; others an empty list, and do not wait for each other. Blocks the
  // host.
  std::vector<std::string> collect(const std::string& text);
  // Everybody receives rank `root`'s text. Blocks the host.
  std::string share(const std::string& text, int root = 0);
  void barrier();
  // An error on one rank becomes the same error on all: call with code and message of this rank (code 0: fine); throws
  // AgreedError(code) everywhere with the message of the first rank whose code is not 0. Blocks the host.
  void agree_on_error(int code, const std::string& message);
  // Runs body on every rank; an Error on one becomes the same error on all.
  void agree(const std::function<void()>& body);
  // Everybody receives the text that rank 0 makes; an Error there becomes the same error on all.
  std::string made_by_first(const std::function<std::string()>& make);

 private:
  Channel world_;
};

}  // namespace thinwire
