// `bench codec`: proves every codec against its definition, then times it on one core beside memcpy and other people's
// code; and its fidelity on synthetic data and on a tiny model's gradients, activations and weights.
#pragma once

#include <string>
#include <vector>

namespace thinwire {

// Cases are CODEC/BYTES (fp32 input; low_rank: CODEC/ROWSxCOLS) for speed and CODEC/snr for fidelity; those whose name
// contains all of `filters` run, a line each (JSON objects on request). Returns 0 if every proof held, 70 otherwise;
// filters that match nothing are a usage error.
int bench_codec(const std::vector<std::string>& filters, bool json);

}  // namespace thinwire
