// Flat storage of parameters and the views into it.
#include "model/param_store.h"

namespace thinwire {

ParamStore::ParamStore(const ModelConfig& config, Arena& arena, bool training)
    : params_(list_parameters(config)), layout_(make_flat_layout(params_)) {
  for (size_t i = 0; i < params_.size(); ++i) index_[params_[i].name] = static_cast<int>(i);
  const bool mixed = config.dtype != DType::f32;
  master_ = arena.take(mixed ? MemoryCategory::kMasterWeights : MemoryCategory::kWeights, DType::f32, {layout_.total});
  if (mixed) working_ = arena.take(MemoryCategory::kWeights, config.dtype, {layout_.total});
  if (training) gradient_ = arena.take(MemoryCategory::kGradients, DType::f32, {layout_.total});
}

View ParamStore::slice(View flat, const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end() || !flat) return {};
  const ParamSpec& p = params_[found->second];
  View view = flat.element_range(layout_.by_param[found->second].offset, p.count());
  if (!p.is_vector) view = View(view.data, view.dtype, {p.rows, p.cols});
  return view;
}

View ParamStore::weight(const std::string& name) const {
  return slice(working_ ? working_ : master_, name);
}
View ParamStore::gradient(const std::string& name) const {
  return slice(gradient_, name);
}
View ParamStore::master(const std::string& name) const {
  return slice(master_, name);
}

void ParamStore::initialize(Exec& exec, uint64_t seed) {
  for (const ParamSpec& p : params_) {
    View all = master(p.name);
    View valid = p.is_vector ? all : all.row_range(0, p.valid_rows);
    switch (p.init) {
      case InitKind::kZero:
        break;  // arenas hand out zeroed memory
      case InitKind::kOne:
        exec.ops.fill_constant(exec, {valid, 1.0f});
        break;
      case InitKind::kNormal:
        exec.ops.fill_normal(exec, {valid, p.init_std, seed, p.id, 0});
        break;
    }
  }
  refresh_working(exec);
}

void ParamStore::refresh_working(Exec& exec) {
  if (working_) exec.ops.cast(exec, {master_, working_});
  bump_version();
}

void ParamStore::visit(StateVisitor& visitor) {
  for (const ParamSpec& p : params_) visitor.tensor({"model/" + p.name, p.rows, p.cols, 0, master(p.name)});
}

}  // namespace thinwire
