// The CUDA device: what it says without a GPU; with one, memory, copies, streams and tickets.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/device/arena.h"
#include "engine/base/ops/op_list.h"
#include "tests/support/cuda_test_support.h"

namespace thinwire::cuda_device_test {
namespace {

TEST(CudaDevice, IsUsableOrSaysWhyNotAndWhatToDo) {
  try {
    const std::unique_ptr<Device> device = make_cuda_device(0);
    EXPECT_EQ(device->kind(), DeviceKind::kCuda);
    EXPECT_NE(device->description().find("sm_"), std::string::npos);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadConfig);
    const std::string message = e.what();
    EXPECT_EQ(message.rfind("device: cuda", 0), 0u) << message;
    EXPECT_NE(message.find("\"device\": \"cpu\""), std::string::npos) << message;
  }
}

TEST(CudaTable, HasNoHole) {
  if (!cuda_is_built()) GTEST_SKIP() << "built without CUDA";
  const OpTable& table = cuda_ops();
  EXPECT_STREQ(table.backend, "cuda");
  EXPECT_FALSE(table.isa().empty());
  EXPECT_NE(table.make_state, nullptr);
#define TW_EXPECT_FILLED(name, Op) EXPECT_NE(table.name, nullptr) << #name;
  TW_FOR_EACH_OP(TW_EXPECT_FILLED)
#undef TW_EXPECT_FILLED
}

TEST(CudaDevice, MemoryIsZeroedAlignedAndUsedAgain) {
  TW_NEEDS_GPU();
  const std::unique_ptr<Device> device = make_cuda_device(0);
  const std::unique_ptr<Stream> stream = device->make_stream();
  std::vector<unsigned char> dirt(3 << 20, 0xEE), back(3 << 20);
  for (int round = 0; round < 3; ++round) {
    std::vector<void*> pieces;
    const std::vector<size_t> sizes = {1, 511, 512, 513, 70000, (1 << 20) - 1, 1 << 20, 3 << 20};
    for (size_t bytes : sizes) {
      pieces.push_back(device->allocate(bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces.back()) % 512, 0u);
      device->copy_to_host(back.data(), pieces.back(), bytes, *stream).wait_on_host();
      for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(back[i], 0) << i << " of " << bytes;
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      device->copy_to_device(pieces[i], dirt.data(), sizes[i], *stream).wait_on_host();
      device->release(pieces[i], sizes[i]);
    }
  }
}

TEST(CudaDevice, TooMuchMemoryIsAMessageWithSizes) {
  TW_NEEDS_GPU();
  const std::unique_ptr<Device> device = make_cuda_device(0);
  try {
    device->allocate(size_t{1} << 50);
    FAIL() << "a pebibyte";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadConfig);
    EXPECT_NE(std::string(e.what()).find("1073741824 MiB"), std::string::npos) << e.what();
  }
  void* small = device->allocate(4096);  // the failure is over
  device->release(small, 4096);
}

// The source may be reused at once where it is pageable; the ticket orders other streams behind the copy.
TEST(CudaDevice, CopiesAreOrderedByTickets) {
  TW_NEEDS_GPU();
  const std::unique_ptr<Device> device = make_cuda_device(0);
  const std::unique_ptr<Stream> one = device->make_stream(), two = device->make_stream();
  const size_t bytes = 8 << 20;
  void* a = device->allocate(bytes);
  void* b = device->allocate(bytes);
  HostBuffer pinned(*device, bytes);
  for (int round = 0; round < 50; ++round) {
    std::vector<unsigned char> source(1 << 20, static_cast<unsigned char>(round + 1));
    for (size_t at = 0; at < bytes; at += source.size())
      device->copy_to_device(static_cast<char*>(a) + at, source.data(), source.size(), *one).wait(*one);
    std::memset(source.data(), 0xFF, source.size());
    Ticket copied = device->copy(b, a, bytes, *one);
    copied.wait(*two);
    device->copy_to_host(pinned.data(), b, bytes, *two).wait_on_host();
    const auto* got = static_cast<const unsigned char*>(pinned.data());
    for (size_t i = 0; i < bytes; i += 4093) ASSERT_EQ(got[i], round + 1) << i;
    device->fill_zero(b, bytes, *two);
    device->mark(*two).wait(*one);
  }
  device->release(a, bytes);
  device->release(b, bytes);
}

TEST(CudaDevice, PinnedBlocksComeBackWhenTheStreamHasPassed) {
  TW_NEEDS_GPU();
  const std::unique_ptr<Device> device = make_cuda_device(0);
  const std::unique_ptr<Stream> stream = device->make_stream();
  const size_t bytes = 16 << 20;
  void* there = device->allocate(bytes);
  for (int round = 1; round < 20; ++round) {
    HostBuffer host(*device, bytes);
    std::memset(host.data(), round, bytes);
    device->copy_to_device(there, host.data(), bytes, *stream).wait(*stream);
    host.leave_behind(*stream);  // the next round may get the same block only when the copy is over
    HostBuffer back(*device, bytes);
    device->copy_to_host(back.data(), there, bytes, *stream).wait_on_host();
    const auto* got = static_cast<const unsigned char*>(back.data());
    for (size_t i = 0; i < bytes; i += 4093) ASSERT_EQ(got[i], round);
  }
  device->release(there, bytes);
}

TEST(CudaDevice, DroppingAnOpenTicketIsAFault) {
  TW_NEEDS_GPU();
  const std::unique_ptr<Device> device = make_cuda_device(0);
  const std::unique_ptr<Stream> stream = device->make_stream();
  Arena arena(device.get());
  const View a = arena.take(MemoryCategory::kWorkspace, DType::u8, {64 << 20});
  HostBuffer host(*device, a.bytes());
  EXPECT_THROW(
      {
        for (int i = 0; i < 20; ++i) device->copy_to_host(host.data(), a.data, a.bytes(), *stream).wait(*stream);
        Ticket dropped = device->copy_to_host(host.data(), a.data, a.bytes(), *stream);
      },
      Error);
  stream->synchronize();
}

}  // namespace
}  // namespace thinwire::cuda_device_test
