// What a channel needs to code its messages: the coders of its rule, the states of its slots, and the time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compression/device_coder.h"
#include "compression/device_rounds.h"
#include "compression/round_codec.h"
#include "compression/rule.h"
#include "compression/site.h"
#include "parallel/wire/counters.h"

namespace thinwire {

// One per site and rank.
struct SiteCounters : WireCounters {
  CompressionStats compression;
};

// What a site's messages would take: counted by channels that rehearse (Channel::rehearse).
struct SitePrice {
  int64_t bytes = 0;        // handed to the transport
  int64_t plain_bytes = 0;  // the same messages uncoded
  int64_t operations = 0;   // collectives, or messages sent
  int64_t largest = 0;      // bytes of one of them
  int64_t state_bytes = 0;  // memory of the states that were prepared
  bool exact = true;        // false: bytes is a bound, lengths depend on values
  void add(int64_t sent, int64_t plain, bool is_exact);
};
using SitePrices = std::array<SitePrice, kSiteNames.size()>;

// How a site's messages are coded: as its rules say, not at all, by what their codecs have in their place (light), or
// cast to bf16 under the rules' residuals.
enum class CodingWay : uint8_t { kCoded, kPlain, kLight, kBf16 };
using CodingWays = std::array<CodingWay, kSiteNames.size()>;

// When it is: set by the training loop, read by every channel of the rank.
struct CompressionClock {
  int64_t step = 0;   // updates applied so far
  uint64_t pass = 0;  // counts updates attempted and evaluations: messages are numbered within a pass
  float loss_scale = 1.0f;
  bool train = true;  // false: evaluation; states do not change
  int threads = 1;
  uint64_t seed = 0;
  CodingWays ways{};  // by site, as plan revisions have left them
};

// The coders of one site, made from its rule; shared by all channels of the site.
struct SiteCompression {
  Site site = Site::kControl;
  SiteRule rule;
  std::shared_ptr<const Coder> first;  // of contributions, and of everything that is not summed
  std::shared_ptr<const Coder> sums;   // of sums on their way back, and between nodes; nullptr: as they are
  // The same points on a device; on_device: here, and wherever other ways or ramps take their place.
  std::shared_ptr<const DeviceCoder> first_on_device, sums_on_device;
  bool on_device = false;
  std::shared_ptr<const RoundCodec> rounds;  // low_rank, sketch: instead of both where something is summed
  std::shared_ptr<const DeviceRounds> rounds_on_device;
  bool checks = false;  // every message carries a checksum, coded or not
  // What other ways put in its place: other codecs under the same residuals. nullptr: it has none of that kind.
  std::shared_ptr<const SiteCompression> light, bf16;
  // Ramps: what takes its place after so many updates, ascending. It goes on with the same states.
  std::vector<std::pair<int64_t, std::shared_ptr<const SiteCompression>>> later;
};
const SiteCompression& compression_at(const SiteCompression& compression, int64_t step);
// What codes a message this way; the compression itself where it has nothing of that kind.
const SiteCompression& coded_by(const SiteCompression& compression, CodingWay way);

// Which states a slot needs.
enum class ChannelUse : uint8_t { kScatter, kAllReduce, kGather, kSend };

// What is kept between the messages of a slot, by its coders or its rounds.
struct SlotStates {
  bool first = false, sums = false, rounds = false;
};
SlotStates states_of(const SiteCompression& compression, std::span<const MatrixShape> matrices, ChannelUse use);
// Bytes of memory that they take for messages of `count` elements.
int64_t state_bytes(const SiteCompression& compression, std::span<const MatrixShape> matrices, int64_t count,
                    ChannelUse use);

// nullptr for codec identity without a checksum. Throws Error(kBadConfig) for rules that make no sense.
std::shared_ptr<SiteCompression> make_site_compression(Site site, const SiteRule& rule);

// A site's rules in their order; nullptr: what falls under this one goes as it is.
using SiteCompressions = std::vector<std::shared_ptr<const SiteCompression>>;
// For what was summed once already (inside the node, inside the gradients' level) and is summed further: a rule's
// second compression takes the place of the first.
SiteCompressions further_compressions(const SiteCompressions& compressions);

inline constexpr int kNoRule = -1;

// Says which of a channel's messages this is, and which rule it falls under: by plan, the same on all ranks.
struct MessageKey {
  uint32_t slot = 0;
  int rule = 0;                                // of the site's; kNoRule: it goes as it is
  std::span<const MatrixShape> matrices = {};  // of the message; empty: it is one matrix as its view is shaped
  const SiteCompression* as = nullptr;         // code it as that site does (stateless compressions only)
  // Of a message that ranks send in parts: which part this is, and the elements of the largest, which says for all of
  // them whether they are coded. 0: the message is whole.
  int part = 0;
  int64_t largest_part = 0;
  bool staged = false;   // it goes through the host, whatever a device could do
  bool awaited = false;  // nothing is there to compute while it travels: its shortest codes, never light ones

  // Of a unit of the model; rules: by unit, empty: all under the first.
  static MessageKey of_unit(int unit, const std::vector<int>& rules) {
    return {static_cast<uint32_t>(unit), rules.empty() ? 0 : rules.at(static_cast<size_t>(unit))};
  }
};

// Residuals that a checkpoint holds of so many data ranks, by name.
struct OldResiduals {
  int ranks = 0;
  std::function<int64_t(const std::string& name)> count;  // elements, -1: there is no such vector
  std::function<void(const std::string& name, int64_t first, std::span<float> out)> read;
};

// Vectors of a rank's states: those that were made of old ones, and all others.
struct AdoptedStates {
  int64_t residuals = 0, others = 0;
};

// States of a channel by slot. Channels share them with the mesh, which settles and saves them.
class ChannelStates {
 public:
  struct Slot {
    std::vector<int64_t> owners;  // bounds of the elements that each rank sums up; empty: not known to adopt()
    int me = 0;
    std::unique_ptr<CompressionState> first, sums, rounds;
    std::unique_ptr<CompressionState> round_residual;  // CoderState, or DeviceCoderState
    std::vector<MatrixShape> matrices;
    std::vector<MatrixShape> parts;  // of a message that comes in parts: the matrix that each is
    int64_t count = 0;
    uint64_t pass = 0;
    uint32_t sequence = 0;
  };
  // over_data: a channel that sums gradients over all data ranks.
  // device: where states may lie.
  explicit ChannelStates(std::string name, bool over_data = false, Device* device = nullptr)
      : name_(std::move(name)), over_data_(over_data), device_(device) {}

  // Rules that take turns at a slot keep states of their own.
  Slot& slot(const MessageKey& key) { return slots_[key.slot | static_cast<uint32_t>(std::max(0, key.rule)) << 24]; }
  const std::string& name() const { return name_; }
  void settle(bool applied);  // commits, or rolls back what a skipped step wrote
  void visit(StateVisitor& visitor);
  // Takes over the residuals of another number of data ranks, so that their sums over the ranks stay what they were. An
  // element's residuals go to ranks that send it: whoever sums it up adds its own share without coding it, and would
  // keep its residual for ever. Those of sums go to whoever sums up now.
  AdoptedStates adopt(const OldResiduals& old);
  bool over_data() const { return over_data_; }
  int64_t bytes() const;

 private:
  std::string name_;  // "dp.gradient/3/rank0.1.0": site, kind of group, and pipeline, data and tensor rank
  bool over_data_;
  Device* device_;
  std::map<uint32_t, Slot> slots_;
};

}  // namespace thinwire
