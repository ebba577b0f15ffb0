// Sizes and takes the buffers of a rank's share, and walks what it owns of every tensor.
#include "model/param_store.h"

#include <algorithm>

#include "engine/base/core/check.h"
#include "engine/base/core/model_units.h"

namespace thinwire {
namespace {

// Hands out consecutive parts of a buffer. An empty buffer gives empty views: of no elements where a rank has none.
class Cutter {
 public:
  Cutter(View whole, DType dtype) : whole_(whole), dtype_(dtype) {}
  View next(int64_t count) {
    View part = whole_ ? whole_.element_range(at_, count) : count == 0 ? View(nullptr, dtype_, {0}) : View{};
    at_ += count;
    return part;
  }

 private:
  View whole_;
  DType dtype_;
  int64_t at_ = 0;
};

template <typename F>
int64_t sum_over(const std::vector<UnitMemory>& units, F&& count) {
  int64_t total = 0;
  for (const UnitMemory& unit : units) total += count(unit);
  return total;
}

View end_of(View v) {
  return v.element_range(v.count(), 0);
}

View inside(View range, Range of, Range part) {
  return range.element_range(part.first - of.first, part.count);
}

bool coded_sync_of(const UnitMemory& unit, const StorePlacement& where) {
  return unit.shard.sync.members.size() > 1 && (unit.tied ? where.coded_tied_param_sync : where.coded_param_sync);
}

}  // namespace

ParamStore::ParamStore(const ModelConfig& config, Arena& arena, bool training)
    : ParamStore(ModelShard::all_of(config), StorePlacement{}, arena, training) {}

ParamStore::ParamStore(const ModelShard& shard, const StorePlacement& where, Arena& arena, bool training)
    : params_(list_local_parameters(shard)),
      layout_(make_flat_layout(params_)),
      tensor_rank_(shard.tensor_rank),
      tensor_size_(shard.tensor_size),
      fp8_(shard.whole.fp8),
      narrow_gradients_(where.gradient_dtype != DType::f32) {
  for (size_t i = 0; i < params_.size(); ++i) index_[params_[i].name] = static_cast<int>(i);
  plan_units(shard, where);
  take_weights(shard.whole.dtype, arena);
  if (training) take_gradients(arena), list_written_first(shard);
  // In fp32 the master is its range of the weights, unless a compressed parameter all-gather decides what these are.
  const bool mixed = shard.whole.dtype != DType::f32;
  const auto separate = [&](const UnitMemory& u) { return mixed || coded_sync_of(u, where); };
  const int64_t total =
      sum_over(units_, [&](const UnitMemory& u) { return separate(u) ? u.shard.optimizer.count : 0; });
  View masters;
  if (total > 0) masters = arena.take(MemoryCategory::kMasterWeights, DType::f32, {total});
  Cutter cut(masters, DType::f32);
  for (UnitMemory& unit : units_) {
    if (separate(unit)) unit.master = cut.next(unit.shard.optimizer.count);
  }
  list_owned(where);
}

// Ranges and places of every unit; no memory yet.
void ParamStore::plan_units(const ModelShard& shard, const StorePlacement& where) {
  const Placement& placement = where.placement;
  units_.resize(layout_.units.size());
  for (size_t u = 0; u < units_.size(); ++u) {
    UnitMemory& unit = units_[u];
    unit.count = layout_.units[u].count;
    if (unit.count == 0) continue;
    unit.tied = u == 0 && shard.tied_across_stages();
    TW_CHECK(!unit.tied || layout_.units[u].segments.size() == 1, "the tied embedding is a unit of its own");
    unit.shard = unit.tied ? shard_unit(unit.count, placement, where.data_rank, where.stage, 2)
                           : shard_unit(unit.count, placement, where.data_rank);
    for (const Segment& s : layout_.units[u].segments) {
      if (!params_[static_cast<size_t>(s.param)].tp_partial || s.count == 0) continue;
      const int64_t first = s.offset - layout_.units[u].first;
      std::vector<Range>& runs = unit.tp_partial;
      if (!runs.empty() && runs.back().first + runs.back().count == first)
        runs.back().count += s.count;
      else
        runs.push_back({first, s.count});
    }
  }
  int ordinal = 0;
  for (const LayerRange& chunk : shard.chunks) {
    for (int64_t layer = 0; layer < chunk.count; ++layer, ++ordinal) {
      for (int half = 0; half < 2; ++half) {  // halves of one kind take turns: they have one size
        const int64_t block = chunk.first + layer;
        UnitMemory& unit = units_.at(static_cast<size_t>(half == 0 ? attention_unit(block) : mlp_unit(block)));
        const int in_turn = ordinal % 2 * 2 + half;
        if (placement.weights > 1 && placement.hold == Hold::kUnit) unit.place = in_turn;
        if (placement.weights > 1 && placement.hold == Hold::kMicroBatch)
          unit.place = static_cast<int>(layer * 2) + half;
        const bool summed_apart = placement.gradients > 1 || narrow_gradients_;
        if (summed_apart && !where.split_backward) unit.gradient_place = in_turn;
        shared_places_ = shared_places_ || unit.place >= 0;
      }
    }
  }
}

// Takes one full-size buffer per place, and per unit that has none, and points `full` of every unit at it.
static void take_full(std::vector<UnitMemory>& units, int UnitMemory::*place_of, View UnitMemory::*full,
                      MemoryCategory category, DType dtype, Arena& arena, std::vector<View>* taken) {
  std::vector<int64_t> sizes;
  for (const UnitMemory& unit : units) {
    const int place = unit.*place_of;
    if (place < 0) continue;
    sizes.resize(std::max(sizes.size(), static_cast<size_t>(place) + 1));
    sizes[static_cast<size_t>(place)] = std::max(sizes[static_cast<size_t>(place)], unit.count);
  }
  std::vector<View> places;
  for (int64_t size : sizes) places.push_back(arena.take(category, dtype, {size}));
  for (UnitMemory& unit : units) {
    if (unit.count == 0) continue;
    const int place = unit.*place_of;
    if (place < 0) {
      unit.*full = arena.take(category, dtype, {unit.count});
      if (taken != nullptr) taken->push_back(unit.*full);
    } else {
      unit.*full = places[static_cast<size_t>(place)].element_range(0, unit.count);
    }
  }
  if (taken != nullptr) taken->insert(taken->end(), places.begin(), places.end());
}

void ParamStore::take_weights(DType dtype, Arena& arena) {
  const auto count = [](const UnitMemory& u) { return u.shard.weights.count; };
  const auto kept_count = [](const UnitMemory& u) { return u.shard.secondary.count; };
  Cutter weights(arena.take(MemoryCategory::kWeights, dtype, {sum_over(units_, count)}), dtype);
  Cutter kept(arena.take(MemoryCategory::kWeights, dtype, {sum_over(units_, kept_count)}), dtype);
  bool sharded = false;
  for (UnitMemory& unit : units_) {
    if (unit.count == 0) continue;
    unit.weights = weights.next(count(unit));
    unit.kept = kept.next(kept_count(unit));
    unit.full = unit.weights;
    sharded = sharded || unit.shard.gather.members.size() > 1;
  }
  if (sharded)
    take_full(units_, &UnitMemory::place, &UnitMemory::full, MemoryCategory::kWeights, dtype, arena, nullptr);
}

void ParamStore::take_gradients(Arena& arena) {
  bool sharded = false;
  for (const UnitMemory& unit : units_) sharded = sharded || unit.shard.shard.members.size() > 1;
  const auto count = [sharded](const UnitMemory& u) { return sharded ? u.shard.gradients.count : u.count; };
  const DType dtype = narrow_gradients_ ? DType::bf16 : DType::f32;
  TW_CHECK(!narrow_gradients_ || !sharded, "sharded gradients are fp32");
  const View memory = arena.take(MemoryCategory::kGradients, dtype, {sum_over(units_, count)});
  if (memory) gradient_memory_.push_back(memory);
  Cutter gradients(memory, dtype);
  for (UnitMemory& unit : units_) {
    if (unit.count > 0) unit.gradient_shard = unit.gradient = gradients.next(count(unit));
  }
  if (sharded || narrow_gradients_) {
    take_full(units_, &UnitMemory::gradient_place, &UnitMemory::gradient, MemoryCategory::kGradients, DType::f32, arena,
              &gradient_memory_);
  }
}

// Embeddings are added to, token by token; tied words behind the head's product, where the head is.
void ParamStore::list_written_first(const ModelShard& shard) {
  written_first_.assign(params_.size(), 0);
  for (size_t i = 0; i < params_.size(); ++i) {
    const ParamSpec& p = params_[i];
    const UnitMemory& unit = units_[static_cast<size_t>(p.unit)];
    const bool words = p.name == "embedding.word.weight";
    if (shard.last && p.name == (shard.whole.tied_head ? "embedding.word.weight" : "head.weight"))
      head_ = static_cast<int>(i);
    if (p.is_vector || !unit.gradient || unit.gradient.data != unit.gradient_shard.data) continue;
    written_first_[i] = words ? head_ == static_cast<int>(i) : p.name != "embedding.position.weight";
  }
  fresh_.assign(params_.size(), 0);
}

int ParamStore::product_gradient(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end() || written_first_.empty()) return -1;
  return written_first_[static_cast<size_t>(found->second)] != 0 ? found->second : -1;
}

void ParamStore::first_products_done(bool of_head) {
  for (size_t i = 0; i < fresh_.size(); ++i) {
    if ((static_cast<int>(i) == head_) == of_head) fresh_[i] = 0;
  }
}

std::vector<View> ParamStore::added_gradients(const OwnedPiece& piece) const {
  if (narrow_gradients_) return {};  // written whole when it is rounded
  const int64_t first = layout_.units[static_cast<size_t>(piece.unit)].first + piece.range.first;
  const int64_t end = first + piece.range.count;
  std::vector<View> added;
  int64_t from = first;  // of what is added to, up to the next tensor that is not
  const auto add_up_to = [&](int64_t to) {
    if (from < to) added.push_back(piece.gradient.element_range(from - first, to - from));
  };
  for (const Unit& unit : layout_.units) {
    for (const Segment& s : unit.segments) {
      if (written_first_[static_cast<size_t>(s.param)] == 0 || s.offset + s.count <= first || s.offset >= end) continue;
      add_up_to(std::max(s.offset, first));
      from = std::min(s.offset + s.count, end);
    }
  }
  add_up_to(end);
  return added;
}

void ParamStore::list_owned(const StorePlacement& where) {
  for (size_t u = 0; u < units_.size(); ++u) {
    UnitMemory& unit = units_[u];
    const UnitShard& s = unit.shard;
    coded_sync_ = coded_sync_ || coded_sync_of(unit, where);
    if (s.optimizer.count == 0) continue;
    OwnedPiece piece{static_cast<int>(u), s.optimizer, {}, {}, {}, false};
    const View mine = inside(unit.weights, s.weights, s.optimizer);
    const bool separate = unit.master.rank > 0;
    piece.master = separate ? unit.master : mine;
    if (separate) piece.working = mine;
    piece.coded_sync = coded_sync_of(unit, where);
    if (!piece.coded_sync) unit.master = {};  // the parameter all-gather starts from the working range
    if (unit.gradient_shard) piece.gradient = inside(unit.gradient_shard, s.gradients, s.optimizer);
    if (!owned_.empty() && tensor_size_ == 1) {
      OwnedPiece& before = owned_.back();
      const UnitMemory& unit_before = units_[static_cast<size_t>(before.unit)];
      const auto adjacent = [](View a, View b) { return !a ? !b : end_of(a).data == b.data; };
      if (layout_.units[static_cast<size_t>(before.unit)].first + before.range.first + before.range.count ==
              layout_.units[u].first + piece.range.first &&
          unit_before.shard.counted == s.counted && before.coded_sync == piece.coded_sync &&
          adjacent(before.master, piece.master) && adjacent(before.working, piece.working) &&
          adjacent(before.gradient, piece.gradient)) {
        const auto longer = [&](View v) { return v ? View(v.data, v.dtype, {v.count() + piece.range.count}) : v; };
        before.master = longer(before.master), before.working = longer(before.working),
        before.gradient = longer(before.gradient);
        before.range.count += piece.range.count;
        continue;
      }
    }
    owned_.push_back(piece);
  }
}

View ParamStore::weight(const std::string& name) const {
  return tensor_of(name, &UnitMemory::full);
}

View ParamStore::gradient(const std::string& name) const {
  return tensor_of(name, &UnitMemory::gradient);
}

View ParamStore::tensor_of(const std::string& name, View UnitMemory::*field) const {
  const auto found = index_.find(name);
  if (found == index_.end()) return {};
  const ParamSpec& p = params_[static_cast<size_t>(found->second)];
  const size_t u = static_cast<size_t>(p.unit);
  const View buffer = units_[u].*field;
  if (!buffer) return {};
  const Segment& s = layout_.by_param[static_cast<size_t>(found->second)];
  const View flat = buffer.element_range(s.offset - layout_.units[u].first, s.count);
  return p.is_vector ? flat : View(flat.data, flat.dtype, {p.local_rows(), p.local_cols()});
}

template <typename F>
void ParamStore::for_each_owned(F&& part) const {
  for (size_t i = 0; i < owned_.size(); ++i) {
    const OwnedPiece& piece = owned_[i];
    const int64_t first = layout_.units[static_cast<size_t>(piece.unit)].first + piece.range.first;
    const int64_t end = first + piece.range.count;
    for (size_t u = static_cast<size_t>(piece.unit); u < units_.size() && layout_.units[u].first < end; ++u) {
      for (const Segment& s : layout_.units[u].segments) {
        const int64_t a = std::max(first, s.offset), b = std::min(end, s.offset + s.count);
        if (a < b) part(params_[static_cast<size_t>(s.param)], i, a - first, a - s.offset, b - a);
      }
    }
  }
}

// Of copies one counts: tensors that are whole on every tensor rank are the first one's, replicas see UnitShard.
bool ParamStore::counts(const UnitMemory& unit, const ParamSpec& p) const {
  return unit.shard.counted && (tensor_rank_ == 0 || p.tp_axis != TpAxis::kNone);
}

std::vector<View> ParamStore::counted_gradients() const {
  std::vector<View> views;
  if (tensor_rank_ == 0) {  // padding is zero and may be among them
    for (const OwnedPiece& piece : owned_) {
      if (piece.gradient && units_[static_cast<size_t>(piece.unit)].shard.counted) views.push_back(piece.gradient);
    }
    return views;
  }
  for_each_owned([&](const ParamSpec& p, size_t i, int64_t at, int64_t, int64_t count) {
    if (owned_[i].gradient && counts(units_[static_cast<size_t>(p.unit)], p))
      views.push_back(owned_[i].gradient.element_range(at, count));
  });
  return views;
}

std::vector<View> ParamStore::copied_gradients() const {
  std::vector<View> views;
  if (tensor_rank_ == 0) return views;
  for_each_owned([&](const ParamSpec& p, size_t i, int64_t at, int64_t, int64_t count) {
    if (owned_[i].gradient && p.tp_axis == TpAxis::kNone) views.push_back(owned_[i].gradient.element_range(at, count));
  });
  return views;
}

void ParamStore::initialize(Exec& exec, uint64_t seed) {
  for_each_owned([&](const ParamSpec& p, size_t i, int64_t at, int64_t local, int64_t count) {
    if (p.init == InitKind::kZero) return;  // arenas hand out zeroed memory
    const int64_t valid = p.valid_rows * p.cols;
    for_each_run(p, local, count, [&](int64_t first, int64_t global, int64_t length) {
      length = std::min(length, valid - global);
      if (length <= 0) return;
      const View run = owned_[i].master.element_range(at + first - local, length);
      if (p.init == InitKind::kOne)
        exec.ops.fill_constant(exec, {run, 1.0f});
      else
        exec.ops.fill_normal(exec, {run, p.init_std, seed, p.id, global});
    });
  });
  refresh_working(exec);
}

bool ParamStore::set(Device& device, Stream& stream, const std::string& name, std::span<const float> values) {
  const auto found = index_.find(name);
  if (found == index_.end()) return false;
  TW_CHECK(static_cast<int64_t>(values.size()) == params_[static_cast<size_t>(found->second)].count(), name, ": ",
           values.size(), " values");
  bool any = false;
  for_each_owned([&](const ParamSpec& p, size_t i, int64_t at, int64_t local, int64_t count) {
    if (p.name != name) return;
    any = true;
    for_each_run(p, local, count, [&](int64_t first, int64_t global, int64_t length) {
      const View run = owned_[i].master.element_range(at + first - local, length);
      device.copy_to_device(run.data, values.data() + global, run.bytes(), stream).wait_on_host();
    });
  });
  return any;
}

void ParamStore::refresh_working(Exec& exec, bool synced_too) {
  for (const OwnedPiece& piece : owned_) {
    if (piece.working && (synced_too || !piece.coded_sync)) exec.ops.cast(exec, {piece.master, piece.working});
  }
  bump_version();
}

void ParamStore::visit(StateVisitor& visitor, const std::string& prefix, std::span<const View> pieces,
                       bool writer_only) const {
  TW_CHECK(pieces.empty() || pieces.size() == owned_.size(), pieces.size(), " buffers for ", owned_.size(), " pieces");
  for_each_owned([&](const ParamSpec& p, size_t i, int64_t at, int64_t local, int64_t count) {
    if (writer_only && !counts(units_[static_cast<size_t>(p.unit)], p)) return;
    const View buffer = pieces.empty() ? owned_[i].master : pieces[i];
    if (!buffer) return;
    int64_t start = 0;  // of the rectangle, in local elements
    for (const ParamRect& r : p.local) {
      const int64_t a = std::max(local, start), b = std::min(local + count, start + r.count());
      if (a < b) {
        View part = buffer.element_range(at + a - local, b - a);
        if (b - a == p.count() && !p.is_vector) part = View(part.data, part.dtype, {p.rows, p.cols});
        visitor.tensor({prefix + p.name, p.rows, p.cols, r.row, r.rows, r.col, r.cols, a - start, part});
      }
      start += r.count();
    }
  });
}

}  // namespace thinwire
