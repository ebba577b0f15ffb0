// What `bench codec` times in the same run as our codecs: libzfp and zstd where the build found them, and the matrix
// products of a low-rank message alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace thinwire {

// Compresses messages of one fixed size with another library, on one core.
class CodecPeer {
 public:
  virtual ~CodecPeer() = default;
  virtual std::string name() const = 0;
  virtual bool has_payload() const { return true; }  // false: only the work is comparable (products)
  // Returns the payload, which stays until the next call.
  virtual std::span<const std::byte> encode(std::span<const float> x) = 0;
  // payload: what encode() has just returned.
  virtual void decode(std::span<const std::byte> payload, std::span<float> y) = 0;
};

// nullptr in a build without the library.
std::unique_ptr<CodecPeer> make_libzfp_peer(double rate, int64_t count);
std::unique_ptr<CodecPeer> make_zstd_peer(int level, int64_t count);

// encode: x q and x^T p of x [rows, cols] and factors of `rank` vectors; decode: p q^T. By the engine's matmul
// (oneDNN), with the vectors of the factors as rows or as columns, whichever is faster here.
std::unique_ptr<CodecPeer> make_products_peer(int64_t rows, int64_t cols, int64_t rank);

}  // namespace thinwire
