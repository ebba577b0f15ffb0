// Low rank in sums over ranks, on a device against that of the CPU: payloads of every round, decoded sums, residuals
// and warm starts byte for byte, on random messages of all kinds. The kernels run on the emulation, and in CUDA builds
// once more on a GPU.
#include "compression/device_rounds.h"

#include <gtest/gtest.h>

#include "compression/codecs/low_rank.h"
#include "compression/round_codec.h"
#include "tests/codecs/device_low_rank_fixtures.h"
#include "tests/support/coded_device.h"

namespace thinwire::test::device_rounds_test {
namespace {

// One rank of a group, on both sides.
struct Rank {
  std::unique_ptr<CompressionState> host_state, device_state;
  std::unique_ptr<StateVector<float>> host_residual;
  std::unique_ptr<DeviceCoderState> device_residual;
  Floats host_in, host_payload, host_room;  // host_room: the input with its residual
  std::optional<Buffer> in, room, tally;
  CompressionStats stats;
};

class Group {
 public:
  Group(Random& random, const CodecSpec& spec, Device& device, Stream& stream)
      : random_(random),
        device_(device),
        stream_(stream),
        exec_(make_exec(coded_ops(), device, stream, 1)),
        host_(make_codec(spec).rounds),
        there_(make_device_rounds(spec)),
        shape_(random_shape(random)),
        ranks_(static_cast<size_t>(within(random, 1, 3))),
        feeds_back_(random() % 4 != 0) {
    const DevicePlace place = {&device, &stream};
    const OnSkip on_skip = pick(random, {OnSkip::kRestore, OnSkip::kRestore, OnSkip::kZero});
    for (Rank& rank : ranks_) {
      rank.host_state = host_->make_state(shape_.count, shape_.matrices);
      rank.device_state = there_->make_state(shape_.count, shape_.matrices, place);
      rank.tally.emplace(device, std::vector<std::byte>(sizeof(DeviceTally)));
      rank.room.emplace(device, there_->room_bytes(*rank.device_state));
      if (!feeds_back_) continue;
      rank.host_residual = std::make_unique<StateVector<float>>(shape_.count, on_skip);
      rank.device_residual = std::make_unique<DeviceCoderState>(
          ResidualSpec{.kind = ResidualKind::kErrorFeedback, .on_skip = on_skip}, shape_.count, nullptr, place);
    }
    msg_.seed = random(), msg_.slot = static_cast<uint32_t>(random() % 9), msg_.matrices = shape_.matrices;
    msg_.step = within(random, 0, 100), msg_.ranks = static_cast<int>(ranks_.size());
  }

  // A message; the step is applied, or skipped as where something is not finite.
  void step() {
    msg_.loss_scale = pick(random_, {1.0f, 1.0f, 1024.0f, 3.0f});
    msg_.train = random_() % 6 != 0;
    const size_t strange = random_() % 10 == 0 ? random_() % ranks_.size() : ranks_.size();
    std::vector<RoundJob> jobs;
    for (size_t r = 0; r < ranks_.size(); ++r) jobs.push_back(begin(ranks_[r], r == strange));
    for (int round = 0; round < host_->rounds() && !testing::Test::HasFailure(); ++round) reduce(round, jobs);
    for (size_t r = 0; r < ranks_.size() && !testing::Test::HasFailure(); ++r) finish(ranks_[r], jobs[r]);
    const bool skipped = broken_ || random_() % 4 == 0;
    for (Rank& rank : ranks_) {
      std::vector<CompressionState*> states = {rank.host_state.get(), rank.device_state.get()};
      if (feeds_back_) {
        states.push_back(rank.device_residual.get());
        skipped ? rank.host_residual->roll_back() : rank.host_residual->commit();
      }
      for (CompressionState* const state : states) skipped ? state->roll_back() : state->commit();
      compare_states(rank);
    }
    ever_broken_ = ever_broken_ || broken_, broken_ = false;
    ++msg_.step;
  }
  bool ever_broken() const { return ever_broken_; }
  bool factors() const { return factors_; }

 private:
  RoundJob begin(Rank& rank, bool strange) {
    rank.host_in = random_message(random_, shape_, strange);
    rank.in.emplace(device_, as_dtype(rank.host_in, DType::f32), 4 * (random_() % 3));
    rank.host_room = rank.host_in;
    RoundJob job;
    job.count = shape_.count;
    job.in = rank.in->view(DType::f32).as<float>();
    job.room = reinterpret_cast<float*>(rank.room->data());
    job.tally = reinterpret_cast<DeviceTally*>(rank.tally->data());
    if (!feeds_back_ || !msg_.train) return job;
    const auto kept = rank.device_residual->open(0, shape_.count, msg_.step).values;
    job.old = kept.read, job.now = kept.write;
    const float* const old = rank.host_residual->read();
    for (size_t i = 0; i < rank.host_room.size(); ++i) rank.host_room[i] += old[i] * msg_.loss_scale;
    return job;
  }
  static View view(Floats& x) { return View(x.data(), DType::f32, {static_cast<int64_t>(x.size())}); }

  void reduce(int round, std::vector<RoundJob>& jobs) {
    std::vector<View> there;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      msg_.rank = static_cast<int>(r);
      const Round what = host_->round(round, msg_, shape_.count, *rank.host_state);
      rank.host_payload.assign(static_cast<size_t>(what.count), 0.0f);
      const bool finite = host_->pack(round, msg_, view(rank.host_room), view(rank.host_payload), *rank.host_state);
      if (round == 0 && !finite) broken_ = true, ++rank.stats.non_finite;
      there.push_back(there_->queue_pack(round, exec_, msg_, jobs[r], *rank.device_state));
      ASSERT_EQ(there[r].count(), what.count) << name();
      factors_ = factors_ || what.count < shape_.count;
    }
    stream_.synchronize();
    Floats sum;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Floats& mine = ranks_[r].host_payload;
      Floats device(mine.size());
      device_.copy_at_rest(device.data(), there[r].data, there[r].bytes());
      ASSERT_EQ(difference(bytes_of(mine), bytes_of(device)), "") << name() << ", round " << round << ", rank " << r;
      if (r == 0) sum = mine;
      for (size_t i = 0; r > 0 && i < sum.size(); ++i) sum[i] = sum[i] + mine[i];
    }
    // Nor is a step applied whose sums are infinite: the norm of its gradients is.
    broken_ = broken_ || !all_finite(sum.data(), static_cast<int64_t>(sum.size()));
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      device_.copy_at_rest(there[r].data, sum.data(), there[r].bytes());
      host_->absorb(round, msg_, view(sum), 0, *rank.host_state);
      there_->queue_absorb(round, exec_, msg_, jobs[r], *rank.device_state);
    }
  }

  void finish(Rank& rank, const RoundJob& job) {
    if (job.now != nullptr) {
      host_->own_error(msg_, view(rank.host_room), *rank.host_state);
      float* const kept = rank.host_residual->write();
      for (size_t i = 0; i < rank.host_room.size(); ++i) kept[i] = rank.host_room[i] * (1.0f / msg_.loss_scale);
    }
    const bool accumulate = random_() % 2 == 0;
    const int64_t first = random_() % 2 == 0 ? 0 : within(random_, 0, shape_.count);
    Floats out = random_values(random_, within(random_, 0, shape_.count - first), false);
    const Buffer result(device_, as_dtype(out, DType::f32), 4 * (random_() % 3));
    there_->queue_result(exec_, msg_, job, first, result.view(DType::f32), accumulate, *rank.device_state);
    if (!out.empty()) host_->result(msg_, first, view(out), accumulate, *rank.host_state);
    stream_.synchronize();
    ASSERT_EQ(difference(bytes_of(out), one_nan(result.content(), DType::f32)), "")
        << name() << ", elements from " << first << " on";
    DeviceTally tally;
    const Bytes found = rank.tally->content();
    std::memcpy(&tally, found.data(), sizeof tally);
    EXPECT_EQ(tally.flags, rank.stats.non_finite > 0 ? kDeviceNonFinite : 0u) << name();
  }

  void compare_states(Rank& rank) {
    StateBytes host(device_), device(device_);
    rank.host_state->visit(host, ""), rank.device_state->visit(device, "");
    if (feeds_back_) {
      host.tensor(GlobalSlice::whole("residual", 1, shape_.count,
                                     View(rank.host_residual->settled(), DType::f32, {shape_.count})));
      rank.device_residual->visit(device, "");
    }
    ASSERT_EQ(host.all.size(), device.all.size());
    for (const auto& [part, bytes] : host.all)
      ASSERT_EQ(difference(bytes, device.all.at(part)), "") << name() << ", " << part;
  }

  static Bytes bytes_of(const Floats& x) { return one_nan(as_dtype(x, DType::f32), DType::f32); }
  std::string name() const {
    return host_->name() + " of " + std::to_string(shape_.count) + " elements, " +
           std::to_string(shape_.matrices.size()) + " matrices, the first of " +
           std::to_string(shape_.matrices[0].rows) + "x" + std::to_string(shape_.matrices[0].cols);
  }

  Random& random_;
  Device& device_;
  Stream& stream_;
  Exec exec_;
  std::shared_ptr<const RoundCodec> host_;
  std::unique_ptr<DeviceRounds> there_;
  Shape shape_;
  std::vector<Rank> ranks_;
  bool feeds_back_, broken_ = false, ever_broken_ = false, factors_ = false;
  Msg msg_;
};

void play_case(Random& random, Device& device, Stream& stream, Seen& seen) {
  const CodecSpec spec = codec_spec("low_rank", {{"rank", pick<int64_t>(random, {1, 2, 3, 4, 4, 8, 9, 16, 17, 55})},
                                                 {"sides", pick<int64_t>(random, {1, 2})},
                                                 {"min_compression_rate", pick(random, {1.0, 1.0, 1.5, 4.0})}});
  Group group(random, spec, device, stream);
  for (int64_t step = within(random, 1, 5); step > 0 && !testing::Test::HasFailure(); --step) group.step();
  seen.factored += group.factors(), seen.broken += group.ever_broken();
}

TEST(DeviceRounds, HaveTheBytesOfTheHost) {
  play_cases(100, 11, play_case);
}
TEST(DeviceRounds, NeverLookAtDeviceMemory) {
  play_strictly(40, 13, play_case);
}

TEST(DeviceRounds, SayWhatTheyDoNotCover) {
  EXPECT_NE(make_device_rounds(codec_spec("low_rank")), nullptr);
  EXPECT_EQ(make_device_rounds(codec_spec("low_rank", {{"rank", int64_t{5000}}})), nullptr);
  EXPECT_EQ(make_device_rounds(codec_spec("sketch")), nullptr);
}

}  // namespace
}  // namespace thinwire::test::device_rounds_test
