// Streams, groups and exchanges of a rank's communication on its device.
#include "parallel/device/device_traffic.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/base/core/check.h"

namespace thinwire {

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
  const auto all = [this](auto&& visit) {
    const std::lock_guard lock(handles_mutex_);
    for (NcclCalls::Handle handle : handles_) visit(handle);
  };
  watch_ = std::make_unique<DeviceWatch>(
      options.watch,
      [this, all] {
        std::string fault;
        all([&](NcclCalls::Handle handle) { fault = fault.empty() ? calls_->fault(handle) : fault; });
        return fault;
      },
      [this, all] { all([&](NcclCalls::Handle handle) { calls_->abort(handle); }); });
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
  if (!fails) device_.release(scratch_, static_cast<size_t>(options_.scratch_bytes));
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
  const auto is_world = [size](const DeviceGroup& group) {
    return group.size() == size && std::ranges::is_sorted(group.ranks);
  };
  for (int kind = 0; kind < kinds; ++kind) {
    const auto found = groups_.find(kind);
    DeviceGroup* const mine = found != groups_.end() && found->second.handle == nullptr ? &found->second : nullptr;
    // A ring's messages are matched pair by pair, so that it shares with nobody. All else follows one order anyway.
    const auto shared = std::ranges::find_if(groups_, [&](const auto& other) {
      return mine != nullptr && mine->edges != DeviceEdges::kRing && other.second.edges != DeviceEdges::kRing &&
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
    warm(*mine);
  }
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

Ticket DeviceTraffic::exchange(std::vector<Transfer> transfers, const OperationNote& note, Stream& stream,
                               std::function<void()> then) {
  TW_CHECK(exchange_stream_ == nullptr || exchange_stream_ == &stream, "an exchange of two streams");
  exchange_stream_ = &stream;
  transfers_.insert(transfers_.end(), transfers.begin(), transfers.end());
  pending_.push_back({note, std::make_shared<Later>(), std::move(then)});
  Ticket ticket(pending_.back().operation);
  if (!exchanging_) queue_pending();
  return ticket;
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
  queue_group(transfers_);
  for (const Pending& p : pending_)
    if (p.then) p.then();
  for (const Pending& p : pending_) p.operation->queued(finish(p.note));
  transfers_.clear();
  pending_.clear();
}

}  // namespace thinwire
