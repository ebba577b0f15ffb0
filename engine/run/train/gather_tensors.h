// Puts whole tensors together from the pieces of all ranks, on rank 0: for checks against other programs.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/run/checkpoint/slice_place.h"
#include "engine/run/train/replica.h"

namespace thinwire {

// Every parameter by name as rows * cols floats, from buffers that lie like the owned pieces of the store (empty: the
// master weights). All ranks call it; ranks other than 0 receive an empty map.
std::map<std::string, std::vector<float>> gather_tensors(Replica& replica, std::span<const View> pieces);

// A slice of a global matrix and its elements, as text that travels over Control::collect.
void append_part(std::string& text, const std::string& name, const SlicePlace& place, std::span<const float> values);
// Puts parts into their matrices; CHECKs at the end that no element came twice and none is missing.
class PartsInto {
 public:
  void add(const std::string& text);
  std::map<std::string, std::vector<float>> finish();

 private:
  std::map<std::string, std::vector<float>> tensors_;
  std::map<std::string, std::vector<SlicePlace>> places_;
};

}  // namespace thinwire
