// Fibers and their scheduler: a block of CUDA threads on one CPU thread.
#include "tests/emulation/cuda_emulation.h"

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "engine/base/core/error.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

// Pushes the callee-saved registers, stores the stack pointer to *from, and continues at `to`, which an earlier call
// stored.
extern "C" void tw_switch_stack(void** from, void* to);
asm(R"(
.text
.type tw_switch_stack, @function
tw_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tw_switch_stack, .-tw_switch_stack
)");

namespace thinwire {
namespace emulation {

thread_local Index3 thread_index, block_index, block_size, grid_size;

namespace {

constexpr size_t kStack = size_t{128} << 10;
constexpr size_t kMostShared = 162 << 10;  // of a block on sm_80, beside 1 KB of static arrays (CudaQueue::launch)

enum class At { kReady, kWarp, kBlock, kEnd };

struct Fiber {
  std::unique_ptr<unsigned char[]> stack;
  void* saved = nullptr;
  void* fake_stack = nullptr;  // AddressSanitizer's
  At at = At::kEnd;
  int where = 0;  // line of the barrier, or site of the shuffle
  uint64_t words[2] = {};
  int turn = 0;  // of words: shuffles so far, modulo 2. A word stays until the lane's shuffle after the next one
};

struct Machine {
  std::vector<std::unique_ptr<Fiber>> fibers;
  Fiber* running = nullptr;
  unsigned index = 0;
  void* scheduler = nullptr;
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_size = 0;
  const std::function<void()>* body = nullptr;
  std::exception_ptr failure;
  const char* what = "";
  std::map<const void*, void*> shared_sites;
  std::vector<std::unique_ptr<unsigned char[]>> shared_arrays;
  size_t shared_used = 0;
  std::unique_ptr<unsigned char[]> dynamic;
  size_t dynamic_bytes = 0;
  std::mt19937 order{12345};
  int64_t launches = 0;
};

Machine& machine() {
  thread_local Machine m;
  return m;
}

void to_scheduler(Machine& m) {
  Fiber& f = *m.running;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&f.fake_stack, m.scheduler_stack, m.scheduler_stack_size);
#endif
  tw_switch_stack(&f.saved, m.scheduler);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(f.fake_stack, &m.scheduler_stack, &m.scheduler_stack_size);
#endif
}

void to_fiber(Machine& m, unsigned index) {
  m.index = index;
  m.running = m.fibers[index].get();
  thread_index = {index, 0, 0};
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&m.scheduler_fake_stack, m.running->stack.get(), kStack);
#endif
  tw_switch_stack(&m.scheduler, m.running->saved);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(m.scheduler_fake_stack, nullptr, nullptr);
#endif
}

// The life of a fiber: one kernel thread after another. Never returns.
void fiber_main() {
  Machine& m = machine();
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &m.scheduler_stack, &m.scheduler_stack_size);
#endif
  for (;;) {
    try {
      (*m.body)();
    } catch (...) {
      if (!m.failure) m.failure = std::current_exception();
    }
    m.running->at = At::kEnd;
    to_scheduler(m);
  }
}

void make_fibers(Machine& m, size_t count) {
  while (m.fibers.size() < count) {
    auto fiber = std::make_unique<Fiber>();
    fiber->stack.reset(new unsigned char[kStack]);
    auto top = reinterpret_cast<uintptr_t>(fiber->stack.get() + kStack) & ~uintptr_t{15};
    auto* words = reinterpret_cast<uintptr_t*>(top);
    words[-1] = 0;  // where fiber_main would return to
    words[-2] = reinterpret_cast<uintptr_t>(&fiber_main);
    for (int i = 3; i <= 8; ++i) words[-i] = 0;
    fiber->saved = words - 8;
    m.fibers.push_back(std::move(fiber));
  }
}

void poison(unsigned char* memory, size_t bytes) {
  std::memset(memory, 0xff, bytes);  // NaN in every type
}

[[noreturn]] void stuck(const Machine& m, size_t threads) {
  std::string list;
  for (size_t i = 0; i < threads && list.size() < 600; ++i) {
    const Fiber& f = *m.fibers[i];
    list += " " + std::to_string(i);
    list += f.at == At::kEnd     ? ":end"
            : f.at == At::kBlock ? ":barrier@" + std::to_string(f.where)
                                 : ":shuffle^" + std::to_string(f.where);
  }
  throw Error(ExitCode::kInternal, std::string(m.what) + ": threads wait for one another at different places:" + list);
}

// Lets a warp go on if all its lanes have come to the same shuffle; returns whether they have.
bool release_warp(Machine& m, size_t first) {
  for (size_t i = first; i < first + kWarp; ++i) {
    const Fiber& f = *m.fibers[i];
    if (f.at != At::kWarp || f.where != m.fibers[first]->where) return false;
  }
  for (size_t i = first; i < first + kWarp; ++i) m.fibers[i]->at = At::kReady;
  return true;
}

// The same for the block at a barrier.
bool release_block(Machine& m, size_t threads) {
  for (size_t i = 0; i < threads; ++i) {
    const Fiber& f = *m.fibers[i];
    if (f.at != At::kBlock || f.where != m.fibers[0]->where) return false;
  }
  for (size_t i = 0; i < threads; ++i) m.fibers[i]->at = At::kReady;
  return true;
}

// The lanes of a warp, in random order, each up to its next barrier or shuffle; false when one of them threw.
bool run_lanes(Machine& m, size_t first) {
  std::array<unsigned, kWarp> lanes;
  std::iota(lanes.begin(), lanes.end(), static_cast<unsigned>(first));
  std::shuffle(lanes.begin(), lanes.end(), m.order);
  for (unsigned i : lanes) {
    if (m.fibers[i]->at == At::kReady) to_fiber(m, i);
    if (m.failure) return false;
  }
  return true;
}

void run_block(Machine& m, size_t threads) {
  m.shared_sites.clear();
  m.shared_arrays.clear();
  m.shared_used = 0;
  m.dynamic.reset(new unsigned char[m.dynamic_bytes + 16]);
  poison(m.dynamic.get(), m.dynamic_bytes);
  for (size_t i = 0; i < threads; ++i) {
    m.fibers[i]->at = At::kReady;
    m.fibers[i]->turn = 0;
  }
  std::vector<size_t> warps;
  for (size_t w = 0; w < threads; w += kWarp) warps.push_back(w);
  // Half of the blocks let a warp run through its shuffles to the next barrier before the next warp moves: whoever
  // relies on other warps without a barrier then finds them far ahead or far behind. The others go from one shuffle to
  // the next together.
  const bool run_ahead = m.order() % 2 == 0;
  for (;;) {
    std::shuffle(warps.begin(), warps.end(), m.order);
    bool moved = false;
    for (size_t w : warps) {
      do {
        if (!run_lanes(m, w)) return;
      } while (run_ahead && release_warp(m, w));
    }
    for (size_t w : warps) moved = release_warp(m, w) || moved;
    if (moved) continue;
    bool ended = true;
    for (size_t i = 0; i < threads; ++i) ended = ended && m.fibers[i]->at == At::kEnd;
    if (ended) return;
    if (!release_block(m, threads)) stuck(m, threads);
  }
}

}  // namespace

void* shared_array(const void* site, size_t bytes) {
  Machine& m = machine();
  void*& memory = m.shared_sites[site];
  if (memory == nullptr) {
    m.shared_arrays.emplace_back(new unsigned char[bytes]);
    m.shared_used += bytes;
    TW_CHECK(m.shared_used <= (m.dynamic_bytes > 0 ? size_t{1} << 10 : size_t{48} << 10), m.what, ": ", m.shared_used,
             " bytes of static shared memory, which may be 1 KB beside dynamic, else 48 KB (see CudaQueue::launch)");
    memory = m.shared_arrays.back().get();
    poison(m.shared_arrays.back().get(), bytes);
  }
  return memory;
}

unsigned char* dynamic_shared() {
  return machine().dynamic.get();
}

void block_barrier(int line) {
  Machine& m = machine();
  m.running->at = At::kBlock;
  m.running->where = line;
  to_scheduler(m);
}

uint64_t exchange(uint64_t word, int from, int site) {
  Machine& m = machine();
  Fiber& mine = *m.running;
  const unsigned index = m.index, warp = index / kWarp * kWarp;
  const int turn = mine.turn;
  mine.turn ^= 1;
  mine.words[turn] = word;
  mine.at = At::kWarp;
  mine.where = site;
  to_scheduler(m);
  return m.fibers[warp + static_cast<unsigned>(from)]->words[turn];
}

void run_grid(const char* what, int64_t grid_x, int64_t grid_y, int threads, size_t shared,
              const std::function<void()>& body) {
  Machine& m = machine();
  TW_CHECK(grid_x > 0 && grid_x <= 0x7fffffff && grid_y > 0 && grid_y <= 65535, what, " over ", grid_x, " x ", grid_y,
           " blocks");
  TW_CHECK(threads > 0 && threads <= 1024 && threads % kWarp == 0, what, " with ", threads, " threads a block");
  TW_CHECK(shared <= kMostShared, what, " needs ", shared, " bytes of shared memory");
  m.what = what;
  m.body = &body;
  m.failure = nullptr;
  m.dynamic_bytes = shared;
  ++m.launches;
  grid_size = {static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y), 1};
  block_size = {static_cast<unsigned>(threads), 1, 1};
  make_fibers(m, static_cast<size_t>(threads));
  // Kernels must not rely on the order of blocks: a random first one, ascending or descending.
  const int64_t blocks = grid_x * grid_y;
  const int64_t start = static_cast<int64_t>(m.order() % static_cast<uint64_t>(blocks));
  const bool backwards = m.order() % 2 == 0;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t k = (start + i) % blocks, block = backwards ? blocks - 1 - k : k;
    block_index = {static_cast<unsigned>(block % grid_x), static_cast<unsigned>(block / grid_x), 0};
    try {
      run_block(m, static_cast<size_t>(threads));
    } catch (...) {
      m.failure = std::current_exception();
    }
    if (m.failure) {
      // Fibers that wait are thrown away: their stacks hold a kernel that never ends.
      m.fibers.clear();
      std::rethrow_exception(std::exchange(m.failure, nullptr));
    }
  }
}

int64_t launches() {
  return machine().launches;
}

}  // namespace emulation

std::byte* CudaQueue::scratch(size_t bytes) {
  scratch_ = std::make_shared<std::vector<std::byte>>(bytes + 512);
  add([memory = scratch_.get()] { std::fill(memory->begin(), memory->end(), std::byte{0xff}); });
  const auto at = reinterpret_cast<uintptr_t>(scratch_->data());
  return scratch_->data() + (512 - at % 512) % 512;
}

void EmulatedState::check_faults(Stream& stream) {
  stream.synchronize();
  const unsigned faults = std::exchange(fault_word_, 0u);
  TW_CHECK((faults & kFaultToken) == 0, "a token lies outside the embedding table");
  TW_CHECK((faults & kFaultTarget) == 0, "a target lies outside the valid columns");
}

namespace {

EmulatedState& emulated_state(Exec& exec) {
  auto* state = dynamic_cast<EmulatedState*>(exec.state.get());
  TW_CHECK(state != nullptr, "this Exec was not made by make_exec(emulated_cuda_ops(), ...)");
  return *state;
}

}  // namespace

CudaQueue::CudaQueue(Exec& exec)
    : state_(emulated_state(exec)), deferred_(dynamic_cast<DeferredStream*>(&exec.stream)) {}

}  // namespace thinwire
