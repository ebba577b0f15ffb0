// Streams, groups and exchanges of a rank's communication on its device.
#include "parallel/device/device_traffic.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

constexpr size_t kTallies = kSiteNames.size() * sizeof(DeviceTally);

}  // namespace

// A message of an exchange: its event comes when the exchange is closed.
class DeviceTraffic::Later final : public Operation {
 public:
  // (Whoever drops the outer ticket too early hears of it there, and the inner one keeps quiet then.)
  ~Later() noexcept override {}
  State state() const override {
    if (!queued_) return State::kIssued;
    return event_.open() ? State::kRecorded : State::kDone;
  }
  void wait_on(Stream& stream) override {
    TW_CHECK(queued_, "a message was waited for before its exchange was closed");
    event_.wait(stream);
  }
  void wait_on_host() override {
    TW_CHECK(queued_, "a message was waited for before its exchange was closed");
    event_.wait_on_host();
  }
  void queued(Ticket event) { event_ = std::move(event), queued_ = true; }

 private:
  Ticket event_;
  bool queued_ = false;
};

DeviceTraffic::DeviceTraffic(Device& device, const Open& open, const Options& options)
    : device_(device), options_(options), stream_(device.make_stream()), calls_(open(device, *stream_)) {
  TW_CHECK(calls_ != nullptr, "no NCCL in this build");
  scratch_ = static_cast<char*>(device.allocate(static_cast<size_t>(options.scratch_bytes)));
  tallies_ = static_cast<char*>(device.allocate(3 * kTallies));
  watch_ = std::make_unique<DeviceWatch>(options.watch, [this] {
    const std::lock_guard lock(handles_mutex_);
    std::string fault;
    for (size_t i = 0; i < handles_.size() && fault.empty(); ++i) fault = calls_->fault(handles_[i]);
    return fault;
  });
}

DeviceTraffic::~DeviceTraffic() {
  bool fails = std::uncaught_exceptions() > 0;  // then peers may never come
  try {
    if (!fails) stream_->synchronize();
  } catch (const std::exception&) {
    fails = true;
  }
  watch_.reset();
  for (auto handle = handles_.rbegin(); handle != handles_.rend(); ++handle) {  // children first
    try {
      if (!fails) calls_->destroy(*handle);
    } catch (const std::exception&) {
      fails = true;
    }
    if (fails) calls_->abort(*handle);
  }
  if (fails) return;
  device_.release(scratch_, static_cast<size_t>(options_.scratch_bytes));
  device_.release(tallies_, 3 * kTallies);
  if (more_ != nullptr) device_.release(more_, static_cast<size_t>(more_bytes_));
  for (const Lent& block : lent_) device_.release(block.data, static_cast<size_t>(block.bytes));
}

const DeviceGroup& DeviceTraffic::group(int kind, std::vector<int> ranks, int world_rank, DeviceEdges edges) {
  const auto me = std::find(ranks.begin(), ranks.end(), world_rank);
  TW_CHECK(me != ranks.end(), "rank ", world_rank, " is not in its group");
  const auto [place, fresh] = groups_.try_emplace(kind);
  DeviceGroup& group = place->second;
  if (fresh) {
    group.me = static_cast<int>(me - ranks.begin());
    group.ranks = std::move(ranks), group.edges = edges;
  } else {
    TW_CHECK(group.ranks == ranks, "two groups of kind ", kind);
  }
  return group;
}

NcclCalls::Handle DeviceTraffic::keep(NcclCalls::Handle handle) {
  if (handle == nullptr) return nullptr;
  const std::lock_guard lock(handles_mutex_);
  handles_.push_back(handle);
  return handle;
}

void DeviceTraffic::connect(const std::string& id, int size, int rank, int kinds) {
  if (world_ == nullptr) world_ = keep(calls_->create(id, size, rank));
  stream_->synchronize();  // a split wants its parent at rest
  std::vector<const DeviceGroup*> fresh;
  const auto is_world = [size](const DeviceGroup& group) {
    return group.size() == size && std::ranges::is_sorted(group.ranks);
  };
  for (int kind = 0; kind < kinds; ++kind) {
    const auto found = groups_.find(kind);
    DeviceGroup* const mine = found != groups_.end() && found->second.handle == nullptr ? &found->second : nullptr;
    // A ring's messages are matched pair by pair: it shares with the other direction's ring alone, and has to. Of an
    // exchange NCCL makes a kernel per communicator, one behind the other: each could wait for what the other sends.
    const auto shared = std::ranges::find_if(groups_, [&](const auto& other) {
      return mine != nullptr && (mine->edges == DeviceEdges::kRing) == (other.second.edges == DeviceEdges::kRing) &&
             other.second.handle != nullptr && other.second.ranks == mine->ranks;
    });
    const bool takes_part =
        mine != nullptr && shared == groups_.end() && (mine->edges == DeviceEdges::kRing || !is_world(*mine));
    const NcclCalls::Handle made =
        keep(calls_->split(world_, takes_part ? mine->ranks.front() : NcclCalls::kNoColor, takes_part ? mine->me : 0));
    if (mine == nullptr) continue;
    mine->handle = takes_part ? made : shared != groups_.end() ? shared->second.handle : world_;
    TW_CHECK(mine->handle != nullptr && calls_->size(mine->handle) == mine->size(), "the group of kind ", kind,
             " was made of other ranks: they came to it in different orders");
    fresh.push_back(mine);
  }
  for (const DeviceGroup* group : fresh) warm(*group);
  stream_->synchronize();
}

// What a first message makes - connections, buffers - is there before the first step: with memory that may be missing.
void DeviceTraffic::warm(const DeviceGroup& group) {
  const int n = group.size();
  const auto word = [&](int place) { return View(scratch_ + 16 * place, DType::f32, {1}); };
  TW_CHECK(16 * (n + 1) <= options_.scratch_bytes);
  device_.fill_zero(scratch_, static_cast<size_t>(16 * (n + 1)), *stream_);
  calls_->all_gather(word(n), View(scratch_, DType::f32, {n}), group.handle, *stream_);
  if (group.edges == DeviceEdges::kNone) return;
  std::vector<Transfer> transfers;
  for (int i = 1; i < n; ++i) {
    if (group.edges == DeviceEdges::kRing && i != 1 && i != n - 1) continue;
    transfers.push_back({true, word(n), (group.me + i) % n, &group});
    transfers.push_back({false, word(i), (group.me + n - i) % n, &group});
  }
  queue_group(transfers);
}

void DeviceTraffic::follow(Stream& stream) {
  device_.mark(stream).wait(*stream_);
}

Ticket DeviceTraffic::finish(const OperationNote& note) {
  watch_->add(note, device_.mark(*stream_));
  return device_.mark(*stream_);
}

void DeviceTraffic::queue_group(const std::vector<Transfer>& transfers) {
  if (transfers.empty()) return;
  calls_->group_start();
  for (const Transfer& t : transfers) {
    if (t.data.count() == 0) continue;
    if (t.is_send)
      calls_->send(t.data, t.peer, t.group->handle, *stream_);
    else
      calls_->receive(t.data, t.peer, t.group->handle, *stream_);
  }
  calls_->group_end();
}

char* DeviceTraffic::room(int64_t bytes) {
  if (bytes <= options_.scratch_bytes) return scratch_;
  if (bytes > more_bytes_) {
    stream_->synchronize();
    if (more_ != nullptr) device_.release(std::exchange(more_, nullptr), static_cast<size_t>(more_bytes_));
    more_ = static_cast<char*>(device_.allocate(static_cast<size_t>(bytes)));
    more_bytes_ = bytes;
  }
  return more_;
}

char* DeviceTraffic::lend(int64_t bytes) {
  Lent* found = nullptr;
  for (Lent& block : lent_)
    if (!block.used && block.bytes >= bytes && (found == nullptr || block.bytes < found->bytes)) found = &block;
  if (found == nullptr) {
    lent_.push_back({static_cast<char*>(device_.allocate(static_cast<size_t>(bytes))), bytes});
    found = &lent_.back();
  }
  found->used = true;
  return found->data;
}

void DeviceTraffic::give_back(char* lent) {
  std::ranges::find(lent_, lent, &Lent::data)->used = false;
}

std::unique_ptr<DeviceTraffic::Lists> DeviceTraffic::take_lists() {
  if (spare_lists_.empty()) return std::make_unique<Lists>();
  std::unique_ptr<Lists> lists = std::move(spare_lists_.back());
  spare_lists_.pop_back();
  return lists;
}

DeviceTally* DeviceTraffic::tally(Site site) {
  codes_ = true;
  return reinterpret_cast<DeviceTally*>(tallies_) + static_cast<size_t>(site);
}

void DeviceTraffic::take_findings(View sum, Stream& stream) {
  if (!codes_) return;
  follow(stream);
  const Touched touched[] = {{tallies_, kTallies, false}, {sum.data, sum.bytes(), true}};
  Exec& exec = calls_->kernels(touched);
  for (size_t site = 0; site < kSiteNames.size(); ++site)
    queue_tally(exec, reinterpret_cast<DeviceTally*>(tallies_) + site, kDeviceNonFinite, sum.as<double>());
  move_findings(0, 1);
  device_.mark(*stream_).wait(stream);
}

std::vector<DeviceTally> DeviceTraffic::findings() {
  std::vector<DeviceTally> found(codes_ ? kSiteNames.size() : 0);
  if (codes_) device_.copy_to_host(found.data(), tallies_ + kTallies, kTallies, *stream_).wait_on_host();
  return found;
}

void DeviceTraffic::move_findings(size_t from, size_t to) {
  if (!codes_) return;
  device_.copy(tallies_ + to * kTallies, tallies_ + from * kTallies, kTallies, *stream_).wait(*stream_);
  if (from == 0) device_.fill_zero(tallies_, kTallies, *stream_);
}

Ticket DeviceTraffic::exchange(int64_t bytes, Pack pack, const OperationNote& note, Stream& stream,
                               std::function<void()> then) {
  TW_CHECK(exchange_stream_ == nullptr || exchange_stream_ == &stream, "an exchange of two streams");
  exchange_stream_ = &stream;
  const auto operation = std::make_shared<Later>();
  Ticket ticket(operation);
  pending_.push_back({note, operation, (bytes + 63) / 64 * 64, std::move(pack), std::move(then)});
  if (!exchanging_) queue_pending();
  return ticket;
}

Ticket DeviceTraffic::exchange(std::vector<Transfer> transfers, const OperationNote& note, Stream& stream,
                               std::function<void()> then) {
  return exchange(
      0,
      [transfers = std::move(transfers)](char*, std::vector<Transfer>& all) {
        all.insert(all.end(), transfers.begin(), transfers.end());
      },
      note, stream, std::move(then));
}

void DeviceTraffic::open_exchange() {
  TW_CHECK(!exchanging_, "an exchange in an exchange");
  exchanging_ = true;
}

void DeviceTraffic::close_exchange() {
  TW_CHECK(exchanging_, "no exchange is open");
  exchanging_ = false;
  if (!pending_.empty()) queue_pending();
}

void DeviceTraffic::queue_pending() {
  follow(*std::exchange(exchange_stream_, nullptr));
  int64_t bytes = 0;
  for (const Pending& p : pending_) bytes += p.bytes;
  char* at = room(bytes);
  std::vector<Transfer> transfers;
  for (Pending& p : pending_) {
    p.pack(at, transfers);
    at += p.bytes;
  }
  queue_group(transfers);
  for (const Pending& p : pending_)
    if (p.then) p.then();
  for (const Pending& p : pending_) p.operation->queued(finish(p.note));
  pending_.clear();
}

}  // namespace thinwire
