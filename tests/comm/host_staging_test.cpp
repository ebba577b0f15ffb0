// Verbs on device memory: staged through the host they give the bits of the same verbs on host memory, and neither read
// before the device has written nor hold on to what was sent.
#include <gtest/gtest.h>

#include <functional>

#include "parallel/channel/channel.h"
#include "parallel/channel/mesh.h"
#include "tests/comm/local_group.h"
#include "tests/support/fake_gpu.h"

namespace thinwire::host_staging_test {
namespace {

using test::FakeGpu;

// A tensor of the device; contents are queued, not there, when the caller goes on.
class DeviceBuffer {
 public:
  DeviceBuffer(FakeGpu& gpu, Stream& stream, Buffer& contents)
      : gpu_(gpu), stream_(stream), like_(contents.view()), bytes_(std::max<size_t>(like_.bytes(), 1)) {
    memory_ = gpu.allocate(bytes_);
    write(contents);
  }
  ~DeviceBuffer() {
    stream_.synchronize();
    gpu_.release(memory_, bytes_);
  }
  View view() const { return View(memory_, like_.dtype, {like_.count()}); }
  void write(Buffer& contents) {
    gpu_.copy_to_device(memory_, contents.view().data, like_.bytes(), stream_).wait(stream_);
  }
  void scribble() { gpu_.fill_zero(memory_, like_.bytes(), stream_); }
  Buffer read() {
    Buffer host(like_.dtype, like_.count());
    gpu_.copy_to_host(host.view().data, memory_, like_.bytes(), stream_).wait_on_host();
    return host;
  }

 private:
  FakeGpu& gpu_;
  Stream& stream_;
  View like_;
  size_t bytes_;
  void* memory_;
};

Buffer filled(DType dtype, int64_t count, uint64_t seed, int rank) {
  Buffer b(dtype, count);
  b.fill(seed, rank);
  return b;
}

// body(host, device, gpu, stream, seed): verbs of the same ranks, for memory of the host and of the device.
using Body = std::function<void(Communicator& host, Channel& device, FakeGpu& gpu, Stream& stream, uint64_t seed)>;

void on_ranks(const Body& body) {
  for (int size : {2, 3, 4}) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      run_ranks(
          size,
          [&](Progress& progress) {
            Communicator host(progress, all_ranks(size), 1, Site::kControl, nullptr);
            Channel device(std::make_unique<Communicator>(progress, all_ranks(size), 2, Site::kControl, nullptr));
            FakeGpu gpu;
            const std::unique_ptr<Stream> stream = gpu.make_stream();
            body(host, device, gpu, *stream, seed + static_cast<uint64_t>(100 * size));
          },
          seed);
    }
  }
}

DType some_dtype(std::mt19937_64& random) {
  constexpr DType kinds[] = {DType::f32, DType::bf16, DType::f16};
  return kinds[random() % 3];
}

TEST(HostStaging, AllReduce) {
  on_ranks([](Communicator& host, Channel& device, FakeGpu& gpu, Stream& stream, uint64_t seed) {
    std::mt19937_64 random(seed);
    const DType dtype = some_dtype(random);
    const int64_t count = random_count(random, 9000);
    Buffer plain = filled(dtype, count, seed, host.rank());
    DeviceBuffer there(gpu, stream, plain);
    HostStream none;
    host.all_reduce(plain.view(), ReduceKind::kSum, none).wait_on_host();
    device.all_reduce(there.view(), ReduceKind::kSum, stream).wait(stream);
    EXPECT_EQ(there.read().bytes(), plain.bytes());
  });
}

TEST(HostStaging, ReduceScatterIntoItselfElsewhereAndAdding) {
  on_ranks([](Communicator& host, Channel& device, FakeGpu& gpu, Stream& stream, uint64_t seed) {
    for (int form = 0; form < 3; ++form) {
      std::mt19937_64 random(seed * 3 + static_cast<uint64_t>(form));
      const int64_t count = random_count(random, 9000);
      const std::vector<int64_t> bounds = ragged_bounds(random, count, host.size());
      const size_t me = static_cast<size_t>(host.rank());
      const int64_t first = bounds[me], mine = bounds[me + 1] - first;
      const DType dtype = form == 0 ? DType::f32 : some_dtype(random);
      Buffer plain = filled(dtype, count, seed, host.rank()), out = filled(DType::f32, mine, seed + 50, host.rank());
      DeviceBuffer whole(gpu, stream, plain), result(gpu, stream, out);
      HostStream none;
      const View to = form == 0 ? plain.view().element_range(first, mine) : out.view();
      host.reduce_scatter(plain.view(), bounds, to, form == 2, none).wait_on_host();
      const View there = form == 0 ? whole.view().element_range(first, mine) : result.view();
      Ticket ticket = device.reduce_scatter(whole.view(), bounds, there, form == 2, stream);
      if (form > 0) whole.scribble();  // what was sent may be written again
      ticket.wait(stream);
      Buffer got = form == 0 ? whole.read() : result.read();
      for (int64_t i = 0; i < mine; ++i) {
        EXPECT_EQ(got.get(form == 0 ? first + i : i), form == 0 ? plain.get(first + i) : out.get(i)) << form;
      }
    }
  });
}

TEST(HostStaging, AllGatherFromInsideAndOutside) {
  on_ranks([](Communicator& host, Channel& device, FakeGpu& gpu, Stream& stream, uint64_t seed) {
    for (bool inside : {true, false}) {
      std::mt19937_64 random(seed);
      const DType dtype = some_dtype(random);
      const int64_t count = random_count(random, 9000);
      const std::vector<int64_t> bounds = ragged_bounds(random, count, host.size());
      const size_t me = static_cast<size_t>(host.rank());
      const int64_t first = bounds[me], mine = bounds[me + 1] - first;
      Buffer plain = filled(dtype, count, seed, host.rank()), part = filled(dtype, mine, seed + 9, host.rank());
      DeviceBuffer whole(gpu, stream, plain), piece(gpu, stream, part);
      HostStream none;
      host.all_gather(inside ? plain.view().element_range(first, mine) : part.view(), plain.view(), bounds, none)
          .wait_on_host();
      device.all_gather(inside ? whole.view().element_range(first, mine) : piece.view(), whole.view(), bounds, stream)
          .wait_on_host();
      EXPECT_EQ(whole.read().bytes(), plain.bytes());
    }
  });
}

TEST(HostStaging, MessagesAndBroadcast) {
  on_ranks([](Communicator&, Channel& device, FakeGpu& gpu, Stream& stream, uint64_t seed) {
    const int64_t count = 1 + static_cast<int64_t>(seed % 700);
    const int right = (device.rank() + 1) % device.size(), left = (device.rank() + device.size() - 1) % device.size();
    Buffer mine = filled(DType::f32, count, seed, device.rank()), nothing(DType::f32, count);
    DeviceBuffer out(gpu, stream, mine), in(gpu, stream, nothing);
    Ticket receive = device.receive(in.view(), left, stream);
    Ticket send = device.send(out.view(), right, stream);
    out.scribble();
    const std::unique_ptr<Stream> other = gpu.make_stream();
    receive.wait(*other);  // the result is on this stream
    gpu.mark(*other).wait(stream);
    send.wait(stream);
    Buffer expected = filled(DType::f32, count, seed, left);
    EXPECT_EQ(in.read().bytes(), expected.bytes());

    DeviceBuffer shared(gpu, stream, mine);
    const int root = static_cast<int>(seed % static_cast<uint64_t>(device.size()));
    device.broadcast(shared.view(), root, stream).wait(stream);
    Buffer from_root = filled(DType::f32, count, seed, root);
    EXPECT_EQ(shared.read().bytes(), from_root.bytes());
  });
}

TEST(HostStaging, AllToAll) {
  on_ranks([](Communicator& host, Channel& device, FakeGpu& gpu, Stream& stream, uint64_t seed) {
    std::vector<int64_t> bounds = {0};
    for (int r = 0; r < host.size(); ++r) bounds.push_back(bounds.back() + 17);
    Buffer from = filled(DType::f32, bounds.back(), seed, host.rank()), to(DType::f32, bounds.back());
    DeviceBuffer from_there(gpu, stream, from), to_there(gpu, stream, to);
    HostStream none;
    host.all_to_all(from.view(), bounds, to.view(), bounds, none).wait_on_host();
    device.all_to_all(from_there.view(), bounds, to_there.view(), bounds, stream).wait(stream);
    EXPECT_EQ(to_there.read().bytes(), to.bytes());
  });
}

}  // namespace
}  // namespace thinwire::host_staging_test
