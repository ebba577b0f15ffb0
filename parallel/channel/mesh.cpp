// Coordinates, groups and channels of the mesh.
#include "parallel/channel/mesh.h"

#include "engine/base/core/check.h"

namespace thinwire {

static_assert(static_cast<int>(GroupKind::kCount) <= kMaxGroups);

int rank_at(const MeshShape& shape, const Coordinates& at) {
  return (at.pipeline * shape.data + at.data) * shape.tensor + at.tensor;
}

Coordinates coordinates_of(const MeshShape& shape, int rank) {
  TW_CHECK(rank >= 0 && rank < shape.ranks(), "rank ", rank, " of ", shape.ranks());
  return {rank / (shape.data * shape.tensor), rank / shape.tensor % shape.data, rank % shape.tensor};
}

namespace {

std::vector<int> ranks_along(const MeshShape& shape, Coordinates at, int Coordinates::*axis, int size) {
  std::vector<int> ranks;
  for (at.*axis = 0; at.*axis < size; ++(at.*axis)) ranks.push_back(rank_at(shape, at));
  return ranks;
}

}  // namespace

std::vector<int> tensor_ranks(const MeshShape& shape, const Coordinates& at) {
  return ranks_along(shape, at, &Coordinates::tensor, shape.tensor);
}

std::vector<int> data_ranks(const MeshShape& shape, const Coordinates& at) {
  return ranks_along(shape, at, &Coordinates::data, shape.data);
}

std::vector<int> context_ranks(const MeshShape& shape, const Coordinates& at) {
  const int first = at.data / shape.context * shape.context;
  std::vector<int> ranks;
  for (int c = 0; c < shape.context; ++c) ranks.push_back(rank_at(shape, {at.pipeline, first + c, at.tensor}));
  return ranks;
}

std::vector<int> pipeline_ranks(const MeshShape& shape, const Coordinates& at) {
  return ranks_along(shape, at, &Coordinates::pipeline, shape.pipeline);
}

NodeGrid common_grid(const MeshShape& shape, std::span<const int> nodes, std::span<const int> ranks) {
  NodeGrid common;
  std::vector<int> there(ranks.size());
  for (int tensor = 0; tensor < shape.tensor; ++tensor) {
    for (size_t i = 0; i < ranks.size(); ++i)
      there[i] = nodes[static_cast<size_t>(ranks[i] - ranks[i] % shape.tensor + tensor)];
    const NodeGrid grid = node_grid(there, static_cast<int>(there.size()));
    if (tensor > 0 && grid != common) return {0, 0};
    common = grid;
  }
  return common;
}

std::vector<int> pretend_nodes(int ranks, int ranks_per_node) {
  TW_CHECK(ranks_per_node >= 1);
  std::vector<int> nodes;
  for (int r = 0; r < ranks; ++r) nodes.push_back(r / ranks_per_node);
  return nodes;
}

Mesh::Mesh(Progress& progress, const MeshShape& shape, std::vector<int> nodes, const CommTuning& tuning)
    : progress_(&progress),
      shape_(shape),
      rank_(progress.transport().rank()),
      nodes_(std::move(nodes)),
      tuning_(tuning) {
  TW_CHECK(shape.pipeline >= 1 && shape.data >= 1 && shape.tensor >= 1 && shape.ranks() == progress.transport().size(),
           "a mesh of ", shape.ranks(), " ranks over ", progress.transport().size());
  TW_CHECK(shape.context >= 1 && shape.data % shape.context == 0, shape.context, " context ranks among ", shape.data);
  TW_CHECK(static_cast<int>(nodes_.size()) == shape.ranks(), nodes_.size(), " nodes for ", shape.ranks(), " ranks");
  at_ = coordinates_of(shape_, rank_);
}

namespace {

// Number of the random sequence that a group rounds by. Slots and ranks count from 0 in every group: with one sequence
// for all, replicas would round alike, and so would the groups that sum a sum further, and the errors would not average
// out. 0 for weights and for the embedding's sum of two stages, which must come out the same in all groups.
uint64_t draws_of(const MeshShape& shape, GroupKind kind, Site site, const std::vector<int>& ranks, bool further) {
  if (traits_of(site).identical) return 0;
  const int of_kind = further ? static_cast<int>(kind) * shape.data : 0;
  return static_cast<uint64_t>(of_kind + coordinates_of(shape, ranks.front()).data);
}

// Which members exchange messages: neighbouring stages, none, or all (their contributions to sums).
DeviceEdges edges_of(GroupKind kind) {
  if (kind == GroupKind::kPpForward || kind == GroupKind::kPpBackward) return DeviceEdges::kRing;
  return kind == GroupKind::kWorld || kind == GroupKind::kTpControl ? DeviceEdges::kNone : DeviceEdges::kAll;
}

}  // namespace

void Mesh::connect_device(const std::string& id) {
  device_->connect(id, shape_.ranks(), rank_, static_cast<int>(GroupKind::kCount));
}

Channel Mesh::channel(GroupKind kind, Site site, std::vector<int> ranks, bool further) {
  if (ranks.size() <= 1) return {};
  std::vector<int> nodes;
  for (int r : ranks) {
    TW_CHECK(r >= 0 && r < shape_.ranks(), "rank ", r, " of ", shape_.ranks());
    nodes.push_back(nodes_[static_cast<size_t>(r)]);
  }
  const uint64_t draws = draws_of(shape_, kind, site, ranks, further);
  const bool over_data = site == Site::kDpGradient && static_cast<int>(ranks.size()) == shape_.data;
  // Tensor ranks hold copies of norms and biases, which drift apart where the groups add in different orders.
  CommTuning tuning = tuning_;
  if (site == Site::kDpGradient) tuning.two_levels = common_grid(shape_, nodes_, ranks).two_level();
  auto communicator = std::make_unique<Communicator>(*progress_, std::move(ranks), static_cast<int>(kind), site,
                                                     &counters(site), std::move(nodes), tuning);
  if (device_ != nullptr && prices_ == nullptr) {
    const DeviceGroup& group = device_->group(static_cast<int>(kind), communicator->ranks(), rank_, edges_of(kind));
    communicator->use_device(std::make_unique<DeviceCommunicator>(*device_, group, *progress_, static_cast<int>(kind),
                                                                  site, &counters(site)));
  }
  const SiteCompressions& all = compressions_[static_cast<size_t>(site)];
  SiteCompressions compressions = further ? further_compressions(all) : all;
  auto states = std::make_shared<ChannelStates>(
      std::string(name_of(site)) + "/" + std::to_string(static_cast<int>(kind)) + "/rank" +
          std::to_string(at_.pipeline) + "." + std::to_string(at_.data) + "." + std::to_string(at_.tensor),
      over_data, device_ != nullptr ? &device_->device() : nullptr);
  states_.push_back(states);
  const bool gathers_weights = kind == GroupKind::kParameterSync || kind == GroupKind::kEmbeddingSync;
  Channel channel(std::move(communicator), std::move(compressions), gathers_weights ? &gather_clock_ : &clock_,
                  &counters(site), std::move(states), draws);
  if (prices_ != nullptr) channel.rehearse(&(*prices_)[static_cast<size_t>(site)]);
  return channel;
}

void Mesh::settle_states(bool applied) {
  for (const auto& weak : states_) {
    if (const auto states = weak.lock()) states->settle(applied);
  }
}

namespace {

// A checkpoint takes single numbers from rank 0 alone. Those of compression states differ by rank: shown as tensors.
class NumbersAsTensors final : public StateVisitor {
 public:
  explicit NumbersAsTensors(StateVisitor& to) : to_(to) {}
  void tensor(const GlobalSlice& slice) override { to_.tensor(slice); }
  void integer(const std::string& name, int64_t& value) override {
    to_.tensor(GlobalSlice::whole(name, 1, 1, View(&value, DType::i64, {1})));
  }
  void real(const std::string& name, double& value) override {
    to_.tensor(GlobalSlice::whole(name, 1, 1, View(&value, DType::f64, {1})));
  }
  void text(const std::string& name, std::string&) override { TW_CHECK(false, name, ": a coding state holds numbers"); }

 private:
  StateVisitor& to_;
};

}  // namespace

void Mesh::visit_states(StateVisitor& real_visitor) {
  NumbersAsTensors visitor(real_visitor);
  for (const auto& weak : states_) {
    if (const auto states = weak.lock()) states->visit(visitor);
  }
}

AdoptedStates Mesh::adopt_residuals(const OldResiduals& old) {
  AdoptedStates all;
  for (const auto& weak : states_) {
    const auto states = weak.lock();
    if (states == nullptr) continue;
    const AdoptedStates done = states->adopt(old);
    all.residuals += done.residuals, all.others += done.others;
  }
  return all;
}

int64_t Mesh::state_bytes() const {
  int64_t total = 0;
  for (const auto& weak : states_) {
    if (const auto states = weak.lock()) total += states->bytes();
  }
  for (size_t site = 0; prices_ != nullptr && site < prices_->size(); ++site) total += (*prices_)[site].state_bytes;
  return total;
}

}  // namespace thinwire
