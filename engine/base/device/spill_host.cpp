// Copies on two streams; tickets order them after the computation and after each other.
#include "engine/base/device/spill_host.h"

#include <algorithm>
#include <new>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/core/text.h"

namespace thinwire {

SpillHost::SpillHost(Device& device, Stream& compute, uint64_t bytes, int requests, size_t piece)
    : device_(device),
      compute_(compute),
      piece_(piece),
      out_(device.make_stream()),
      in_(device.make_stream()),
      transfers_(static_cast<size_t>(requests)) {
  const auto fail = [&](uint64_t taken) {
    throw_bad_config("activation_offload host: not enough page-locked host memory: this rank needs " +
                     mebibytes(bytes) + ", the system gave " + mebibytes(taken) +
                     "; start fewer ranks on this machine, give it more memory, lower train_micro_batch_size_per_gpu "
                     "or raise recompute_granularity");
  };
  for (uint64_t taken = 0; taken < bytes; taken += piece_) {
    try {
      pieces_.emplace_back(device_, static_cast<size_t>(std::min<uint64_t>(piece_, bytes - taken)));
    } catch (const std::bad_alloc&) {
      fail(taken);
    } catch (const Error& e) {
      if (e.code() != ExitCode::kBadConfig) throw;  // the device is broken, not full
      fail(taken);
    }
  }
}

SpillHost::~SpillHost() {
  try {  // what is queued still uses the buffers that are freed now
    compute_.synchronize(), out_->synchronize(), in_->synchronize();
  } catch (const std::exception&) {  // a broken device, which others have reported
  }
}

void SpillHost::used(int request) {
  transfers_.at(static_cast<size_t>(request)).used = device_.mark(compute_);
}

void SpillHost::start(int request, bool write, void* memory, size_t bytes, uint64_t offset) {
  Transfer& t = transfers_.at(static_cast<size_t>(request));
  Stream& stream = write ? *out_ : *in_;
  t.used.wait(stream);
  t.write = write;
  for (size_t at = 0; at < bytes;) {  // a transfer may reach into the next piece
    const size_t place = static_cast<size_t>(offset) + at, first = place % piece_;
    const HostBuffer& piece = pieces_.at(place / piece_);
    const size_t count = std::min(bytes - at, piece.size() - first);
    TW_CHECK(first < piece.size(), "byte ", first, " of a piece of ", piece.size());
    TW_CHECK(count > 0, "a transfer of ", bytes, " bytes at ", offset);
    char *device = static_cast<char*>(memory) + at, *host = static_cast<char*>(piece.data()) + first;
    t.moved.wait(stream);
    t.moved =
        write ? device_.copy_to_host(host, device, count, stream) : device_.copy_to_device(device, host, count, stream);
    at += count;
  }
  if (write) t.left = device_.mark(stream);
}

std::optional<SpillPlace::Clock::time_point> SpillHost::wait(int request, Next next) {
  Transfer& t = transfers_.at(static_cast<size_t>(request));
  // Reads of what was written are queued on in_, so in_ follows every write, whatever comes next.
  const bool in_alone = t.write && next == Next::kTransfer;
  if (t.write) (in_alone ? t.moved : t.left).wait(*in_);
  // Computation also follows a read that it does not use: a later write to that place follows only the computation.
  if (!in_alone) t.moved.wait(compute_);
  return std::nullopt;
}

}  // namespace thinwire
