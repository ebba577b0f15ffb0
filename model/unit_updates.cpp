// Pieces by unit, and which of them an update has done.
#include "model/unit_updates.h"

#include <algorithm>

namespace thinwire {

UnitUpdates::UnitUpdates(const ParamStore& store)
    : pieces_of_(store.units().size()), published_(store.owned().size()), updated_(store.owned().size()) {
  for (size_t i = 0; i < store.owned().size(); ++i) {
    const OwnedPiece& piece = store.owned()[i];
    const int64_t end =
        store.layout().units[static_cast<size_t>(piece.unit)].first + piece.range.first + piece.range.count;
    for (size_t u = static_cast<size_t>(piece.unit); u < pieces_of_.size() && store.layout().units[u].first < end;
         ++u) {
      if (store.units()[u].shard.update.members.size() < 2) continue;
      pieces_of_[u].push_back(i);
      published_[i] = true;
    }
  }
}

bool UnitUpdates::has_unpublished() const {
  return std::find(published_.begin(), published_.end(), false) != published_.end();
}

void UnitUpdates::unpublished(const UpdatePiece& update) const {
  for (size_t i = 0; i < published_.size(); ++i) {
    if (!published_[i]) update(i);
  }
}

void UnitUpdates::begin() {
  std::fill(updated_.begin(), updated_.end(), false);
}

void UnitUpdates::unit(int unit, const UpdatePiece& update) {
  for (size_t piece : pieces_of_.at(static_cast<size_t>(unit))) {
    if (updated_[piece]) continue;
    updated_[piece] = true;
    update(piece);
  }
}

bool UnitUpdates::complete() const {
  return updated_ == published_;
}

}  // namespace thinwire
