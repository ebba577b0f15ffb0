// Pieces by unit, and which of them a step has done.
#include "model/unit_steps.h"

#include <algorithm>

namespace thinwire {

UnitSteps::UnitSteps(const ParamStore& store)
    : pieces_of_(store.units().size()), gathered_(store.owned().size()), stepped_(store.owned().size()) {
  for (size_t i = 0; i < store.owned().size(); ++i) {
    const OwnedPiece& piece = store.owned()[i];
    const int64_t end =
        store.layout().units[static_cast<size_t>(piece.unit)].first + piece.range.first + piece.range.count;
    for (size_t u = static_cast<size_t>(piece.unit); u < pieces_of_.size() && store.layout().units[u].first < end;
         ++u) {
      if (store.units()[u].shard.sync.members.size() < 2) continue;
      pieces_of_[u].push_back(i);
      gathered_[i] = true;
    }
  }
}

bool UnitSteps::has_local() const {
  return std::find(gathered_.begin(), gathered_.end(), false) != gathered_.end();
}

void UnitSteps::local(const StepPiece& step) const {
  for (size_t i = 0; i < gathered_.size(); ++i) {
    if (!gathered_[i]) step(i);
  }
}

void UnitSteps::begin() {
  std::fill(stepped_.begin(), stepped_.end(), false);
}

void UnitSteps::unit(int unit, const StepPiece& step) {
  for (size_t piece : pieces_of_.at(static_cast<size_t>(unit))) {
    if (stepped_[piece]) continue;
    stepped_[piece] = true;
    step(piece);
  }
}

bool UnitSteps::complete() const {
  return stepped_ == gathered_;
}

}  // namespace thinwire
