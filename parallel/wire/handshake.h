// A few messages between ranks before there is an engine, or behind its end: posted, and awaited with naps.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/core/text.h"
#include "parallel/wire/keeper.h"
#include "parallel/wire/transport.h"

namespace thinwire {

class Handshake {
 public:
  // tag: one that no communicator uses (kTags - 1 downwards); messages of two ranks arrive in the order of posting.
  // keeper: told whom this rank waits for, and where.
  Handshake(Transport& transport, int tag, Keeper* keeper, std::string place = "first handshake of this node",
            Keeper::Note note = Keeper::Note::kStarting)
      : transport_(transport), tag_(tag), keeper_(keeper), place_(std::move(place)), note_(note) {}
  void send(const void* data, size_t bytes, int peer) {
    posted(transport_.post_send(data, bytes, peer, tag_, next_token()), peer);
  }
  void receive(void* data, size_t bytes, int peer) {
    posted(transport_.post_receive(data, bytes, peer, tag_, next_token()), peer);
  }
  // Until all are over: the memory is the caller's again.
  void finish() {
    std::vector<Completion> done(peers_.size());
    auto nap = std::chrono::microseconds(10);
    for (bool news = true; open_ > 0;) {
      if (news && keeper_ != nullptr) keeper_->phase(missing(), note_);
      const size_t n = transport_.poll(done);
      for (size_t i = 0; i < n; ++i) peers_[done[i].token] = -1;
      open_ -= static_cast<int>(n);
      news = n > 0;
      if (news) continue;
      std::this_thread::sleep_for(nap);
      nap = std::min(2 * nap, std::chrono::microseconds(1000));
    }
    peers_.clear();
  }

 private:
  uint32_t next_token() const { return static_cast<uint32_t>(peers_.size()); }
  void posted(bool over, int peer) {
    peers_.push_back(over ? -1 : peer);
    open_ += over ? 0 : 1;
  }
  std::string missing() const {
    std::vector<int> ranks;
    for (const int peer : peers_)
      if (peer >= 0 && (ranks.empty() || ranks.back() != peer)) ranks.push_back(peer);
    return "no sign of rank " + some_of(ranks) + " in the " + place_;
  }

  Transport& transport_;
  int tag_, open_ = 0;
  Keeper* keeper_;
  std::string place_;
  Keeper::Note note_;
  std::vector<int> peers_;  // by token; -1: over
};

}  // namespace thinwire
