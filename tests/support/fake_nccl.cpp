// Rendezvous of groups, and what NCCL's rules say about them.
#include "tests/support/fake_nccl.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <sstream>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "parallel/collective/rank_sum.h"

namespace thinwire::test {
namespace {

enum class Kind : uint8_t { kSend, kReceive, kAllGather, kBroadcast, kAllReduce, kReduce };
constexpr const char* kKinds[] = {"send", "receive", "all_gather", "broadcast", "all_reduce", "reduce"};

}  // namespace

struct FakeFabric::Piece {
  Kind kind = Kind::kSend;
  View data, into;  // into: of what is received or gathered
  int peer = 0;     // or root
  Communicator* communicator = nullptr;
  bool done = false;
  std::string text() const;
};

// A collective that some ranks have come to.
struct FakeFabric::Slot {
  std::vector<Piece*> pieces;  // by rank
  int there = 0;
};

struct FakeFabric::Communicator {
  int id = 0, me = 0;
  std::vector<int> ranks;  // of the job
  // Shared by the members.
  struct Shared {
    std::map<std::pair<int, int>, std::deque<Piece*>> sends, receives;  // by (from, to)
    std::map<uint64_t, Slot> slots;
  };
  std::shared_ptr<Shared> shared;
  uint64_t collectives = 0;  // of this member so far
};

struct FakeFabric::Meeting {
  std::map<int, std::vector<int>> brought;
  std::map<std::vector<int>, std::shared_ptr<Communicator::Shared>> shared;  // by ranks of the job
  int id = 0;
};

std::string FakeFabric::Piece::text() const {
  std::ostringstream out;
  out << kKinds[static_cast<int>(kind)] << " of " << data.count() << " " << name_of(data.dtype) << " at rank "
      << communicator->ranks[static_cast<size_t>(communicator->me)] << " in communicator " << communicator->id;
  if (kind == Kind::kSend) out << " to rank " << communicator->ranks[static_cast<size_t>(peer)];
  if (kind == Kind::kReceive) out << " from rank " << communicator->ranks[static_cast<size_t>(peer)];
  return out.str();
}

FakeFabric::FakeFabric(Findings& findings, double patience_s) : findings_(findings), patience_s_(patience_s) {
  findings_.on_first = [this] { let_go(); };
}

// (Also from under the lock: then who waits for something sees it when its patience ends.)
void FakeFabric::let_go() {
  broken_ = true;
  changed_.notify_all();
}

void FakeFabric::break_down(const std::string& fault) {
  const std::lock_guard lock(mutex_);
  fault_ = fault;
}

// Waits a little. True: nothing has moved for as long as patience lasts.
bool FakeFabric::waits_in_vain(std::unique_lock<std::mutex>& lock, uint64_t& seen, Time& since) {
  changed_.wait_for(lock, std::chrono::milliseconds(50));
  const Time now = std::chrono::steady_clock::now();
  if (seen != moves_) seen = moves_, since = now;
  return !broken_ && std::chrono::duration<double>(now - since).count() > patience_s_;
}

std::map<int, std::vector<int>> FakeFabric::meet(const std::string& where, int size, int rank,
                                                 std::vector<int> brings) {
  std::unique_lock lock(mutex_);
  auto& meeting = meetings_[where];
  if (meeting == nullptr) meeting = std::make_shared<Meeting>(), meeting->id = next_id_++;
  meeting->brought[rank] = std::move(brings);
  ++moves_;
  changed_.notify_all();
  Meeting& here = *meeting;
  uint64_t seen = moves_;
  Time since = std::chrono::steady_clock::now();
  while (static_cast<int>(here.brought.size()) < size && !broken_) {
    if (waits_in_vain(lock, seen, since) && static_cast<int>(here.brought.size()) < size)
      findings_.add("creation",
                    where + ": " + std::to_string(here.brought.size()) + " of " + std::to_string(size) + " ranks came");
  }
  changed_.notify_all();
  if (static_cast<int>(here.brought.size()) < size) throw Error(ExitCode::kHungPeer, where + ": not all ranks came");
  return here.brought;
}

// ---- what runs on the streams

void FakeFabric::match_messages(Communicator& c, int from, int to) {
  auto& sends = c.shared->sends[{from, to}];
  auto& receives = c.shared->receives[{from, to}];
  while (!sends.empty() && !receives.empty()) {
    Piece &out = *sends.front(), &in = *receives.front();
    if (out.data.dtype != in.data.dtype)
      findings_.add("dtype", out.text() + ", " + in.text());
    else if (out.data.count() != in.data.count())
      findings_.add("count", out.text() + ", " + in.text());
    else
      std::memcpy(in.data.data, out.data.data, out.data.bytes());
    out.done = in.done = true;
    sends.pop_front(), receives.pop_front();
    ++moves_;
    changed_.notify_all();
  }
}

void FakeFabric::finish(Slot& slot) {
  Piece& first = *slot.pieces.front();
  const auto n = static_cast<int>(slot.pieces.size());
  if (first.kind == Kind::kAllGather) {
    for (Piece* p : slot.pieces) {
      for (int r = 0; r < n; ++r) {
        const View& part = slot.pieces[static_cast<size_t>(r)]->data;
        std::memmove(p->into.element_range(r * part.count(), part.count()).data, part.data, part.bytes());
      }
    }
  } else if (first.kind == Kind::kBroadcast) {
    const View from = slot.pieces[static_cast<size_t>(first.peer)]->data;
    for (Piece* p : slot.pieces) std::memmove(p->data.data, from.data, from.bytes());
  } else {
    // Not in rank order: nobody may count on NCCL's.
    std::vector<const void*> sources;
    for (int r = n; r-- > 0;) sources.push_back(slot.pieces[static_cast<size_t>(r)]->data.data);
    std::vector<char> sum(first.data.bytes());
    combine_in_rank_order(ReduceKind::kSum, first.data.dtype, sources.data(), n, first.data.dtype, sum.data(),
                          first.data.count(), false);
    for (int r = 0; r < n; ++r)
      if (first.kind == Kind::kAllReduce || r == first.peer)
        std::memcpy(slot.pieces[static_cast<size_t>(r)]->data.data, sum.data(), sum.size());
  }
  for (Piece* p : slot.pieces) p->done = true;
}

void FakeFabric::arrive(Piece& piece) {
  Communicator& c = *piece.communicator;
  if (piece.kind == Kind::kSend || piece.kind == Kind::kReceive) {
    const bool sends = piece.kind == Kind::kSend;
    const std::pair way = sends ? std::pair{c.me, piece.peer} : std::pair{piece.peer, c.me};
    (sends ? c.shared->sends : c.shared->receives)[way].push_back(&piece);
    return match_messages(c, way.first, way.second);
  }
  const uint64_t number = c.collectives++;
  Slot& slot = c.shared->slots[number];
  slot.pieces.resize(c.ranks.size());
  for (const Piece* other : slot.pieces) {
    if (other == nullptr) continue;
    const char* wrong = other->kind != piece.kind || other->peer != piece.peer ? "order"
                        : other->data.dtype != piece.data.dtype                ? "dtype"
                        : other->data.count() != piece.data.count()            ? "count"
                                                                               : nullptr;
    if (wrong != nullptr) findings_.add(wrong, piece.text() + ", " + other->text());
  }
  slot.pieces[static_cast<size_t>(c.me)] = &piece;
  if (++slot.there < static_cast<int>(c.ranks.size())) return;
  if (!findings_.any()) finish(slot);
  c.shared->slots.erase(number);
  ++moves_;
  changed_.notify_all();
}

// Says why it will wait for ever.
void FakeFabric::stuck(const Piece& piece, const std::vector<Piece>& group) {
  const Communicator& c = *piece.communicator;
  const auto resident_at = [this](int rank) -> const std::vector<Piece>* {
    const auto device = devices_.find(rank);
    const auto found = device == devices_.end() ? resident_.end() : resident_.find(device->second);
    return found == resident_.end() ? nullptr : found->second;
  };
  std::vector<int> awaited;
  if (piece.kind == Kind::kSend || piece.kind == Kind::kReceive) {
    awaited.push_back(c.ranks[static_cast<size_t>(piece.peer)]);
  } else {
    for (const auto& [number, slot] : c.shared->slots)
      if (slot.pieces[static_cast<size_t>(c.me)] == &piece)
        for (size_t r = 0; r < slot.pieces.size(); ++r)
          if (slot.pieces[r] == nullptr) awaited.push_back(c.ranks[r]);
  }
  for (int rank : awaited) {
    const std::vector<Piece>* const there = resident_at(rank);
    if (there == nullptr) continue;
    // Both send, or both receive, one message at a time.
    const bool alike = group.size() == 1 && there->size() == 1 && there->front().kind == piece.kind &&
                       (piece.kind == Kind::kSend || piece.kind == Kind::kReceive);
    return findings_.add(alike ? "ungrouped" : "order", piece.text() + " waits, and there " + there->front().text());
  }
  findings_.add("absent", piece.text() + " waits for rank " +
                              (awaited.empty() ? std::string("?") : std::to_string(awaited.front())) +
                              ", where nothing runs");
}

void FakeFabric::run(const void* device, std::vector<Piece>& group) {
  std::unique_lock lock(mutex_);
  if (broken_) return;
  if (resident_.contains(device))
    findings_.add("two at once", group.front().text() + " beside " + resident_[device]->front().text());
  resident_[device] = &group;
  // A kernel per communicator, one behind the other: which is first is chance on GPUs, here what was made last.
  std::ranges::stable_sort(group, std::greater(), [](const Piece& p) { return p.communicator->id; });
  uint64_t seen = moves_;
  Time since = std::chrono::steady_clock::now();
  for (auto first = group.begin(); first != group.end() && !broken_;) {
    const auto end =
        std::find_if(first, group.end(), [&](const Piece& p) { return p.communicator != first->communicator; });
    for (auto piece = first; piece != end; ++piece) arrive(*piece);
    const auto open = [&] { return std::find_if(first, end, [](const Piece& p) { return !p.done; }); };
    while (!broken_ && open() != end) {
      if (waits_in_vain(lock, seen, since) && open() != end) stuck(*open(), group);
    }
    first = end;
  }
  resident_.erase(device);
  if (broken_) {  // its pieces go now
    for (Piece& piece : group) {
      auto& shared = *piece.communicator->shared;
      for (auto* queues : {&shared.sends, &shared.receives})
        for (auto& [way, queue] : *queues) std::erase(queue, &piece);
      for (auto& [number, slot] : shared.slots) std::ranges::replace(slot.pieces, &piece, static_cast<Piece*>(nullptr));
    }
    changed_.notify_all();
  }
}

// ---- what the host calls

FakeNccl::FakeNccl(FakeFabric& fabric, Device& device, const Mistake& mistake)
    : fabric_(fabric), gpu_(dynamic_cast<RunnerGpu&>(device)), mistake_(mistake) {}

FakeNccl::~FakeNccl() {
  if (depth_ > 0) fabric_.findings_.add("group", "a group is open at the end");
}

bool FakeNccl::errs(CallMistake what) {
  const bool mine = mistake_.what == what && (mistake_.rank == rank_ || what == CallMistake::kUngrouped);
  if (!mine) return false;
  return calls_++ == mistake_.at;
}

std::string FakeNccl::unique_id() {
  const std::lock_guard lock(fabric_.mutex_);
  return "world " + std::to_string(fabric_.next_id_++);
}

namespace {

int take_place(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
}

}  // namespace

NcclCalls::Handle FakeNccl::create(const std::string& id, int size, int rank) {
  rank_ = rank;
  {
    const std::lock_guard lock(fabric_.mutex_);
    fabric_.devices_[rank] = &gpu_;
  }
  fabric_.meet(id, size, rank, {});
  auto made = std::make_shared<FakeFabric::Communicator>();
  for (int r = 0; r < size; ++r) made->ranks.push_back(r);
  const std::lock_guard lock(fabric_.mutex_);
  auto& shared = fabric_.meetings_[id]->shared[made->ranks];
  if (shared == nullptr) shared = std::make_shared<FakeFabric::Communicator::Shared>();
  made->shared = shared, made->me = rank, made->id = fabric_.meetings_[id]->id;
  made_.insert(made);
  return made.get();
}

NcclCalls::Handle FakeNccl::split(Handle parent, int color, int key) {
  if (mistake_.what == CallMistake::kSkippedSplit && color == kNoColor && errs(CallMistake::kSkippedSplit))
    return nullptr;
  if (errs(CallMistake::kSwappedSplits)) ++splits_[parent];  // takes the next one's place ...
  const Handle made = split_now(parent, color, key);
  if (mistake_.what == CallMistake::kSwappedSplits && mistake_.rank == rank_) {
    if (calls_ == mistake_.at + 1) splits_[parent] -= 2;  // ... and that one takes its
    if (calls_ == mistake_.at + 2) ++splits_[parent];
  }
  return made;
}

NcclCalls::Handle FakeNccl::split_now(Handle handle, int color, int key) {
  auto& parent = *static_cast<FakeFabric::Communicator*>(handle);
  const std::string where =
      "split " + std::to_string(splits_[handle]++) + " of communicator " + std::to_string(parent.id);
  const auto brought = fabric_.meet(where, static_cast<int>(parent.ranks.size()), parent.me, {color, key});
  if (color == kNoColor) return nullptr;
  std::vector<std::pair<int, int>> order;  // key, place in the parent
  for (const auto& [place, value] : brought)
    if (value[0] == color) order.push_back({value[1], place});
  std::ranges::sort(order);
  auto made = std::make_shared<FakeFabric::Communicator>();
  for (const auto& [k, place] : order) made->ranks.push_back(parent.ranks[static_cast<size_t>(place)]);
  const std::lock_guard lock(fabric_.mutex_);
  FakeFabric::Meeting& meeting = *fabric_.meetings_[where];
  auto& shared = meeting.shared[made->ranks];
  if (shared == nullptr) shared = std::make_shared<FakeFabric::Communicator::Shared>();
  made->shared = shared, made->me = take_place(made->ranks, rank_), made->id = meeting.id;
  made_.insert(made);
  return made.get();
}

int FakeNccl::size(Handle handle) {
  return static_cast<int>(static_cast<FakeFabric::Communicator*>(handle)->ranks.size());
}

void FakeNccl::destroy(Handle handle) {
  const std::lock_guard lock(fabric_.mutex_);
  const auto& shared = *static_cast<FakeFabric::Communicator*>(handle)->shared;
  for (const auto* queues : {&shared.sends, &shared.receives})
    for (const auto& [way, queue] : *queues)
      if (!queue.empty() && way.first == static_cast<FakeFabric::Communicator*>(handle)->me)
        fabric_.findings_.add("destroyed", queue.front()->text() + " is under way at the end");
}

void FakeNccl::abort(Handle) noexcept {
  fabric_.let_go();
}

std::string FakeNccl::fault(Handle) {
  const std::lock_guard lock(fabric_.mutex_);
  return fabric_.fault_;
}

void FakeNccl::add(FakeFabric::Piece piece, Handle handle, Stream& stream) {
  piece.communicator = static_cast<FakeFabric::Communicator*>(handle);
  const bool message = piece.kind == Kind::kSend || piece.kind == Kind::kReceive;
  const int members = static_cast<int>(piece.communicator->ranks.size());
  if (errs(CallMistake::kWrongCount)) piece.data = piece.data.element_range(0, piece.data.count() - 1);
  if (piece.data.dtype == DType::f32 && errs(CallMistake::kWrongType))
    piece.data = View(piece.data.data, DType::i32, {piece.data.count()});
  if (message && members > 2 && errs(CallMistake::kWrongPeer)) {
    piece.peer = (piece.peer + 1) % members;
    if (piece.peer == piece.communicator->me) piece.peer = (piece.peer + 1) % members;
  }
  if (piece.kind == Kind::kSend && errs(CallMistake::kWrongMemory))
    piece.data.data = static_cast<char*>(piece.data.data) + 4;
  if (stream_ != nullptr) TW_CHECK(stream_ == &stream, "a group on two streams");
  stream_ = &stream;
  group_.push_back(std::move(piece));
  if (depth_ == 0 || (mistake_.what == CallMistake::kUngrouped && calls_ > mistake_.at) ||
      (message && errs(CallMistake::kUngrouped))) {
    queue(std::exchange(group_, {}), *std::exchange(stream_, nullptr));
  }
}

void FakeNccl::group_end() {
  TW_CHECK(depth_ > 0, "the end of no group");
  if (--depth_ == 0 && !group_.empty()) queue(std::exchange(group_, {}), *std::exchange(stream_, nullptr));
}

void FakeNccl::queue(std::vector<FakeFabric::Piece> group, Stream& given) {
  Stream* stream = &given;
  if (errs(CallMistake::kOtherStream)) {
    other_ = gpu_.make_stream();
    stream = other_.get();
  }
  std::vector<Access> accesses = {{&gpu_, 1, true}};
  for (const FakeFabric::Piece& p : group) {
    const bool writes = p.kind == Kind::kReceive || p.kind == Kind::kAllReduce || p.kind == Kind::kReduce ||
                        (p.kind == Kind::kBroadcast && p.peer != p.communicator->me);
    accesses.push_back({p.data.data, p.data.bytes(), writes});
    if (p.into) accesses.push_back({p.into.data, p.into.bytes(), true});
  }
  std::string what = kKinds[static_cast<int>(group.front().kind)];
  if (group.size() > 1) what += " and " + std::to_string(group.size() - 1) + " more";
  const auto kept = std::make_shared<std::vector<FakeFabric::Piece>>(std::move(group));
  gpu_.add(*stream, what, accesses, [fabric = &fabric_, gpu = &gpu_, kept] { fabric->run(gpu, *kept); });
}

void FakeNccl::send(View data, int peer, Handle handle, Stream& stream) {
  add({.kind = Kind::kSend, .data = data, .peer = peer}, handle, stream);
}
void FakeNccl::receive(View data, int peer, Handle handle, Stream& stream) {
  add({.kind = Kind::kReceive, .data = data, .peer = peer}, handle, stream);
}
void FakeNccl::all_gather(View mine, View whole, Handle handle, Stream& stream) {
  TW_CHECK(whole.count() == mine.count() * size(handle));
  const View place =
      whole.element_range(static_cast<FakeFabric::Communicator*>(handle)->me * mine.count(), mine.count());
  const char *first = static_cast<const char*>(mine.data), *all = static_cast<const char*>(whole.data);
  TW_CHECK(mine.data == place.data || first + mine.bytes() <= all || first >= all + whole.bytes(),
           "an all-gather from inside its result, and not from its place");
  add({.kind = Kind::kAllGather, .data = mine, .into = whole}, handle, stream);
}
void FakeNccl::broadcast(View data, int root, Handle handle, Stream& stream) {
  add({.kind = Kind::kBroadcast, .data = data, .peer = root}, handle, stream);
}
void FakeNccl::all_reduce(View data, Handle handle, Stream& stream) {
  add({.kind = Kind::kAllReduce, .data = data}, handle, stream);
}
void FakeNccl::reduce(View data, int root, Handle handle, Stream& stream) {
  add({.kind = Kind::kReduce, .data = data, .peer = root}, handle, stream);
}

void FakeNccl::use_kernels(const OpTable& ops, Stream& stream) {
  kernel_stream_ = std::make_unique<KernelStream>(stream);
  kernels_ = std::make_unique<Exec>(make_exec(ops, gpu_, *kernel_stream_, 1));
}

Exec& FakeNccl::kernels(std::span<const Touched> touched) {
  TW_CHECK(kernels_ != nullptr, "a test without kernels of codecs");
  kernel_stream_->touched.clear();
  for (const Touched& t : touched) kernel_stream_->touched.push_back({t.data, t.bytes, t.writes});
  return *kernels_;
}

void FakeNccl::sum_in_rank_order(const RankSum& s, Stream& stream) {
  std::vector<Access> accesses = {{s.own.data, s.own.bytes(), false}, {s.out.data, s.out.bytes(), true}};
  std::vector<const void*> sources;
  for (int r = 0; r < s.ranks; ++r) {
    const char* const from = static_cast<const char*>(s.others) + r * s.stride;
    sources.push_back(r == s.rank ? s.own.data : from);
    if (r != s.rank) accesses.push_back({from, s.own.bytes(), false});
  }
  gpu_.add(stream, "sum", accesses, [s, sources] {
    combine_in_rank_order(ReduceKind::kSum, s.own.dtype, sources.data(), static_cast<int>(sources.size()), s.out.dtype,
                          s.out.data, s.out.count(), s.accumulate);
  });
}

}  // namespace thinwire::test
