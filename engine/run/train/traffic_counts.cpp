// Counters of a mesh: taken, put aside, put back.
#include "engine/run/train/traffic_counts.h"

#include <string>
#include <utility>
#include <vector>

#include "engine/base/core/error.h"

namespace thinwire {

void TrafficCounts::read_totals(const double* sums) {
  for (size_t site = 0; site < kSiteNames.size(); ++site) {
    logical_total[site] = sums[kSumLogical + site];
    wire_total[site] = sums[kSumWire + site];
  }
}

// Byte counts below 2^53 are exact in a double.
void take_counters(Replica& r, TrafficCounts& counts) {
  if (r.mesh() == nullptr) return;
  double bytes[2 * kSiteNames.size()], non_finite = 0.0;
  for (size_t site = 0; site < kSiteNames.size(); ++site) {
    SiteCounters& counters = r.mesh()->counters(static_cast<Site>(site));
    counts.sites[site] = counters;
    counters = {};
    non_finite += static_cast<double>(counts.sites[site].compression.non_finite);
    bytes[site] = static_cast<double>(counts.sites[site].logical_bytes);
    bytes[kSiteNames.size() + site] = static_cast<double>(counts.sites[site].wire_bytes);
  }
  r.write(r.buffers().sums.element_range(kSumLogical, kSumCount - kSumLogical), bytes, sizeof bytes);
  const View sum = r.buffers().sums.element_range(kSumNonFinite, 1);
  r.write(sum, &non_finite, sizeof non_finite);
  if (DeviceTraffic* const device = r.mesh()->device()) device->take_findings(sum, r.stream());
}

void take_control_time(Replica& r, TrafficCounts& counts) {
  if (r.mesh() == nullptr) return;
  SiteCounters& control = r.mesh()->counters(Site::kControl);
  SiteCounters& sum = counts.sites[static_cast<size_t>(Site::kControl)];
  sum.busy_ns += std::exchange(control.busy_ns, 0);
  sum.exposed_ns += std::exchange(control.exposed_ns, 0);
}

void add_findings(Replica& r, TrafficCounts& counts) {
  DeviceTraffic* const device = r.mesh() != nullptr ? r.mesh()->device() : nullptr;
  if (device == nullptr) return;
  const std::vector<DeviceTally> findings = device->findings();
  for (size_t site = 0; site < findings.size(); ++site) {
    const DeviceTally& found = findings[site];
    if ((found.flags & kDeviceBadPayload) != 0)
      throw_bad_data("a bad payload came at site " + std::string(kSiteNames[site]) +
                     "; the data was damaged on the way, or the ranks run different versions or rules");
    CompressionStats& stats = counts.sites[site].compression;
    stats.error_square += found.error_square;
    stats.signal_square += found.signal_square;
    stats.residual_square += found.residual_square;
    stats.non_finite += (found.flags & kDeviceNonFinite) != 0 ? 1 : 0;
  }
}

void run_beside_steps(Replica& r, const std::function<void()>& body) {
  Mesh* mesh = r.mesh();
  if (mesh == nullptr) return body();
  // Parameter all-gathers that the last step has left are its own: its clock, its counters.
  r.traffic().finish_param_sync();
  std::array<SiteCounters, kSiteNames.size()> kept;
  for (size_t site = 0; site < kept.size(); ++site)
    kept[site] = std::exchange(mesh->counters(static_cast<Site>(site)), SiteCounters{});
  ++mesh->clock().pass;
  mesh->clock().train = false;
  if (mesh->device() != nullptr) mesh->device()->put_findings_aside();
  body();
  r.traffic().forget_gathered();
  if (mesh->device() != nullptr) mesh->device()->put_findings_back();
  for (size_t site = 0; site < kept.size(); ++site) mesh->counters(static_cast<Site>(site)) = kept[site];
}

}  // namespace thinwire
