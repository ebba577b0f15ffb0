// The order of an update: a unit that others wait for is updated right before it leaves.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "model/param_store.h"

namespace thinwire {

// Which of the optimizer's pieces (ParamStore::owned) belong to which unit. A piece may hold several units; it is
// updated whole, with the first of them that is asked for.
class UnitUpdates {
 public:
  explicit UnitUpdates(const ParamStore& store);

  using UpdatePiece = std::function<void(size_t piece)>;

  // The pieces of which nothing is published, at any time of an update.
  bool has_unpublished() const;
  void unpublished(const UpdatePiece& update) const;
  // Then begin(), and every published unit once, in any order: together they give each other piece once.
  void begin();
  void unit(int unit, const UpdatePiece& update);
  // True behind the last of them.
  bool complete() const;

 private:
  std::vector<std::vector<size_t>> pieces_of_;  // per unit; empty for those that are not published
  std::vector<bool> published_, updated_;       // per piece
};

}  // namespace thinwire
