// Follows Channel's branches with the byte formulas of plain and coded collectives.
#include "parallel/channel/channel_price.h"

#include <limits>

#include "parallel/collective/coded.h"
#include "parallel/collective/tuning.h"

namespace thinwire {
namespace {

constexpr int64_t kBehindWarmUp = std::numeric_limits<int64_t>::max();

const SiteCoding* coding_of(const PricedGroup& group, const MessageKey& key) {
  return key.as != nullptr ? key.as : group.coding;
}

bool coded_here(const PricedGroup& group, const MessageKey& key, int64_t count, DType dtype, bool summed) {
  return is_coded(coding_of(group, key), kBehindWarmUp, key, count, dtype, summed);
}

bool framed(const Coder* coder) {
  return coder != nullptr && coder->traits().framed;
}

Price rounds_price(const PricedGroup& group, const SiteCoding& coding, const MessageKey& key, int64_t count,
                   int64_t plain) {
  const int64_t bytes =
      rounds_all_reduce_bytes(*coding.rounds, *group.tuning, group.nodes, group.size(), group.me, count, key.matrices);
  const bool exact = !coding.rounds->traits().framed;
  // Where lengths vary, a shorter payload may fall among the small ones that go to everybody at once.
  const int64_t slack = exact ? 0 : coding.rounds->rounds() * (group.size() - 1) * group.tuning->small_bytes;
  return {bytes + slack, exact, plain, true};
}

// A matrix codec: whether factors and what travels beside them are fewer numbers than the message.
bool thinner(const RoundCodec& rounds, const MessageKey& key, int64_t count) {
  if (key.matrices.empty()) return false;
  int64_t numbers = 0;
  for (int r = 0; r < rounds.rounds(); ++r) numbers += rounds.bound(r, count, key.matrices);
  return numbers < count;
}

}  // namespace

bool is_coded(const SiteCoding* coding, int64_t step, const MessageKey& key, int64_t count, DType dtype, bool summed) {
  if (coding == nullptr || !key.coded || count == 0 || step < coding->rule.warmup_steps) return false;
  if (count * static_cast<int64_t>(size_of(dtype)) < coding->rule.min_bytes) return false;
  if (summed && coding->rounds != nullptr)
    return !coding->rounds->traits().matrices || thinner(*coding->rounds, key, count);
  return coding->first != nullptr && coding->first->shrinks(count, dtype);
}

Price price_all_reduce(const PricedGroup& group, const MessageKey& key, int64_t count, DType dtype) {
  if (group.size() < 2 || count == 0) return {};
  const int64_t element = static_cast<int64_t>(size_of(dtype));
  const int64_t plain = all_reduce_bytes(*group.tuning, group.nodes, group.size(), group.me, count, element);
  if (!coded_here(group, key, count, dtype, true)) return {plain, true, plain, false};
  const SiteCoding& coding = *coding_of(group, key);
  if (coding.rounds != nullptr) return rounds_price(group, coding, key, count, plain);
  const Coder *first = coding.first.get(), *sums = coding.sums.get();
  const bool exact = !framed(first) && !framed(sums);
  const NodeGrid grid = node_grid(group.nodes, group.size());
  if (coding.rule.algorithm == RuleAlgorithm::kTwoLevel && grid.two_level()) {
    return {coded_two_level_all_reduce_bytes(first, sums, sums, *group.tuning, grid, group.me, count, dtype), exact,
            plain, true};
  }
  if (coding.rule.algorithm == RuleAlgorithm::kRing) {
    return {coded_ring_all_reduce_bytes(*first, sums, *group.tuning, group.size(), group.me, count, dtype), exact,
            plain, true};
  }
  return {coded_all_reduce_bytes(*first, sums, *group.tuning, group.size(), group.me, count, dtype), exact, plain,
          true};
}

Price price_reduce_scatter(const PricedGroup& group, const MessageKey& key, std::span<const int64_t> bounds,
                           DType dtype) {
  if (group.size() < 2 || bounds.back() == 0) return {};
  const int64_t element = static_cast<int64_t>(size_of(dtype));
  const int64_t plain = reduce_scatter_bytes(*group.tuning, group.nodes, group.me, bounds, element);
  if (!coded_here(group, key, bounds.back(), dtype, true)) return {plain, true, plain, false};
  const SiteCoding& coding = *coding_of(group, key);
  if (coding.rounds != nullptr) return rounds_price(group, coding, key, bounds.back(), plain);
  const Coder *first = coding.first.get(), *sums = coding.sums.get();
  const NodeGrid grid = node_grid(group.nodes, group.size());
  if (coding.rule.algorithm == RuleAlgorithm::kTwoLevel && grid.two_level()) {
    return {coded_two_level_reduce_scatter_bytes(first, sums, *group.tuning, grid, group.me, bounds, dtype),
            !framed(first) && !framed(sums), plain, true};
  }
  if (coding.rule.algorithm == RuleAlgorithm::kRing)
    return {coded_ring_reduce_scatter_bytes(*first, *group.tuning, group.me, bounds, dtype), !framed(first), plain,
            true};
  return {coded_reduce_scatter_bytes(*first, *group.tuning, group.me, bounds, dtype), !framed(first), plain, true};
}

Price price_all_gather(const PricedGroup& group, const MessageKey& key, std::span<const int64_t> bounds, DType dtype,
                       DType source) {
  if (group.size() < 2 || bounds.back() == 0) return {};
  const int64_t element = static_cast<int64_t>(size_of(dtype));
  const int64_t plain = all_gather_bytes(*group.tuning, group.nodes, group.me, bounds, element);
  if (!coded_here(group, key, bounds.back(), dtype, false)) return {plain, true, plain, false};
  const SiteCoding& coding = *coding_of(group, key);
  const Coder* first = coding.first.get();
  const DType packed = first->traits().lossless ? dtype : source;
  const NodeGrid grid = node_grid(group.nodes, group.size());
  if (coding.rule.algorithm == RuleAlgorithm::kTwoLevel && grid.two_level()) {
    return {coded_two_level_all_gather_bytes(first, *group.tuning, grid, group.me, bounds, packed), !framed(first),
            plain, true};
  }
  return {coded_all_gather_bytes(*first, *group.tuning, group.me, bounds, packed), !framed(first), plain, true};
}

Price price_send(const PricedGroup& group, const MessageKey& key, int64_t count, DType dtype) {
  const int64_t plain = count * static_cast<int64_t>(size_of(dtype));
  if (!coded_here(group, key, count, dtype, false)) return {plain, true, plain, false};
  const Coder& first = *coding_of(group, key)->first;
  return {coded_message_bytes(first, *group.tuning, count, dtype), !first.traits().framed, plain, true};
}

}  // namespace thinwire
