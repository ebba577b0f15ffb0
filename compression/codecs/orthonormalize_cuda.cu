// Orthonormal bases on a GPU: orthonormalize.cpp step by step, every number by the same operations in the same order.
//
// The passes that nearly every basis needs spread over the GPU, each in three kernels; a state per basis tells those
// behind it that it is done. The last kernel takes the bases that are not, each in one block of threads, for all passes
// that are left: the host would have to wait to know how many there are.
#include "compression/codecs/low_rank_cuda.h"
#include "engine/base/ops/cuda_dropout.h"

namespace thinwire {
namespace {

constexpr int kThreads = 256, kGramThreads = 64, kApplyThreads = 256;
constexpr int kWidePasses = 2;
constexpr int kSharedRank = 48;  // up to which the small matrices are in shared memory

// Of a basis between kernels. kFine + pass: it is done behind this pass.
enum State : unsigned { kAgain, kNonFinite, kFine };

struct DeviceBasis {
  float* data;
  int64_t length;
  int vectors;
  double *gram, *small;  // [vectors, vectors]
  double* scale;         // [vectors]
  unsigned* dependent;   // [vectors]
};

constexpr size_t small_bytes(int rank) {
  const auto r = static_cast<size_t>(rank);
  return (2 * r * r + r) * sizeof(double) + r * sizeof(unsigned);
}

struct Factors {
  LowRankPlaces places;
  bool is_p;
  float* data;
  OrthonormalSpace space;
};

// shared: memory for the small matrices up to kSharedRank; nullptr: all are in the space.
TW_DEVICE DeviceBasis basis_of(const Factors& factors, unsigned number, unsigned char* shared) {
  const LowRankPlace& place = factors.places.list[number];
  const OrthonormalSpace& space = factors.space;
  const int64_t at = factors.is_p ? place.p : place.q;
  const int r = place.rank;
  const bool is_shared = shared != nullptr && r <= kSharedRank;
  DeviceBasis b;
  b.data = factors.data + at;
  b.length = factors.is_p ? place.rows : place.cols;
  b.vectors = r;
  b.gram = is_shared ? reinterpret_cast<double*>(shared) : space.squares + 2 * place.squares;
  b.small = b.gram + r * r;
  b.scale = is_shared ? b.small + r * r : space.vectors + place.vectors;
  b.dependent = is_shared ? reinterpret_cast<unsigned*>(b.scale + r) : space.dependent + place.vectors;
  return b;
}

// Element e of a direction that does not depend on data.
TW_DEVICE float direction(const DeviceBasis& b, int vector, int attempt, int64_t e) {
  const auto four = static_cast<uint64_t>(e) & ~uint64_t{3};
  const Words words =
      philox_words(kDirections, static_cast<uint32_t>(b.length), static_cast<uint32_t>(four),
                   static_cast<uint32_t>(four >> 32), static_cast<uint32_t>(vector), static_cast<uint32_t>(attempt));
  const uint32_t low = e & 1 ? words.w[1] : words.w[0], high = e & 1 ? words.w[3] : words.w[2];
  return static_cast<float>(static_cast<int32_t>(e & 2 ? high : low) >> 8) * 0x1p-23f + 0x1p-24f;
}

// Pair number `task` of vectors i <= j: rows of the triangle from both ends are as long together as each two others.
TW_DEVICE void pair_of(int task, int r, int& i, int& j) {
  const int row = task / (r + 1), at = task % (r + 1);
  i = at < r - row ? row : r - 1 - row;
  j = at < r - row ? row + at : i + at - (r - row);
}

// Eight neighbouring threads hold the partial sums of a product; `blocks` blocks share the products, this is number
// `block`.
TW_DEVICE void gram_matrix(const DeviceBasis& b, unsigned block, unsigned blocks) {
  const int r = b.vectors, tasks = r * (r + 1) / 2, lane = static_cast<int>(threadIdx.x % 8);
  const int at_once = static_cast<int>(blockDim.x / 8);
  for (int before = static_cast<int>(block) * at_once; before < tasks; before += static_cast<int>(blocks) * at_once) {
    const int task = before + static_cast<int>(threadIdx.x / 8);
    const bool there = task < tasks;
    int i = 0, j = 0;
    if (there) pair_of(task, r, i, j);
    const float *x = b.data + i * b.length, *y = b.data + j * b.length;
    const int64_t whole = there ? b.length / 8 * 8 : 0;
    double sum = 0.0;
    TW_UNROLL_BY(8)
    for (int64_t e = lane; e < whole; e += 8) sum = fma(static_cast<double>(x[e]), static_cast<double>(y[e]), sum);
    sum += shuffle_xor(sum, 4);
    sum += shuffle_xor(sum, 2);
    sum += shuffle_xor(sum, 1);
    if (!there || lane != 0) continue;
    for (int64_t e = whole; e < b.length; ++e) sum += static_cast<double>(x[e]) * static_cast<double>(y[e]);
    b.gram[i * r + j] = sum;
  }
}

TW_DEVICE bool is_finite_gram(const DeviceBasis& b) {
  bool finite = true;
  for (int k = 0; k < b.vectors; ++k) {
    const double square = b.gram[k * b.vectors + k];
    finite = finite && square - square == 0.0;
  }
  return finite;
}

// LowRankKernels::invert_gram. word: of shared memory. Returns whether the basis is fine behind this pass.
TW_DEVICE bool invert_gram(const DeviceBasis& b, double* word) {
  const int r = b.vectors, me = static_cast<int>(threadIdx.x);
  for (int i = me; i < r; i += kThreads) {
    const double square = b.gram[i * r + i];
    b.scale[i] = square > 0.0 ? 1.0 / sqrt(square) : 0.0;
    b.dependent[i] = square > 0.0 ? 0u : 1u;
  }
  __syncthreads();
  for (int x = me; x < r * r; x += kThreads) {
    const int i = x / r, j = x % r;
    if (j >= i) b.gram[x] = i == j ? 1.0 : b.gram[x] * b.scale[i] * b.scale[j];
    b.small[x] = 0.0;
  }
  __syncthreads();
  for (int k = 0; k < r; ++k) {
    double* const row = b.gram + k * r;
    const double pivot = row[k];
    const bool gone = b.dependent[k] != 0 || !(pivot > kDependentRest);
    __syncthreads();
    const double inverse = gone ? 0.0 : 1.0 / sqrt(pivot);
    if (gone && me == 0) b.dependent[k] = 1;
    for (int j = k + me; j < r; j += kThreads) row[j] = gone ? 0.0 : row[j] * inverse;
    __syncthreads();
    const int left = gone ? 0 : r - k - 1;
    for (int x = me; x < left * left; x += kThreads) {
      const int i = k + 1 + x / left, j = k + 1 + x % left;
      if (j >= i) b.gram[i * r + j] = fma(-row[i], row[j], b.gram[i * r + j]);
    }
    __syncthreads();
  }
  for (int i = r - 1; i >= 0; --i) {
    const double* const row = b.gram + i * r;
    const double inverse = b.dependent[i] != 0 ? 0.0 : 1.0 / row[i];
    for (int j = i + me; j < r && b.dependent[i] == 0; j += kThreads) {
      if (b.dependent[j] != 0) continue;
      double sum = 0.0;
      for (int k = i + 1; k <= j; ++k) {
        if (b.dependent[k] == 0) sum = fma(row[k], b.small[k * r + j], sum);
      }
      b.small[i * r + j] = j == i ? inverse : sum * -inverse;
    }
    __syncthreads();
  }
  if (me == 0) {
    double norm = 0.0;
    bool complete = true;
    for (int i = r - 1; i >= 0; --i) {
      complete = complete && b.dependent[i] == 0;
      for (int j = i; j < r && b.dependent[i] == 0; ++j) norm = fma(b.small[i * r + j], b.small[i * r + j], norm);
    }
    *word = complete && norm <= kFineAtOnce ? 1.0 : 0.0;
  }
  __syncthreads();
  for (int x = me; x < r * r; x += kThreads) {
    if (x % r >= x / r) b.small[x] *= b.scale[x / r];
  }
  __syncthreads();
  return *word != 0.0;
}

// Element e of all vectors, from the last one on: what goes into a vector is not written before it. again: there will
// be another pass, for which dependent vectors give way.
TW_DEVICE void apply(const DeviceBasis& b, int64_t e, bool again, int pass) {
  const int r = b.vectors;
  for (int j = r - 1; j >= 0; --j) {
    double sum = 0.0;
    for (int i = 0; i <= j; ++i) sum = fma(static_cast<double>(b.data[i * b.length + e]), b.small[i * r + j], sum);
    b.data[j * b.length + e] = again && b.dependent[j] != 0 ? direction(b, j, pass, e) : static_cast<float>(sum);
  }
}
TW_DEVICE void make_nan(const DeviceBasis& b, int64_t e) {
  for (int j = 0; j < b.vectors; ++j) b.data[j * b.length + e] = float_of_bits(0x7fc00000u);
}

// ---- kernels; block y, or x where there is no y, is of the place of that number ------------------------------------
TW_KERNEL void __launch_bounds__(kGramThreads) gram_kernel(const TW_GRID_CONSTANT Factors factors, int pass) {
  if (factors.places.list[blockIdx.y].rank == 0 || (pass > 0 && factors.space.states[blockIdx.y] != kAgain)) return;
  gram_matrix(basis_of(factors, blockIdx.y, nullptr), blockIdx.x, gridDim.x);
}

TW_KERNEL void __launch_bounds__(kThreads, 1) invert_kernel(const TW_GRID_CONSTANT Factors factors, int pass) {
  TW_DYNAMIC_SHARED(shared);
  TW_SHARED_ARRAY(double, word, 1);
  unsigned& state = factors.space.states[blockIdx.x];
  if (factors.places.list[blockIdx.x].rank == 0 || (pass > 0 && state != kAgain)) return;
  const DeviceBasis b = basis_of(factors, blockIdx.x, shared), kept = basis_of(factors, blockIdx.x, nullptr);
  const int r = b.vectors, me = static_cast<int>(threadIdx.x);
  for (int x = me; x < r * r && b.gram != kept.gram; x += kThreads) b.gram[x] = kept.gram[x];
  __syncthreads();
  const bool finite = is_finite_gram(b);
  __syncthreads();
  const bool fine = finite && invert_gram(b, word);
  if (me == 0) state = !finite ? kNonFinite : fine ? kFine + static_cast<unsigned>(pass) : kAgain;
  if (!finite || b.gram == kept.gram) return;
  for (int x = me; x < r * r; x += kThreads) kept.small[x] = b.small[x];
  for (int x = me; x < r; x += kThreads) kept.dependent[x] = b.dependent[x];
}

TW_KERNEL void __launch_bounds__(kApplyThreads) apply_kernel(const TW_GRID_CONSTANT Factors factors, int pass) {
  if (factors.places.list[blockIdx.y].rank == 0) return;
  const unsigned state = factors.space.states[blockIdx.y];
  if (state >= kFine && state != kFine + static_cast<unsigned>(pass)) return;
  const DeviceBasis b = basis_of(factors, blockIdx.y, nullptr);
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kApplyThreads + threadIdx.x;
  if (e >= b.length) return;
  if (state == kNonFinite)
    make_nan(b, e);
  else
    apply(b, e, state == kAgain, pass);
}

// The passes behind the wide ones.
TW_KERNEL void __launch_bounds__(kThreads, 1) finish_kernel(const TW_GRID_CONSTANT Factors factors) {
  TW_DYNAMIC_SHARED(shared);
  TW_SHARED_ARRAY(double, word, 1);
  if (factors.places.list[blockIdx.x].rank == 0 || factors.space.states[blockIdx.x] != kAgain) return;
  const DeviceBasis b = basis_of(factors, blockIdx.x, shared);
  for (int pass = kWidePasses; pass < kOrthonormalPasses; ++pass) {
    gram_matrix(b, 0, 1);
    __syncthreads();
    const bool finite = is_finite_gram(b);
    __syncthreads();
    const bool fine = finite && invert_gram(b, word);
    const bool renewed = !fine && pass + 1 < kOrthonormalPasses;  // behind the last one no pass would norm it
    for (int64_t e = threadIdx.x; e < b.length; e += kThreads) finite ? apply(b, e, renewed, pass) : make_nan(b, e);
    __syncthreads();
    if (fine || !finite) return;
  }
}

}  // namespace

void queue_orthonormalize(CudaQueue& queue, const LowRankPlaces& places, bool is_p, float* data,
                          const OrthonormalSpace& space, const LowRankPlace& most) {
  constexpr const char* kWhat = "orthonormalize";
  const Factors factors = {places, is_p, data, space};
  const size_t shared = small_bytes(most.rank < kSharedRank ? most.rank : kSharedRank);
  const int64_t pairs = int64_t{most.rank} * (most.rank + 1) / 2, length = is_p ? most.rows : most.cols;
  for (int pass = 0; pass < kWidePasses; ++pass) {
    queue.launch(kWhat, gram_kernel, {ceil_div(pairs * 8, kGramThreads), places.count}, kGramThreads, 0, factors, pass);
    queue.launch(kWhat, invert_kernel, {places.count}, kThreads, shared, factors, pass);
    queue.launch(kWhat, apply_kernel, {ceil_div(length, kApplyThreads), places.count}, kApplyThreads, 0, factors, pass);
  }
  queue.launch(kWhat, finish_kernel, {places.count}, kThreads, shared, factors);
}

}  // namespace thinwire
