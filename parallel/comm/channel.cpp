// The verbs of a communicator under a codec. A codec whose wire bytes are the caller's memory is the plain collective.
#include "parallel/comm/channel.h"

#include "engine/base/core/check.h"

namespace thinwire {

Channel::Channel(std::unique_ptr<Communicator> communicator, std::shared_ptr<const Codec> codec)
    : communicator_(std::move(communicator)), codec_(std::move(codec)) {
  TW_CHECK(communicator_ != nullptr && codec_ != nullptr);
  TW_CHECK(codec_->traits().alias, "codec ", codec_->name(),
           " changes bytes, and this version has no coded collectives");
}

Ticket Channel::all_reduce(View data, ReduceKind kind, Stream& stream) {
  return communicator_ ? communicator_->all_reduce(data, kind, stream) : Ticket::finished();
}

Ticket Channel::reduce_scatter(View whole, std::span<const int64_t> bounds, View out, bool accumulate, Stream& stream) {
  if (communicator_) return communicator_->reduce_scatter(whole, bounds, out, accumulate, stream);
  TW_CHECK(out.data == whole.data && out.count() == whole.count(),
           "an empty channel moves nothing: the result has to be where the contribution is");
  return Ticket::finished();
}

Ticket Channel::all_gather(View mine, View whole, std::span<const int64_t> bounds, Stream& stream) {
  if (communicator_) return communicator_->all_gather(mine, whole, bounds, stream);
  TW_CHECK(mine.count() == whole.count() && mine.data == whole.data,
           "an empty channel moves nothing: the result has to be where the contribution is");
  return Ticket::finished();
}

Ticket Channel::broadcast(View data, int root, Stream& stream) {
  return communicator_ ? communicator_->broadcast(data, root, stream) : Ticket::finished();
}

Ticket Channel::send(View data, int peer, Stream& stream) {
  TW_CHECK(communicator_ != nullptr, "a group of one rank has nobody to send to");
  return communicator_->send(data, peer, stream);
}

Ticket Channel::receive(View data, int peer, Stream& stream) {
  TW_CHECK(communicator_ != nullptr, "a group of one rank has nobody to receive from");
  return communicator_->receive(data, peer, stream);
}

Ticket Channel::barrier() {
  return communicator_ ? communicator_->barrier() : Ticket::finished();
}

}  // namespace thinwire
