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

std::vector<std::string> Control::collect(const std::string& text) {
  HostStream host;
  if (!world_) return {text};
  std::vector<int64_t> sizes(static_cast<size_t>(size()), 0), bounds;
  sizes[static_cast<size_t>(rank())] = static_cast<int64_t>(text.size());
  for (int r = 0; r <= size(); ++r) bounds.push_back(r);
  View all_sizes(sizes.data(), DType::i64, {size()});
  world_.all_gather(all_sizes.element_range(rank(), 1), all_sizes, bounds, host).wait_on_host();
  std::string mine = text;
  std::vector<std::string> texts;
  if (rank() != 0) {
    if (!mine.empty())
      world_.send(View(mine.data(), DType::u8, {static_cast<int64_t>(mine.size())}), 0, host).wait_on_host();
    return texts;
  }
  texts.push_back(text);
  for (int r = 1; r < size(); ++r) {
    std::string from(static_cast<size_t>(sizes[static_cast<size_t>(r)]), '\0');
    if (!from.empty())
      world_.receive(View(from.data(), DType::u8, {static_cast<int64_t>(from.size())}), r, host).wait_on_host();
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

}  // namespace thinwire
