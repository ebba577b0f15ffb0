// How the ranks of a job that compute on GPUs talk to each other: over NCCL, or through host memory and MPI.
#pragma once

#include <memory>
#include <string>

#include "engine/run/train/job.h"
#include "parallel/device/device_traffic.h"

namespace thinwire {

// Why ranks on these pieces of hardware (hardware_of, by rank) cannot talk over NCCL; empty: they can.
std::string cannot_use_nccl(const std::vector<std::string>& hardware, Checksums checksums);

// Sites with a rule whose messages go through the host although ranks talk over NCCL, because no device codes them so;
// "dp.gradient (low_rank), pp.forward (entropy)", or empty.
std::string sites_through_host(const CompressionConfig& compression);

// All ranks together, with the mesh formed and before its channels are made: the mesh uses what is returned, which
// outlives the replica, and lives no longer than the device. nullptr: through the host; also for one rank, and for the
// CPU. The first rank's log says which way it is and why.
std::unique_ptr<DeviceTraffic> choose_device_traffic(const RunConfig& config, Job& job, Device& device);

}  // namespace thinwire
