// What a channel sends for a message, worked out beforehand by the decisions and formulas that it sends by.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "parallel/channel/channel_coding.h"
#include "parallel/collective/communicator.h"

namespace thinwire {

// Whether a message of `count` elements is coded in update `step`; the one place that decides.
// summed: rounds carry it, if the rule has any (and matrices to work on); what is not summed needs a codec of its own.
bool is_coded(const SiteCoding* coding, int64_t step, const MessageKey& key, int64_t count, DType dtype, bool summed);

// A group as a channel of it would see it.
struct PricedGroup {
  const SiteCoding* coding = nullptr;  // nullptr: nothing is coded
  const CommTuning* tuning = nullptr;
  std::vector<int> nodes;  // of each member
  int me = 0;
  int size() const { return static_cast<int>(nodes.size()); }
};

struct Price {
  int64_t bytes = 0;
  bool exact = true;  // false: at most (lengths depend on values)
  int64_t plain = 0;  // the same uncoded
  bool coded = false;
};
// Behind the warm-up of the rule. key.as is heeded. A group of one sends nothing.
Price price_all_reduce(const PricedGroup& group, const MessageKey& key, int64_t count, DType dtype);
Price price_reduce_scatter(const PricedGroup& group, const MessageKey& key, std::span<const int64_t> bounds,
                           DType dtype);
// source: of the contributions, where it is not that of the whole; what is encoded with a loss is packed from it.
Price price_all_gather(const PricedGroup& group, const MessageKey& key, std::span<const int64_t> bounds, DType dtype,
                       DType source);
inline Price price_all_gather(const PricedGroup& group, const MessageKey& key, std::span<const int64_t> bounds,
                              DType dtype) {
  return price_all_gather(group, key, bounds, dtype, dtype);
}
Price price_send(const PricedGroup& group, const MessageKey& key, int64_t count, DType dtype);

}  // namespace thinwire
