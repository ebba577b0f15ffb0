// The memory that the ranks of a node share: made by the first of them, found by the others through its process.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "parallel/wire/binding.h"
#include "parallel/wire/handshake.h"
#include "parallel/wire/transport_node.h"

namespace thinwire {
namespace {

constexpr int kTag = kTags - 2;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Where the memory is: a file without a name, which nobody has to clean up. The cookie stands at its start while ranks
// look for it: process numbers of another container may lead to any file.
struct Offer {
  int64_t process = 0;
  int32_t file = -1;
  uint32_t layout = kNodeMemoryLayout;
  uint64_t bytes = 0;  // 0: there is none
  uint64_t cookie[2] = {};
};

std::shared_ptr<void> map(const Descriptor& file, size_t bytes) {
  void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (start == MAP_FAILED) return nullptr;
  return {start, [bytes](void* memory) { ::munmap(memory, bytes); }};
}

std::shared_ptr<void> make(const Descriptor& file, Offer& offer, size_t bytes) {
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return nullptr;
  // Whoever could cut it would end all ranks of the node with SIGBUS.
  if (::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) return nullptr;
  std::shared_ptr<void> memory = map(file, bytes);
  if (memory == nullptr) return nullptr;
  std::random_device random;
  for (uint64_t& word : offer.cookie) word = uint64_t{random()} << 32 | random();
  std::memcpy(memory.get(), offer.cookie, sizeof offer.cookie);
  offer.process = ::getpid();
  offer.file = file.get();
  offer.bytes = bytes;
  return memory;
}

std::shared_ptr<void> find(const Offer& offer, size_t bytes) {
  if (offer.bytes != bytes || offer.layout != kNodeMemoryLayout) return nullptr;
  const std::string path = "/proc/" + std::to_string(offer.process) + "/fd/" + std::to_string(offer.file);
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file || ::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode) ||
      about.st_size != static_cast<off_t>(bytes) || ::fcntl(file.get(), F_GET_SEALS) != kSeals)
    return nullptr;
  std::shared_ptr<void> memory = map(file, bytes);
  if (memory == nullptr || std::memcmp(memory.get(), offer.cookie, sizeof offer.cookie) != 0) return nullptr;
  return memory;
}

}  // namespace

bool wants_node_memory() {
  const char* const set = std::getenv("THINWIRE_NODE_MEMORY");
  const std::string wish = set == nullptr ? "" : set;
  if (wish != "" && wish != "0" && wish != "1") throw_bad_config("THINWIRE_NODE_MEMORY=" + wish + ": use 0 or 1");
  return wish != "0";
}

std::unique_ptr<Transport> join_node(std::unique_ptr<Transport> transport, const std::vector<int>& nodes, bool wanted,
                                     std::string& notice, Keeper* keeper) {
  const NodePlace place = place_on_node(nodes, transport->rank());
  if (place.local_size == 1) return transport;
  const auto without = [&](const std::string& why) {
    if (wanted && place.local_rank == 0)
      notice = "the " + std::to_string(place.local_size) + " ranks of this node do not share memory (" + why +
               "): MPI moves their messages";
    return std::move(transport);
  };
  if (place.local_size > kMostNodeRanks)
    return without("at most " + std::to_string(kMostNodeRanks) + " ranks of a node can");
  const size_t bytes = node_memory_bytes(place.local_size);
  const int first = place.ranks.front();
  Handshake handshake(*transport, kTag, keeper);
  Offer offer;
  std::shared_ptr<void> memory;
  char all = 0;
  if (place.local_rank == 0) {
    const Descriptor file(wanted ? ::memfd_create("thinwire-node", MFD_CLOEXEC | MFD_ALLOW_SEALING) : -1);
    memory = make(file, offer, bytes);
    std::vector<char> found(place.ranks.size(), 1);
    for (size_t i = 1; i < place.ranks.size(); ++i) {
      handshake.send(&offer, sizeof offer, place.ranks[i]);
      handshake.receive(&found[i], 1, place.ranks[i]);
    }
    handshake.finish();
    all = memory != nullptr && std::count(found.begin(), found.end(), 1) == place.local_size ? 1 : 0;
    if (memory != nullptr) std::memset(memory.get(), 0, sizeof offer.cookie);
    for (size_t i = 1; i < place.ranks.size(); ++i) handshake.send(&all, 1, place.ranks[i]);
    handshake.finish();
  } else {
    handshake.receive(&offer, sizeof offer, first);
    handshake.finish();
    memory = wanted ? find(offer, bytes) : nullptr;
    const char found = memory != nullptr ? 1 : 0;
    handshake.send(&found, 1, first);
    handshake.receive(&all, 1, first);
    handshake.finish();
  }
  if (all == 0)
    return without(memory == nullptr
                       ? "the system grants no memory of " + std::to_string(bytes) + " bytes"
                       : "a rank does not want to, or cannot open it through /proc: ranks in containers of their own?");
  return node_transport(std::move(transport), place.ranks, std::move(memory));
}

}  // namespace thinwire
