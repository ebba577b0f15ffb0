// Messages for tests of low_rank on a device: matrices of all shapes, with what orthonormalisation has trouble with.
#pragma once

#include <cstdlib>

#include "tests/codecs/device_fixtures.h"
#include "tests/support/coded_device.h"

namespace thinwire::test {

using Floats = std::vector<float>;

struct Shape {
  int64_t count = 0;
  std::vector<MatrixShape> matrices;
};
inline Shape random_shape(Random& random) {
  Shape shape;
  const auto gap = [&] { shape.count += random() % 2 == 0 ? 0 : within(random, 1, random() % 4 == 0 ? 5000 : 40); };
  const int64_t matrices = random() % 2 == 0 ? 1 : within(random, 2, random() % 16 == 0 ? 70 : 5);
  for (int64_t i = 0; i < matrices; ++i) {
    gap();
    const int64_t most = matrices > 5 ? 9 : 70;
    int64_t rows = within(random, 1, most), cols = within(random, 1, most);
    if (matrices == 1 && random() % 6 == 0) {
      rows = random() % 2 == 0 ? within(random, 4000, 8300) : within(random, 60, 400);
      cols = rows > 1000 ? within(random, 2, 12) : within(random, 60, 300);
      if (random() % 2 == 0) std::swap(rows, cols);
    }
    shape.matrices.push_back({shape.count, rows, cols});
    shape.count += rows * cols;
  }
  gap();
  return shape;
}

// What orthonormalisation has trouble with.
inline void fill_matrix(Random& random, const MatrixShape& m, Floats& x) {
  float* const to = x.data() + m.first;
  const Floats values = random_values(random, m.rows * m.cols, false);
  const auto way = random() % 10;
  std::normal_distribution<float> normal;
  if (way < 4) {
    std::copy(values.begin(), values.end(), to);
  } else if (way < 6) {  // of less rank than it looks like, exactly or nearly
    const int64_t rank = within(random, 0, 3);
    const float noise = random() % 2 == 0 ? 0.0f : 1e-7f, size = random() % 3 == 0 ? 1e-38f : 1.0f;
    Floats u(static_cast<size_t>(m.rows * rank)), v(static_cast<size_t>(m.cols * rank));
    for (Floats* const f : {&u, &v})
      for (float& e : *f) e = normal(random);
    for (int64_t i = 0; i < m.rows; ++i)
      for (int64_t j = 0; j < m.cols; ++j) {
        float sum = noise * normal(random);
        for (int64_t c = 0; c < rank; ++c)
          sum += u[static_cast<size_t>(i * rank + c)] * v[static_cast<size_t>(j * rank + c)];
        to[i * m.cols + j] = sum * size;
      }
  } else if (way == 6) {  // rows that are the same, but for their size
    for (int64_t e = 0; e < m.rows * m.cols; ++e)
      to[e] = values[static_cast<size_t>(e % m.cols)] * static_cast<float>(e / m.cols % 3);
  } else if (way == 7) {  // one element
    to[random() % static_cast<uint64_t>(m.rows * m.cols)] = pick(random, {1.0f, -3e38f, 1e-45f});
  } else {  // no more than a few bits of subnormals, or next to what overflows
    const float unit = way == 8 ? 0x1p-149f : 0x1p120f;
    for (int64_t e = 0; e < m.rows * m.cols; ++e) to[e] = unit * static_cast<float>(within(random, -9, 9));
  }
}

inline Floats random_message(Random& random, const Shape& shape, bool strange) {
  Floats x = random_values(random, shape.count, false);
  for (const MatrixShape& m : shape.matrices) fill_matrix(random, m, x);
  if (strange)
    x[random() % x.size()] = pick(random, {std::bit_cast<float>(0x7fa12345u), std::numeric_limits<float>::infinity(),
                                           -std::numeric_limits<float>::infinity()});
  return x;
}

// What cases have met: factors that travelled, numbers that were not finite.
struct Seen {
  int factored = 0, broken = 0;
};
using PlayCase = void (*)(Random& random, Device& device, Stream& stream, Seen& seen);

// THINWIRE_DEVICE_CASES in the environment asks for another number of cases.
inline void play_cases(int cases, uint64_t seed, PlayCase play) {
  if (!why_no_coded_device().empty()) GTEST_SKIP() << why_no_coded_device();
  if (const char* asked = std::getenv("THINWIRE_DEVICE_CASES")) cases = std::atoi(asked);
  const auto device = coded_device();
  const auto stream = device->make_stream();
  Seen seen;
  for (int i = 0; i < cases && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(testing::Message() << "case " << i);
    Random random(static_cast<uint64_t>(i) * 7919 + seed);
    play(random, *device, *stream, seen);
  }
  EXPECT_GT(seen.factored, cases / 2);
  EXPECT_GT(seen.broken, 0);
}

// On memory that the host cannot touch and a stream on which nothing happens before somebody waits.
inline void play_strictly(int cases, uint64_t seed, PlayCase play) {
  Seen seen;
  for (int i = 0; i < cases && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(testing::Message() << "case " << i);
    Random random(static_cast<uint64_t>(i) * 104729 + seed);
    const auto gpu = strict_device();
    if (gpu == nullptr) GTEST_SKIP() << "a GPU is as strict by itself";
    const auto stream = gpu->make_stream();
    play(random, *gpu, *stream, seen);
  }
}

}  // namespace thinwire::test
