// Work that is recorded and queued again: on the fake GPU, and on a GPU where there is one.
#include "engine/base/device/stream_segments.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/ops/ops.h"
#include "tests/support/cuda_test_support.h"
#include "tests/support/fake_gpu.h"

namespace thinwire::test::stream_segments_test {
namespace {

constexpr int kCount = 300;

// y += x and z = sum of squares of y, on a device: x and y are changed from outside between runs.
class Bench {
 public:
  Bench(std::unique_ptr<Device> device, const OpTable& ops)
      : device_(std::move(device)), stream_(device_->make_stream()), exec_(make_exec(ops, *device_, *stream_, 1)) {
    for (View* v : {&x, &y}) *v = View(device_->allocate(kCount * sizeof(float)), DType::f32, {kCount});
    z = View(device_->allocate(sizeof(double)), DType::f64, {1});
  }
  ~Bench() {
    stream_->synchronize();
    for (const View* v : {&x, &y, &z}) device_->release(v->data, v->bytes());
  }

  void set(View to, float value) {
    const std::vector<float> values(kCount, value);
    device_->copy_to_device(to.data, values.data(), to.bytes(), *stream_).wait(*stream_);
  }
  double sum() {
    double value = 0.0;
    device_->copy_to_host(&value, z.data, sizeof value, *stream_).wait_on_host();
    return value;
  }
  void work(float alpha = 1.0f) {
    ++bodies;
    exec_.ops.axpy(exec_, {alpha, x, y});
    squares();
  }
  void squares() {
    device_->fill_zero(z.data, z.bytes(), *stream_);
    exec_.ops.sum_squares(exec_, {y, z});
  }
  RecordingStream* stream() { return dynamic_cast<RecordingStream*>(stream_.get()); }
  Device& device() { return *device_; }
  Exec& exec() { return exec_; }
  uint64_t moves() { return exec_.state->memory_moves(); }

  View x, y, z;
  int bodies = 0;

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Exec exec_;
};

std::unique_ptr<Bench> bench(bool gpu) {
  if (!gpu) return std::make_unique<Bench>(std::make_unique<FakeGpu>(), fake_gpu_ops());
  return std::make_unique<Bench>(make_cuda_device(0), cuda_ops());
}

class Segments : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam()) return;
    TW_NEEDS_GPU();
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, Segments, testing::Bool(),
                         [](const auto& info) { return info.param ? "Cuda" : "Fake"; });

TEST_P(Segments, TheThirdRunQueuesWhatTheSecondRecorded) {
  const std::unique_ptr<Bench> b = bench(GetParam());
  StreamSegments segments(b->stream());
  float y = 0.0f;
  b->set(b->y, 0.0f);
  for (int run = 1; run <= 5; ++run) {
    b->set(b->x, static_cast<float>(run));  // in memory: followed
    y += static_cast<float>(run);
    const Recording* made = segments.run({}, b->moves(), [&] { b->work(); });
    EXPECT_EQ(made != nullptr, run == 2);
    EXPECT_TRUE(made == nullptr || made->size() >= 3);
    EXPECT_EQ(b->sum(), static_cast<double>(y) * y * kCount) << run;
  }
  EXPECT_EQ(b->bodies, 2);
  EXPECT_EQ(segments.replays(), 3);
}

TEST_P(Segments, NumbersInArgumentsStayAsTheyWereRecorded) {
  const std::unique_ptr<Bench> b = bench(GetParam());
  StreamSegments segments(b->stream());
  b->set(b->x, 1.0f), b->set(b->y, 0.0f);
  for (int run = 1; run <= 4; ++run) segments.run({}, b->moves(), [&] { b->work(static_cast<float>(run)); });
  EXPECT_EQ(b->sum(), 49.0 * kCount);  // 1 + 2 + 2 + 2, not 1 + 2 + 3 + 4
}

TEST_P(Segments, EachKeyHasItsOwn) {
  const std::unique_ptr<Bench> b = bench(GetParam());
  StreamSegments segments(b->stream());
  b->set(b->x, 1.0f), b->set(b->y, 0.0f);
  for (int run = 0; run < 3; ++run) {
    segments.run({0, 0, 0}, b->moves(), [&] { b->work(1.0f); });
    segments.run({0, 0, 1}, b->moves(), [&] { b->work(10.0f); });
    segments.run({1, 0, 0}, b->moves(), [&] { b->work(100.0f); });
  }
  EXPECT_EQ(b->sum(), 333.0 * 333.0 * kCount);
  EXPECT_EQ(segments.replays(), 3);
}

// A graph that was captured before scratch memory grew points at memory that somebody else may own.
TEST_P(Segments, MemoryThatMovedIsRecordedAnew) {
  const std::unique_ptr<Bench> b = bench(GetParam());
  StreamSegments segments(b->stream());
  b->set(b->x, 1.0f), b->set(b->y, 0.0f);
  for (int run = 0; run < 3; ++run) segments.run({}, b->moves(), [&] { b->work(); });
  EXPECT_EQ(b->bodies, 2);
  EXPECT_NE(segments.run({}, b->moves() + 1, [&] { b->work(); }), nullptr);
  EXPECT_EQ(b->bodies, 3);
  EXPECT_EQ(segments.run({}, b->moves() + 1, [&] { b->work(); }), nullptr);
  EXPECT_EQ(b->bodies, 3);
  EXPECT_EQ(b->sum(), 25.0 * kCount);
}

// The same with scratch memory of ops, which grows with the widest matrix so far (on a GPU; the fake one has none).
TEST_P(Segments, ScratchThatGrewIsNotReadWhereItWas) {
  const std::unique_ptr<Bench> b = bench(GetParam());
  StreamSegments segments(b->stream());
  const auto sums = [&](int64_t cols, View from, View to) {
    const View dy(from.data, DType::f32, {kCount / cols, cols});
    b->exec().ops.bias_gradient(b->exec(), {dy, View(to.data, DType::f32, {cols})});
  };
  const auto narrow = [&] { sums(3, b->x, b->y), b->squares(); };
  b->set(b->y, 0.0f), b->set(b->x, 1.0f);
  for (int run = 0; run < 3; ++run) segments.run({}, b->moves(), narrow);  // 300 in three places
  EXPECT_EQ(b->sum(), 3 * 300.0 * 300.0);
  const size_t bytes = 4096 * 1024 * sizeof(float);
  const View wide(b->device().allocate(bytes), DType::f32, {4096, 1024}),
      result(b->device().allocate(4096), DType::f32, {1024});
  const uint64_t before = b->moves();
  b->exec().ops.bias_gradient(b->exec(), {wide, result});
  EXPECT_TRUE(!GetParam() || b->moves() > before);
  b->set(b->x, 2.0f);
  segments.run({}, b->moves(), narrow);
  EXPECT_EQ(b->sum(), 3 * 500.0 * 500.0);
  b->stream()->synchronize();
  b->device().release(wide.data, bytes), b->device().release(result.data, 4096);
}

// What fails half-way leaves the stream usable, and nothing of it behind.
TEST_P(Segments, AFailureWhileRecordingLeavesTheStreamAsItWas) {
  const std::unique_ptr<Bench> b = bench(GetParam());
  StreamSegments segments(b->stream());
  b->set(b->x, 1.0f), b->set(b->y, 0.0f);
  segments.run({}, b->moves(), [&] { b->work(); });
  const auto failing = [&] {
    b->work();
    throw_bad_config("half-way");
  };
  EXPECT_THROW(segments.run({}, b->moves(), failing), Error);
  EXPECT_EQ(b->sum(), 1.0 * kCount);
  for (int run = 0; run < 2; ++run) segments.run({}, b->moves(), [&] { b->work(); });
  EXPECT_EQ(segments.replays(), 1);
  EXPECT_EQ(b->sum(), 9.0 * kCount);
}

TEST_P(Segments, ABodyThatWaitsCannotBeRecorded) {
  const std::unique_ptr<Bench> b = bench(GetParam());
  StreamSegments segments(b->stream());
  const auto waiting = [&] {
    b->work();
    b->stream()->synchronize();
  };
  segments.run({}, b->moves(), waiting);
  EXPECT_THROW(segments.run({}, b->moves(), waiting), Error);
  b->stream()->synchronize();
}

TEST(StreamSegments, WithoutAStreamEveryRunIsTheBody) {
  StreamSegments segments(nullptr);
  int bodies = 0;
  for (int run = 0; run < 4; ++run) EXPECT_EQ(segments.run({}, 0, [&] { ++bodies; }), nullptr);
  EXPECT_EQ(bodies, 4);
  EXPECT_EQ(segments.replays(), 0);
}

// On the fake GPU, what a real one would do again and again from a place that may be gone.
TEST(StreamSegments, CopiesFromTheHostAreNotRecorded) {
  const std::unique_ptr<Bench> b = bench(false);
  StreamSegments segments(b->stream());
  const auto body = [&] { b->set(b->x, 2.0f); };
  segments.run({}, b->moves(), body);
  EXPECT_THROW(segments.run({}, b->moves(), body), Error);
}

}  // namespace
}  // namespace thinwire::test::stream_segments_test
