// A transport that is looked at, or meddled with, on its way to the one that does the work.
#pragma once

#include <exception>
#include <span>

#include "parallel/wire/transport.h"

namespace thinwire {

class Between : public Transport {
 public:
  explicit Between(Transport& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    return inner_.post_send(data, bytes, peer, tag, token);
  }
  bool post_receive(void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    return inner_.post_receive(data, bytes, peer, tag, token);
  }
  size_t poll(std::span<Completion> done) override { return inner_.poll(done); }
  bool withdraw(uint32_t token) noexcept override { return inner_.withdraw(token); }
  [[noreturn]] void abort(int code) override {
    inner_.abort(code);
    std::terminate();
  }

 private:
  Transport& inner_;
};

}  // namespace thinwire
