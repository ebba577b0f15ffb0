// A few messages between ranks before there is an engine: posted, and awaited with naps.
#pragma once

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "parallel/wire/keeper.h"
#include "parallel/wire/transport.h"

namespace thinwire {

class Handshake {
 public:
  // tag: one that no communicator uses (kTags - 1 downwards); messages of two ranks arrive in the order of posting.
  // keeper: told whom this rank waits for.
  Handshake(Transport& transport, int tag, Keeper* keeper = nullptr)
      : transport_(transport), tag_(tag), keeper_(keeper) {}
  void send(const void* data, size_t bytes, int peer) {
    note(transport_.post_send(data, bytes, peer, tag_, next_token()), peer);
  }
  void receive(void* data, size_t bytes, int peer) {
    note(transport_.post_receive(data, bytes, peer, tag_, next_token()), peer);
  }
  // Until all are over: the memory is the caller's again.
  void finish() {
    std::array<Completion, 16> done;
    for (bool news = true; open_ > 0;) {
      if (news && keeper_ != nullptr) keeper_->phase(missing(), Keeper::Note::kStarting);
      const size_t n = transport_.poll(done);
      for (size_t i = 0; i < n; ++i) peers_[done[i].token] = -1;
      open_ -= static_cast<int>(n);
      news = n > 0;
      if (n == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    peers_.clear();
  }

 private:
  uint32_t next_token() const { return static_cast<uint32_t>(peers_.size()); }
  void note(bool over, int peer) {
    peers_.push_back(over ? -1 : peer);
    open_ += over ? 0 : 1;
  }
  std::string missing() const {
    std::string text = "no sign of rank";
    int before = -1;
    for (const int peer : peers_) {
      if (peer < 0 || peer == before) continue;
      text += (before < 0 ? " " : ", ") + std::to_string(peer);
      before = peer;
    }
    return text + " in the first handshake of this node";
  }

  Transport& transport_;
  int tag_, open_ = 0;
  Keeper* keeper_;
  std::vector<int> peers_;  // by token; -1: over
};

}  // namespace thinwire
