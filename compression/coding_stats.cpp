// Sums of what coding did.
#include "compression/coder.h"

namespace thinwire {

void CodingStats::add(const CodingStats& other) {
  encode_ns += other.encode_ns;
  decode_ns += other.decode_ns;
  error_square += other.error_square;
  signal_square += other.signal_square;
  residual_square += other.residual_square;
  non_finite += other.non_finite;
}

}  // namespace thinwire
