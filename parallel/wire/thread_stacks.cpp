// A signal per thread, a handler that unwinds into a table, and the names of the modules that the addresses lie in.
#include "parallel/wire/thread_stacks.h"

#include <dirent.h>
#include <elf.h>
#include <execinfo.h>
#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace thinwire {
namespace {

constexpr int kMostThreads = 512, kMostFrames = 64;

struct Stack {
  std::atomic<int> thread{0}, frames{-1};  // -1: has not answered
  std::array<void*, kMostFrames> at;
};
using StackTable = std::array<Stack, kMostThreads>;

// A signal handler has nowhere else to look. Never freed: a thread may answer late.
std::atomic<StackTable*> stack_table{nullptr};
std::mutex stack_table_user;

extern "C" void on_stack_signal(int) {
  const int error = errno;
  const int me = static_cast<int>(::syscall(SYS_gettid));
  if (StackTable* table = stack_table.load(std::memory_order_acquire)) {
    for (Stack& stack : *table) {
      if (stack.thread.load(std::memory_order_relaxed) != me) continue;
      stack.frames.store(::backtrace(stack.at.data(), kMostFrames), std::memory_order_release);
      break;
    }
  }
  errno = error;
}

struct Module {
  std::string path, build;
  uintptr_t base = 0;
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
};

std::string build_of(const char* notes, size_t bytes) {
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= bytes;) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes + at, sizeof note);
    const size_t name = at + sizeof note, content = name + (note.n_namesz + 3) / 4 * 4;
    at = content + (note.n_descsz + 3) / 4 * 4;
    if (at > bytes || note.n_type != NT_GNU_BUILD_ID || note.n_namesz != 4 || std::memcmp(notes + name, "GNU", 4) != 0)
      continue;
    std::string text;
    for (size_t i = 0; i < note.n_descsz; ++i) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(notes[content + i]));
      text += digits;
    }
    return text;
  }
  return "-";
}

int add_module(dl_phdr_info* info, size_t, void* list) {
  Module module;
  module.path = info->dlpi_name;
  module.base = info->dlpi_addr;
  module.build = "-";
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    const uintptr_t start = info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD) module.ranges.emplace_back(start, start + part.p_memsz);
    if (part.p_type == PT_NOTE && module.build == "-")
      module.build = build_of(reinterpret_cast<const char*>(start), part.p_memsz);
  }
  if (module.path.empty()) {  // the program itself
    char path[4096];
    const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
    if (length > 0) module.path.assign(path, static_cast<size_t>(length));
  }
  static_cast<std::vector<Module>*>(list)->push_back(std::move(module));
  return 0;
}

std::string place_text(const void* address, bool returns_here, const std::vector<Module>& modules) {
  // A return address lies behind its call, which may be the last thing in a function.
  const uintptr_t at = reinterpret_cast<uintptr_t>(address) - (returns_here ? 1 : 0);
  char text[64];
  for (const Module& module : modules) {
    const auto inside = [at](auto& range) { return at >= range.first && at < range.second; };
    if (!std::any_of(module.ranges.begin(), module.ranges.end(), inside)) continue;
    std::snprintf(text, sizeof text, "+0x%zx build ", static_cast<size_t>(at - module.base));
    return module.path + text + module.build;
  }
  std::snprintf(text, sizeof text, "0x%zx", static_cast<size_t>(at));
  return text;
}

std::string line_of(int thread, const char* file) {
  std::ifstream in("/proc/self/task/" + std::to_string(thread) + "/" + file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::vector<int> threads_now() {
  std::vector<int> list;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc/self/task"), ::closedir);
  while (directory != nullptr) {
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr) break;
    if (const int thread = std::atoi(entry->d_name); thread > 0) list.push_back(thread);
  }
  std::sort(list.begin(), list.end());
  return list;
}

// Asks a thread for its stack.
int stack_signal() {
  return SIGRTMIN + 7;
}

}  // namespace

SignalsBlocked::SignalsBlocked() {
  sigset_t most;
  sigfillset(&most);
  sigdelset(&most, stack_signal());
  pthread_sigmask(SIG_SETMASK, &most, &before_);
}

SignalsBlocked::~SignalsBlocked() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void prepare_thread_stacks() {
  void* one = nullptr;
  ::backtrace(&one, 1);  // loads the unwinder, which a handler must not
  struct sigaction action {};
  action.sa_handler = on_stack_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(stack_signal(), &action, nullptr);
}

std::string thread_stacks(double seconds) {
  const std::unique_lock lock(stack_table_user, std::try_to_lock);
  if (!lock) return "";
  StackTable* table = stack_table.load();
  if (table == nullptr) table = new StackTable;
  const std::vector<int> threads = threads_now();
  const int count = std::min(static_cast<int>(threads.size()), kMostThreads);
  for (int i = 0; i < kMostThreads; ++i) {
    Stack& stack = (*table)[static_cast<size_t>(i)];
    stack.frames.store(-1, std::memory_order_relaxed);
    stack.thread.store(i < count ? threads[static_cast<size_t>(i)] : 0, std::memory_order_relaxed);
  }
  stack_table.store(table, std::memory_order_release);
  for (int i = 0; i < count; ++i) ::syscall(SYS_tgkill, ::getpid(), threads[static_cast<size_t>(i)], stack_signal());
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                          std::chrono::duration<double>(seconds));
  const auto silent = [&](const Stack& s) {
    return s.thread.load(std::memory_order_relaxed) != 0 && s.frames.load(std::memory_order_acquire) < 0;
  };
  while (std::any_of(table->begin(), table->end(), silent) && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::vector<Module> modules;
  ::dl_iterate_phdr(add_module, &modules);
  std::string text;
  for (int i = 0; i < count; ++i) {
    const Stack& stack = (*table)[static_cast<size_t>(i)];
    const int thread = threads[static_cast<size_t>(i)], frames = stack.frames.load(std::memory_order_acquire);
    const std::string stat = line_of(thread, "stat"), sleeps = line_of(thread, "wchan");
    const size_t state = stat.rfind(") ");
    text += "thread " + std::to_string(thread) + " " + line_of(thread, "comm") + ", state " +
            (state == std::string::npos ? "?" : stat.substr(state + 2, 1)) +
            (sleeps.empty() || sleeps == "0" ? "" : " in " + sleeps) + (frames < 0 ? ", does not answer\n" : "\n");
    // The handler and what the kernel has put below it are of no interest.
    for (int f = 2; f < frames; ++f) text += "  " + place_text(stack.at[static_cast<size_t>(f)], f > 2, modules) + "\n";
  }
  return text;
}

}  // namespace thinwire
