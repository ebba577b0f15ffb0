// Votes, sums and texts over all ranks of the job.
#include "parallel/sites/control.h"

#include "engine/base/core/error.h"

namespace thinwire {

Ticket Control::sum(View values, Stream& stream) {
  return world_.all_reduce(values, ReduceKind::kSum, stream);
}

int64_t Control::agree_max(int64_t value) {
  HostStream host;
  if (!world_) return value;
  world_.all_reduce(View(&value, DType::i64, {1}), ReduceKind::kMax, host).wait_on_host();
  return value;
}

// Each text goes to rank 0 behind its length. An exchange of all with all would, where MPI connects on first use, open
// connections between any two ranks.
std::vector<std::string> Control::collect(const std::string& text) {
  HostStream host;
  if (!world_) return {text};
  int64_t length = static_cast<int64_t>(text.size());
  if (rank() != 0) {
    std::string mine = text;
    world_.send(View(&length, DType::i64, {1}), 0, host).wait_on_host();
    if (length > 0) world_.send(View(mine.data(), DType::u8, {length}), 0, host).wait_on_host();
    return {};
  }
  std::vector<std::string> texts = {text};
  for (int r = 1; r < size(); ++r) {
    world_.receive(View(&length, DType::i64, {1}), r, host).wait_on_host();
    std::string from(static_cast<size_t>(length), '\0');
    if (length > 0) world_.receive(View(from.data(), DType::u8, {length}), r, host).wait_on_host();
    texts.push_back(std::move(from));
  }
  return texts;
}

std::string Control::share(const std::string& text, int root) {
  HostStream host;
  if (!world_) return text;
  int64_t length = static_cast<int64_t>(text.size());
  world_.broadcast(View(&length, DType::i64, {1}), root, host).wait_on_host();
  std::string shared = rank() == root ? text : std::string(static_cast<size_t>(length), '\0');
  if (length > 0) world_.broadcast(View(shared.data(), DType::u8, {length}), root, host).wait_on_host();
  return shared;
}

void Control::barrier() {
  if (world_) world_.barrier().wait_on_host();
}

void Control::agree_on_error(int code, const std::string& message) {
  if (!world_) {
    if (code != 0) throw Error(static_cast<ExitCode>(code), message);
    return;
  }
  const int64_t first = -agree_max(code == 0 ? -int64_t{size()} : -int64_t{rank()});
  if (first == size()) return;
  const std::string from = share(std::to_string(code) + " " + message, static_cast<int>(first));
  const size_t space = from.find(' ');
  throw AgreedError(static_cast<ExitCode>(std::stoi(from.substr(0, space))),
                    (first == 0 ? "" : "rank " + std::to_string(first) + ": ") + from.substr(space + 1));
}

void Control::agree(const std::function<void()>& body) {
  int code = 0;
  std::string message;
  try {
    body();
  } catch (const Error& e) {
    code = static_cast<int>(e.code()), message = e.what();
  }
  agree_on_error(code, message);
}

std::string Control::made_by_first(const std::function<std::string()>& make) {
  std::string made;
  agree([&] {
    if (rank() == 0) made = make();
  });
  return share(made);
}

}  // namespace thinwire
