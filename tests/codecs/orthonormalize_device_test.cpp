// Orthonormal bases by the kernels of a GPU, run on the CPU: the bits of orthonormalize().
#include <gtest/gtest.h>

#include "compression/codecs/low_rank_cuda.h"
#include "tests/codecs/device_fixtures.h"

namespace thinwire::test::orthonormalize_device_test {
namespace {

using Floats = std::vector<float>;

struct Case {
  int64_t length = 0, vectors = 0;
  Floats data;
};

Case random_case(Random& random) {
  Case c;
  c.length = random() % 12 == 0 ? within(random, 500, 3000) : within(random, 1, 90);
  c.vectors = within(random, 1, std::min<int64_t>(c.length, random() % 5 == 0 ? 70 : 12));
  c.data = random_values(random, c.length * c.vectors, false);
  const auto vector = [&](uint64_t j) { return c.data.data() + static_cast<int64_t>(j) * c.length; };
  const auto n = static_cast<uint64_t>(c.vectors);
  for (int64_t change = within(random, 0, 4); change > 0; --change) {
    const uint64_t j = random() % n, k = random() % n;
    const auto way = random() % 6;
    std::normal_distribution<float> normal;
    const float size = pick(random, {1e-45f, 1e-30f, 1e-7f, 1e-5f, 1e-3f, 1.0f});
    for (int64_t e = 0; e < c.length; ++e) {
      float& to = vector(j)[e];
      if (way == 0) to = 0.0f;
      if (way == 1) to = vector(k)[e];
      if (way == 2) to = vector(k)[e] + size * normal(random);
      if (way == 3) to *= size;
      if (way == 4) to = e == static_cast<int64_t>(k) ? size : 0.0f;
    }
  }
  if (random() % 20 == 0)
    c.data[random() % c.data.size()] = pick(random, {std::numeric_limits<float>::infinity(), NAN});
  return c;
}

// Of several bases at once, every other one a factor of the other kind.
void expect_same_bits(Random& random) {
  std::vector<Case> cases(static_cast<size_t>(within(random, 1, 4)));
  std::vector<LowRankPlace> places;
  LowRankPlace next;
  Floats all;
  const bool is_p = random() % 2 == 0;
  int64_t squares = 0, vectors = 0;
  LowRankPlace most;
  for (Case& c : cases) {
    c = random_case(random);
    if (random() % 3 == 0) places.push_back({});  // elements that travel as they are
    next.rank = static_cast<int>(c.vectors), next.rows = is_p ? c.length : 1, next.cols = is_p ? 1 : c.length;
    next.p = next.q = static_cast<int64_t>(all.size());
    next.squares = squares, next.vectors = vectors;
    places.push_back(next);
    all.insert(all.end(), c.data.begin(), c.data.end());
    squares += c.vectors * c.vectors, vectors += c.vectors;
    most.rank = std::max(most.rank, next.rank);
    most.rows = std::max(most.rows, next.rows), most.cols = std::max(most.cols, next.cols);
  }
  std::vector<double> of_squares(static_cast<size_t>(2 * squares)), of_vectors(static_cast<size_t>(vectors));
  std::vector<unsigned> dependent(static_cast<size_t>(vectors)), states(places.size(), 77);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  Exec exec = make_exec(emulated_cuda_ops(), *device, *stream, 1);
  CudaQueue queue(exec);
  queue_orthonormalize(queue, {places.data(), static_cast<int>(places.size())}, is_p, all.data(),
                       {of_squares.data(), of_vectors.data(), dependent.data(), states.data()}, most);
  size_t at = 0;
  for (Case& c : cases) {
    OrthonormalScratch scratch;
    const Basis basis{c.data.data(), c.length, c.vectors};
    orthonormalize({&basis, 1}, 1, scratch);
    const Floats device_data(all.begin() + static_cast<int64_t>(at),
                             all.begin() + static_cast<int64_t>(at + c.data.size()));
    ASSERT_EQ(difference(as_dtype(c.data, DType::f32), as_dtype(device_data, DType::f32)), "")
        << c.vectors << " vectors of " << c.length;
    at += c.data.size();
  }
}

TEST(OrthonormalizeDevice, HasTheBitsOfTheHost) {
  for (int i = 0; i < 400 && !HasFailure(); ++i) {
    SCOPED_TRACE(testing::Message() << "case " << i);
    Random random(static_cast<uint64_t>(i) * 7919 + 11);
    expect_same_bits(random);
  }
}

}  // namespace
}  // namespace thinwire::test::orthonormalize_device_test
