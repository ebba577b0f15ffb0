// Models and batches with a name (char, tiny, 30m, 124m, 350m, llama_1b ...), for measurements and plans.
#pragma once

#include <string>
#include <vector>

namespace thinwire {

// Overrides that describe a named shape, to take 8 steps of it; empty if there is none of that name.
std::vector<std::string> shape_overrides(const std::string& name);
std::string shape_names();

}  // namespace thinwire
