// What a channel needs to code its messages: the coders of its rules, the states of its slots, and the clock.
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

// What a site's messages would cost: counted by channels that send nothing (Channel::rehearse).
struct SitePrice {
  int64_t bytes = 0;        // handed to the transport
  int64_t plain_bytes = 0;  // the same messages uncoded
  int64_t operations = 0;   // collectives, or messages sent
  int64_t largest = 0;      // bytes of the largest operation
  int64_t state_bytes = 0;  // memory of the states that were prepared
  bool exact = true;        // false: bytes is an upper bound, since lengths depend on values
  void add(int64_t sent, int64_t plain, bool is_exact);
};
using SitePrices = std::array<SitePrice, kSiteNames.size()>;

// How a site's messages are coded: as its rules say, not at all, by a cheaper codec in place of each (kLight,
// cheaper_codec), or cast to bf16. The last two keep the rules' residuals.
enum class CodingWay : uint8_t { kCoded, kPlain, kLight, kBf16 };
using CodingWays = std::array<CodingWay, kSiteNames.size()>;

// The step and pass that messages belong to: set by the training loop, read by every channel of the rank.
struct CompressionClock {
  int64_t step = 0;   // updates applied so far
  uint64_t pass = 0;  // counts updates attempted and evaluations: messages are numbered within a pass
  float loss_scale = 1.0f;
  bool train = true;  // false: evaluation; states do not change
  int threads = 1;
  uint64_t seed = 0;
  CodingWays ways{};  // by site; plan revisions change them
};

// The coders of one site, made from its rule; shared by all channels of the site.
struct SiteCompression {
  Site site = Site::kControl;
  SiteRule rule;
  std::shared_ptr<const Coder> first;  // codes contributions, and everything that is not summed
  std::shared_ptr<const Coder> sums;   // codes sums on their way back, and between nodes; nullptr: uncoded
  // The same two on a device. on_device: these, and those of all that takes its place below, can code everything there.
  std::shared_ptr<const DeviceCoder> first_on_device, sums_on_device;
  bool on_device = false;
  std::shared_ptr<const RoundCodec> rounds;  // low_rank, sketch: in place of both where messages are summed
  std::shared_ptr<const DeviceRounds> rounds_on_device;
  bool checks = false;  // every message carries a checksum, coded or not
  // Take its place under CodingWay::kLight and kBf16: other codecs, the same residuals. nullptr: this codes then, too.
  std::shared_ptr<const SiteCompression> light, bf16;
  // Ramps: {step, what takes its place from that step on}, ascending. The states go on.
  std::vector<std::pair<int64_t, std::shared_ptr<const SiteCompression>>> later;
};
const SiteCompression& compression_at(const SiteCompression& compression, int64_t step);  // as its ramps say
// What codes a message that way: `light`, `bf16`, or the compression itself.
const SiteCompression& coded_by(const SiteCompression& compression, CodingWay way);

// The verb of a slot's messages: decides which states the slot needs.
enum class ChannelUse : uint8_t { kScatter, kAllReduce, kGather, kSend };

// Which members of a SiteCompression keep a state between the messages of a slot.
struct SlotStates {
  bool first = false, sums = false, rounds = false;
};
SlotStates states_of(const SiteCompression& compression, std::span<const MatrixShape> matrices, ChannelUse use);
// Bytes of memory that these states take for messages of `count` elements.
int64_t state_bytes(const SiteCompression& compression, std::span<const MatrixShape> matrices, int64_t count,
                    ChannelUse use);

// nullptr for codec identity without a checksum. Throws Error(kBadConfig) for rules that make no sense.
std::shared_ptr<SiteCompression> make_site_compression(Site site, const SiteRule& rule);

// By number of the site's rule; nullptr: messages under that rule go uncoded.
using SiteCompressions = std::vector<std::shared_ptr<const SiteCompression>>;
// For sums (of a node, of the gradients' level) that are summed further: where a rule has a codec for sums, that one
// codes them as contributions.
SiteCompressions further_compressions(const SiteCompressions& compressions);

inline constexpr int kNoRule = -1;

// Says which of a channel's messages this is, and which rule it falls under: by plan, the same on all ranks.
struct MessageKey {
  uint32_t slot = 0;
  int rule = 0;                                // number among the site's rules; kNoRule: uncoded
  std::span<const MatrixShape> matrices = {};  // in the message; empty: it is one, of its view's shape
  std::span<const ElementRange> padding = {};  // in the message: Msg::padding
  const SiteCompression* as = nullptr;         // of another site: code it as there (stateless only)
  // Of a message that ranks send in parts: the number of this part, and the elements of the largest, by which all of
  // them are coded or not. largest_part 0: the message is whole.
  int part = 0;
  int64_t largest_part = 0;
  bool staged = false;   // it goes through the host, even where a device could carry it
  bool awaited = false;  // no compute overlaps it: the rule's codes, never the longer light ones

  // Of a unit of the model. rules: number by unit; empty: rule 0 for all.
  static MessageKey of_unit(int unit, const std::vector<int>& rules) {
    return {static_cast<uint32_t>(unit), rules.empty() ? 0 : rules.at(static_cast<size_t>(unit))};
  }
};

// Residuals in a checkpoint that so many data ranks wrote, by name.
struct OldResiduals {
  int ranks = 0;
  std::function<int64_t(const std::string& name)> count;  // elements, -1: there is no such vector
  std::function<void(const std::string& name, int64_t first, std::span<float> out)> read;
};

// Values in a rank's states: residuals that were made from old ones, and all others.
struct AdoptedStates {
  int64_t residuals = 0, others = 0;
};

// States of a channel by slot. Channels share them with the mesh, which settles and saves them.
class ChannelStates {
 public:
  struct Slot {
    std::vector<int64_t> owners;  // bounds of what each rank sums up; empty: adopt() passes over it
    int me = 0;                   // rank in the group, as in owners
    std::unique_ptr<CompressionState> first, sums, rounds;
    std::unique_ptr<CompressionState> round_residual;  // CoderState, or DeviceCoderState
    std::vector<MatrixShape> matrices;
    std::vector<ElementRange> padding;
    std::vector<MatrixShape> parts;  // the matrix that each part of a message in parts is
    int64_t count = 0;
  };
  // over_data: the channel sums gradients over all data ranks. device: where states may lie; nullptr: the host alone.
  explicit ChannelStates(std::string name, bool over_data = false, Device* device = nullptr)
      : name_(std::move(name)), over_data_(over_data), device_(device) {}

  // By slot and rule: rules that take turns at a slot keep states of their own.
  Slot& slot(const MessageKey& key) { return slots_[key.slot | static_cast<uint32_t>(std::max(0, key.rule)) << 24]; }
  // Number of the slot's next message in this pass, whichever rule it falls under: with equal numbers messages would
  // round by equal chances. Both ends of an edge count alike.
  uint32_t next_sequence(uint32_t slot, uint64_t pass) {
    Turn& turn = turns_[slot];
    if (turn.pass != pass) turn = {pass, 0};
    return turn.sequence++;
  }
  const std::string& name() const { return name_; }
  void settle(bool applied);  // commits, or rolls back what a skipped step wrote
  void visit(StateVisitor& visitor);
  // Takes over the residuals of another number of data ranks, so that their sums over the ranks stay what they were. An
  // element's residuals go to ranks that send it: the rank that sums it up adds its own share uncoded, and would keep
  // the residual for ever. Residuals of sums go to the rank that sums up now.
  AdoptedStates adopt(const OldResiduals& old);
  bool over_data() const { return over_data_; }
  int64_t bytes() const;

 private:
  std::string name_;  // "dp.gradient/3/rank0.1.0": site, kind of group, and pipeline, data and tensor rank
  bool over_data_;
  Device* device_;
  std::map<uint32_t, Slot> slots_;
  struct Turn {
    uint64_t pass = 0;      // of the last message
    uint32_t sequence = 0;  // number of the next one in that pass
  };
  std::map<uint32_t, Turn> turns_;  // by slot
};

}  // namespace thinwire
