// Whether weights mean in one model what they mean in another: names and shapes alone do not say it.
#pragma once

#include <string>

#include "model/model_config.h"

namespace thinwire {

// Throws Error(kBadConfig), beginning with `where`, that names every number of the architecture in which the weights'
// model differs from this run's, with both values and the key to set. What may differ: dropout, initialisation,
// precision, recompute, weight decay, the length of sequences (but not the rows of a learned position table), and
// vocabulary, whose rows are held to their shapes when they are read.
void require_same_model(const std::string& where, const ModelConfig& weights, const ModelConfig& here);

}  // namespace thinwire
