// Free lists of memory blocks, one per power-of-two size.
#include "parallel/wire/scratch.h"

#include <bit>
#include <new>

namespace thinwire {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

int BlockPool::class_of(size_t bytes) {
  const int bits = bytes <= (size_t{1} << kSmallestBits) ? kSmallestBits : std::bit_width(bytes - 1);
  TW_CHECK(bits < kSmallestBits + kClasses, bytes, " bytes of scratch");
  return bits - kSmallestBits;
}

void* BlockPool::allocate(size_t bytes) {
  const int size_class = class_of(bytes);
  {
    std::lock_guard lock(mutex_);
    if (Free* block = free_[static_cast<size_t>(size_class)]; block != nullptr) {
      free_[static_cast<size_t>(size_class)] = block->next;
      ++out_;
      return block;
    }
  }
  void* const block = ::operator new (size_t{1} << (size_class + kSmallestBits), kAlignment);
  std::lock_guard lock(mutex_);  // counted only now: new may throw
  ++out_;
  return block;
}

void BlockPool::release(void* block, size_t bytes) noexcept {
  Free*& list = free_[static_cast<size_t>(class_of(bytes))];
  bool last = false;
  {
    std::lock_guard lock(mutex_);
    list = new (block) Free{list};
    last = --out_ == 0 && retired_;
  }
  if (last) delete this;
}

int64_t BlockPool::blocks_out() const {
  std::lock_guard lock(mutex_);
  return out_;
}

void BlockPool::retire() {
  bool last = false;
  {
    std::lock_guard lock(mutex_);
    retired_ = true;
    last = out_ == 0;
  }
  if (last) delete this;
}

BlockPool::~BlockPool() {
  for (Free* block : free_) {
    while (block != nullptr) {
      Free* next = block->next;
      ::operator delete(block, kAlignment);
      block = next;
    }
  }
}

}  // namespace thinwire
