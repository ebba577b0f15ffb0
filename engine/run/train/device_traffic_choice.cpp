// NCCL where every rank has a GPU of its own, and the host's way elsewhere.
#include "engine/run/train/device_traffic_choice.h"

#include <algorithm>
#include <sstream>

#include "engine/base/core/log.h"

namespace thinwire {

std::string cannot_use_nccl(const std::vector<std::string>& hardware, Checksums checksums) {
  if (checksums == Checksums::kAll) return "messages carry checksums (checksum: true), and those of NCCL cannot";
  for (size_t r = 0; r < hardware.size(); ++r) {
    if (hardware[r].empty()) return "this program was built without NCCL";
    const auto first = static_cast<size_t>(std::find(hardware.begin(), hardware.end(), hardware[r]) - hardware.begin());
    if (first < r) return "ranks " + std::to_string(first) + " and " + std::to_string(r) + " share a GPU";
  }
  return "";
}

std::string sites_through_host(const CompressionConfig& compression) {
  std::string list;
  for (const auto& [site, rules] : compression.rules) {
    for (const SiteRule& rule : rules) {
      const auto made = make_site_compression(site, rule);
      if (made == nullptr || (made->on_device && !made->checks)) continue;
      const std::string codecs = rule.codec.codec + (rule.has_sum_codec ? ", " + rule.sum_codec.codec : "");
      const std::string one = std::string(name_of(site)) + " (" + codecs + (made->checks ? ", checksum" : "") + ")";
      if (list.find(one) == std::string::npos) list += (list.empty() ? "" : ", ") + one;
    }
  }
  return list;
}

std::unique_ptr<DeviceTraffic> choose_device_traffic(const RunConfig& config, Job& job, Device& device) {
  if (job.size() == 1 || device.kind() != DeviceKind::kCuda) return nullptr;
  std::string mine;
  job.agree([&] { mine = hardware_of(device); });
  const std::vector<std::string> all = job.control().collect(mine);
  const std::string why =
      job.control().made_by_first([&] { return cannot_use_nccl(all, config.layout.tuning.checksums); });
  if (!why.empty()) {
    if (job.first()) log_warning("ranks talk through host memory and MPI: " + why);
    return nullptr;
  }
  std::unique_ptr<DeviceTraffic> traffic;
  job.agree([&] {
    DeviceTraffic::Options options;
    options.deterministic = config.deterministic;
    options.small_bytes = config.layout.tuning.small_bytes;
    options.watch.seconds = config.layout.watchdog_seconds;
    options.watch.on_verdict = job.hang_hook();
    traffic = std::make_unique<DeviceTraffic>(device, open_nccl, options);
  });
  if (job.first()) {
    const std::string staged = sites_through_host(config.compression);
    log_info("ranks talk over " + traffic->description() +
             (staged.empty() ? "" : "; through host memory and MPI go the messages of " + staged));
  }
  job.mesh()->use_device(traffic.get());
  return traffic;
}

}  // namespace thinwire
