// `train --print-samples N`: the first samples as text, so that two programs can compare what they train on.
#pragma once

#include <cstdint>
#include <ostream>

#include "data/sample_stream.h"

namespace thinwire {

// Writes n lines {"sample":i,"tokens":[...]} with the seq_length + 1 ids of training samples 0..n-1, which is the order
// of the global batch stream; no spaces. Throws Error(kUsage) if the training split has fewer samples, Error(kIo) if
// `out` fails.
void print_samples(const SampleStream& stream, int64_t n, std::ostream& out);

}  // namespace thinwire
