// The kernel that adds the contributions of ranks, emulated on the CPU: the same bits as the host's sums.
#include <gtest/gtest.h>

#include "parallel/collective/rank_sum.h"
#include "parallel/device/rank_sum_cuda.h"
#include "tests/comm/local_group.h"
#include "tests/emulation/cuda_emulation.h"

namespace thinwire::rank_sum_emulated_test {
namespace {

TEST(RankSumEmulated, HasTheBitsOfTheHostsSums) {
  const std::unique_ptr<Device> device = make_cpu_device();
  HostStream stream;
  Exec exec = make_exec(emulated_cuda_ops(), *device, stream, 1);
  std::mt19937_64 random(7);
  constexpr DType kinds[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  for (int round = 0; round < 300; ++round) {
    const DType dtype = kinds[round % 4];
    const DType out_type = dtype != DType::f64 && random() % 2 == 0 ? DType::f32 : dtype;
    const auto width = static_cast<int64_t>(size_of(dtype));
    const int ranks = 1 + static_cast<int>(random() % 6),
              me = static_cast<int>(random() % static_cast<unsigned>(ranks));
    const int64_t count = 1 + random_count(random, 3000);
    // Aligned to 64 bytes, as scratch is, or only to an element, as a piece of a gathered vector may be.
    const int64_t stride = random() % 2 == 0 ? (count * width + 63) / 64 * 64 : count * width;
    const auto shift = static_cast<size_t>(random() % 2 == 0 ? 0 : width);
    std::vector<char> others(static_cast<size_t>(stride * ranks) + 64 + 16);
    char* const base = others.data() + (64 - reinterpret_cast<uintptr_t>(others.data()) % 64) % 64;
    std::vector<Buffer> all = contributions(dtype, count, static_cast<uint64_t>(round), ranks);
    if (round % 5 == 0) {  // infinity and NaN stay in every sum; signs of zeros
      for (Buffer& b : all) b.set(0, -0.0);
      all[0].set(count - 1, round % 2 == 0 ? INFINITY : NAN);
    }
    std::vector<const void*> sources;
    for (int r = 0; r < ranks; ++r) {
      std::memcpy(base + r * stride, all[static_cast<size_t>(r)].view().data, static_cast<size_t>(count * width));
      sources.push_back(all[static_cast<size_t>(r)].view().data);
    }
    std::vector<char> own_memory(static_cast<size_t>(count * width) + 96);
    char* const own = own_memory.data() + (64 - reinterpret_cast<uintptr_t>(own_memory.data()) % 64) % 64 + shift;
    std::memcpy(own, all[static_cast<size_t>(me)].view().data, static_cast<size_t>(count * width));
    std::memset(base + me * stride, 0x7f, static_cast<size_t>(count * width));  // never read: `mine` is elsewhere
    Buffer expected(out_type, count), got(out_type, count);
    expected.fill(99, 0), got.fill(99, 0);
    const bool accumulate = random() % 2 == 0, in_place = out_type == dtype && !accumulate && random() % 2 == 0;
    combine_in_rank_order(ReduceKind::kSum, dtype, sources.data(), ranks, out_type, expected.view().data, count,
                          accumulate);
    const View mine(own, dtype, {count}), out = in_place ? mine : got.view();
    rank_sum_cuda(exec, {mine, me, ranks, base, stride, out, accumulate});
    if (in_place) std::memcpy(got.view().data, own, static_cast<size_t>(count * width));
    for (int64_t i = 0; i < count; ++i) {
      if (std::isnan(expected.get(i))) {
        ASSERT_TRUE(std::isnan(got.get(i))) << round;
        got.set(i, expected.get(i));
        expected.set(i, expected.get(i));
      }
    }
    ASSERT_EQ(got.bytes(), expected.bytes()) << "round " << round << ", " << name_of(dtype) << " into "
                                             << name_of(out_type) << ", " << ranks << " ranks, " << count;
  }
}

}  // namespace
}  // namespace thinwire::rank_sum_emulated_test
