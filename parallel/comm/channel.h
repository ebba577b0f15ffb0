// A Channel binds a codec to one (site, group): the verbs of the communicator, with what travels decided by the codec.
#pragma once

#include <memory>
#include <span>

#include "compression/codecs/identity.h"
#include "parallel/comm/communicator.h"

namespace thinwire {

// An empty channel stands for a group of one rank: every verb is finished at once and moves nothing
// (send and receive have no peer, and are a CHECK).
class Channel {
 public:
  Channel() = default;
  // CHECKs that the codec is one whose wire bytes are the caller's memory: no others exist yet.
  explicit Channel(std::unique_ptr<Communicator> communicator,
                   std::shared_ptr<const Codec> codec = std::make_shared<Identity>());

  int rank() const { return communicator_ ? communicator_->rank() : 0; }
  int size() const { return communicator_ ? communicator_->size() : 1; }
  explicit operator bool() const { return communicator_ != nullptr; }

  // The verbs of Communicator (see there for shapes and leases).
  Ticket all_reduce(View data, ReduceKind kind, Stream& stream);
  Ticket reduce_scatter(View whole, std::span<const int64_t> bounds, View out, bool accumulate, Stream& stream);
  Ticket all_gather(View mine, View whole, std::span<const int64_t> bounds, Stream& stream);
  Ticket broadcast(View data, int root, Stream& stream);
  Ticket send(View data, int peer, Stream& stream);
  Ticket receive(View data, int peer, Stream& stream);
  Ticket barrier();

  Communicator* communicator() { return communicator_.get(); }

 private:
  std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<const Codec> codec_;
};

}  // namespace thinwire
