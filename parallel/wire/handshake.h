// A few messages between ranks before there is an engine: posted, and awaited with naps.
#pragma once

#include <array>
#include <chrono>
#include <thread>

#include "parallel/wire/transport.h"

namespace thinwire {

class Handshake {
 public:
  // tag: one that no communicator uses (kTags - 1 downwards); messages of two ranks arrive in the order of posting.
  Handshake(Transport& transport, int tag) : transport_(transport), tag_(tag) {}
  void send(const void* data, size_t bytes, int peer) {
    open_ += transport_.post_send(data, bytes, peer, tag_, 0) ? 0 : 1;
  }
  void receive(void* data, size_t bytes, int peer) {
    open_ += transport_.post_receive(data, bytes, peer, tag_, 1) ? 0 : 1;
  }
  // Until all are over: the memory is the caller's again.
  void finish() {
    std::array<Completion, 16> done;
    while (open_ > 0) {
      const size_t n = transport_.poll(done);
      open_ -= static_cast<int>(n);
      if (n == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  Transport& transport_;
  int tag_, open_ = 0;
};

}  // namespace thinwire
