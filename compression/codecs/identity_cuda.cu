// Codec identity on a GPU: a copy that looks for what is not finite, and sums of plain elements.
#include "compression/codecs/device_makers.h"
#include "compression/device_kernels.h"

namespace thinwire {
namespace {

// A tile as it is; T holds an element's bits. kSize without sign at or above kInfinite is not finite.
template <typename T, uint32_t kInfinite>
TW_KERNEL void __launch_bounds__(kTileThreads)
    copy_tiles_kernel(const T* in, T* out, int64_t count, bool vectors, DeviceTally* tally) {
  TW_SHARED_ARRAY(unsigned, word, 1);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kMostDeviceTile;
  const int n = static_cast<int>(count - at < kMostDeviceTile ? count - at : kMostDeviceTile);
  if (threadIdx.x == 0) word[0] = 0;
  bool bad = false;
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) {
    const int i = tile_element(s);
    T bits[4] = {};
    if (vectors && i + 4 <= n) {
      load_values<4>(in + at + i, bits);
      store_values<4>(out + at + i, bits);
    } else {
      TW_UNROLL
      for (int k = 0; k < 4; ++k) {
        if (i + k < n)
          bits[k] = in[at + i + k],
          memcpy(reinterpret_cast<uint8_t*>(out) + (at + i + k) * sizeof(T), &bits[k], sizeof(T));
      }
    }
    TW_UNROLL
    for (int k = 0; k < 4; ++k) bad = bad || (bits[k] & (sizeof(T) == 4 ? 0x7fffffffu : 0x7fffu)) >= kInfinite;
  }
  __syncthreads();
  if (bad) atomic_or(word, 1u);
  __syncthreads();
  if (threadIdx.x == 0 && word[0] != 0) atomic_or(&tally->flags, kDeviceNonFinite);
}

// Of plain elements nothing is decoded.
struct PlainTiles {
  TW_DEVICE bool decode(const uint8_t*, int, TileValues&) const { return true; }
};

template <typename T, uint32_t kInfinite>
void copy_tiles(Exec& exec, const PackJob& job) {
  CudaQueue queue(exec);
  const T* in = static_cast<const T*>(job.in.data);
  T* out = reinterpret_cast<T*>(job.out);
  const bool vectors = job.vectors && reinterpret_cast<uintptr_t>(out) % (4 * sizeof(T)) == 0;
  queue.launch("pack identity", copy_tiles_kernel<T, kInfinite>, {ceil_div(job.count, kMostDeviceTile)}, kTileThreads,
               0, in, out, job.count, vectors, job.tally);
}

class IdentityCodec final : public DeviceCodec {
 public:
  void queue_pack(Exec& exec, const Msg&, const PackJob& job, CompressionState*) const override {
    if (job.in.type == 0) return copy_tiles<uint32_t, 0x7f800000>(exec, job);
    if (job.in.type == 1) return copy_tiles<uint16_t, 0x7f80>(exec, job);
    copy_tiles<uint16_t, 0x7c00>(exec, job);
  }
  void queue_absorb(Exec& exec, const Msg&, const AbsorbJob& job) const override {
    queue_absorb_tiles(exec, "absorb identity", PlainTiles{}, job);
  }
};

}  // namespace

std::unique_ptr<DeviceCodec> make_identity_cuda(const CodecSpec&) {
  return std::make_unique<IdentityCodec>();
}

}  // namespace thinwire
