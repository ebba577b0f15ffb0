// Looks at events and communicators, and ends a job in which they stand still.
#include "parallel/device/device_watch.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <sstream>
#include <utility>

#include "engine/base/core/error.h"
#include "engine/base/core/log.h"

namespace thinwire {
namespace {

constexpr size_t kKept = 8;

double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

void describe(std::ostream& out, const OperationNote& note) {
  out << note.verb << " " << note.sequence << " of " << note.label.name << " (group " << note.group << ", "
      << note.bytes << " bytes";
  if (note.peer >= 0) out << ", rank " << note.peer;
  out << ")";
}

}  // namespace

DeviceWatch::DeviceWatch(Options options, std::function<std::string()> fault)
    : options_(std::move(options)), fault_(std::move(fault)) {
  if (!options_.print) {
    options_.print = [](const std::string& message) {
      std::fprintf(stderr, "error: %s\n", message.c_str());
      std::fflush(stderr);
      log_write_file(LogLevel::kError, message);
    };
  }
  if (!options_.end) options_.end = [](int code) { ::_exit(code); };
  thread_ = std::thread([this] { run(); });
}

DeviceWatch::~DeviceWatch() {
  {
    const std::lock_guard lock(mutex_);
    leaves_ = true;
  }
  wake_.notify_all();
  thread_.join();
  drop_passed();
  if (std::uncaught_exceptions() > 0) return;
  for (Entry& entry : under_way_) {  // of a broken device, whose events say so at once
    try {
      entry.event.wait_on_host();
    } catch (const std::exception&) {  // the owner has seen it
    }
  }
}

void DeviceWatch::add(const OperationNote& note, Ticket event) {
  const std::lock_guard lock(mutex_);
  under_way_.push_back({note, Clock::now(), std::move(event)});
}

// Called under the lock, as is report().
void DeviceWatch::drop_passed() {
  while (!under_way_.empty() && !under_way_.front().event.open()) {
    passed_.push_back(under_way_.front().note);
    if (passed_.size() > kKept) passed_.pop_front();
    under_way_.pop_front();
    moved_ = Clock::now();
  }
}

std::string DeviceWatch::report(const std::string& reason) const {
  std::ostringstream out;
  out << "communication on the device: " << reason;
  if (!under_way_.empty()) {
    out << "\nUnder way, the oldest first:";
    for (size_t i = 0; i < std::min(kKept, under_way_.size()); ++i) {
      describe(out << "\n  ", under_way_[i].note);
      out << ", issued " << static_cast<int64_t>(seconds_since(under_way_[i].issued) * 1e3) << " ms ago";
    }
    if (under_way_.size() > kKept) out << "\n  and " << under_way_.size() - kKept << " behind these";
  }
  if (!passed_.empty()) out << "\nOver, the latest last:";
  for (const OperationNote& note : passed_) describe(out << "\n  ", note);
  return out.str();
}

void DeviceWatch::run() {
  const double nap = options_.seconds > 0.0 ? std::min(0.1, options_.seconds / 8.0) : 0.1;
  std::unique_lock lock(mutex_);
  Clock::time_point seen = Clock::now();
  while (!wake_.wait_for(lock, std::chrono::duration<double>(nap), [this] { return leaves_; })) {
    drop_passed();
    // While the job was suspended nothing could move.
    if (const double away = seconds_since(seen); away > nap + 1.0)
      moved_ = std::max(moved_,
                        Clock::now() - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(nap)));
    seen = Clock::now();
    lock.unlock();
    const std::string fault = fault_();
    lock.lock();
    std::string message;
    if (!fault.empty()) {
      message = report(fault);
    } else if (options_.seconds > 0.0 && !under_way_.empty()) {
      const double silent = seconds_since(std::max(moved_, under_way_.front().issued));
      std::ostringstream reason;
      reason << "nothing has moved for " << silent << " s (watchdog_seconds): a peer is stopped, or gone";
      if (silent > options_.seconds) message = report(reason.str());
    }
    if (message.empty()) continue;
    lock.unlock();
    return end_job(message);
  }
}

void DeviceWatch::end_job(const std::string& message) {
  options_.print(message);
  if (options_.on_verdict) options_.on_verdict(message);
  options_.end(static_cast<int>(ExitCode::kHungPeer));
}

}  // namespace thinwire
