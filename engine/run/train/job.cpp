// Start-up of a job: who is there, what they agree on, which mesh they form.
#include "engine/run/train/job.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <thread>

#include "engine/base/core/cpus.h"
#include "engine/base/core/error.h"
#include "engine/base/core/log.h"
#include "engine/run/train/rank_layout.h"
#include "engine/run/train/replica.h"
#include "parallel/wire/binding.h"
#include "parallel/wire/transport_mpi.h"

namespace thinwire {
namespace {

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  return ranks;
}

// checksums: of the job's, once it is known; between nodes they need to know these.
Control make_control(Progress& progress, int size, WireCounters* counters, Checksums checksums = Checksums::kNone,
                     const std::vector<int>& nodes = {}) {
  CommTuning tuning;
  tuning.checksums = checksums;
  return Control(Channel(std::make_unique<Communicator>(
      progress, all_ranks(size), static_cast<int>(GroupKind::kWorld), Site::kControl, counters,
      checksums == Checksums::kBetweenNodes ? nodes : std::vector<int>(), tuning)));
}

}  // namespace

Job::Job(Keeper* keeper) : keeper_(keeper), world_(open_world(keeper)), transport_(world_.transport.get()) {
  nodes_ = world_.nodes;
  local_rank_ = world_.local_rank, local_size_ = world_.local_size;
  if (!world_.notice.empty())
    log_warning("warning: " + world_.hosts[static_cast<size_t>(rank())] + ": " + world_.notice);
  if (size() == 1) return;
  cpus_ = bind_to_cores(*transport_, world_.nodes, keeper_).cpus;
  ProgressOptions options;
  // Until the configuration says how long to wait.
  if (keeper_ != nullptr) options.watchdog_seconds = keeper_->start_seconds();
  options.hosts = world_.hosts, options.keeper = keeper_, options.starting = true;
  progress_ = std::make_unique<Progress>(*transport_, options);
  control_ = make_control(*progress_, size(), nullptr);
}

Job::Job(Transport& transport) : transport_(&transport) {
  nodes_.assign(static_cast<size_t>(size()), 0);
  local_rank_ = rank(), local_size_ = size();
  if (size() == 1) return;
  cpus_ = usable_cpus() / size();
  progress_ = std::make_unique<Progress>(*transport_);
  control_ = make_control(*progress_, size(), nullptr);
}

Job::~Job() {
  control_ = Control();
  mesh_.reset();
  progress_.reset();
}

void Job::form_mesh(const RunConfig& config, const std::string& fingerprint) {
  if (size() == 1) return;
  const MeshShape shape = mesh_shape(config);
  agree([&] {
    if (shape.ranks() != size()) {
      throw_bad_config("layout: pipeline " + std::to_string(shape.pipeline) + " x data " + std::to_string(shape.data) +
                       " x tensor " + std::to_string(shape.tensor) + " ranks, but " + std::to_string(size()) +
                       " were started; start that many, or change pipe_parallel_size, model_parallel_size or the batch "
                       "keys");
    }
  });
  const std::string first = control_.share(fingerprint);
  agree([&] {
    if (first != fingerprint)
      throw_bad_config("this rank resolves to another configuration, or is another build, than rank 0: " + fingerprint +
                       " here, " + first + " there; start the same program with the same files on every node");
  });
  if (config.layout.ranks_per_node > 0) nodes_ = pretend_nodes(size(), static_cast<int>(config.layout.ranks_per_node));
  if (config.layout.watchdog_seconds > 0.0) open_watch_net();
  control_ = Control();
  mesh_.reset();
  progress_.reset();
  ProgressOptions options;
  options.watchdog_seconds = config.layout.watchdog_seconds;
  options.report_directory = config.run_dir;
  if (cpus_ == 0) options.spin_us = 0;  // leave the core to the others
  options.hosts = world_.hosts;
  options.on_hang = on_hang_;
  options.watch_net = watch_net_.get(), options.keeper = keeper_;
  progress_ = std::make_unique<Progress>(*transport_, options);
  mesh_ = std::make_unique<Mesh>(*progress_, shape, nodes_, config.layout.tuning);
  control_ = make_control(*progress_, size(), &mesh_->counters(Site::kControl), config.layout.tuning.checksums, nodes_);
}

void Job::open_watch_net() {
  if (watch_net_ != nullptr) return;
  auto net = std::make_unique<WatchNet>();
  std::string all = first() ? WatchNet::new_secret() + "\n" : "";
  for (const std::string& address : control_.collect(net->address())) all += address + "\n";
  std::istringstream lines(control_.share(all));
  std::string secret;
  std::getline(lines, secret);
  std::vector<std::string> addresses(static_cast<size_t>(size()));
  for (std::string& address : addresses) std::getline(lines, address);
  net->join(rank(), std::move(addresses), secret);
  watch_net_ = std::move(net);
}

int Job::ranks_per_node() const {
  const auto each = static_cast<int>(std::count(nodes_.begin(), nodes_.end(), nodes_.front()));
  return size() % each == 0 && nodes_ == pretend_nodes(size(), each) ? each : 0;
}

int Job::machines() const {
  return world_.nodes.empty() ? 1 : *std::max_element(world_.nodes.begin(), world_.nodes.end()) + 1;
}

int Job::sharers(const std::string& what) {
  std::string all;
  for (const std::string& one : control_.collect(what)) all += one + "\n";
  std::istringstream lines(control_.share(all));
  int count = 0;
  for (std::string line; std::getline(lines, line);)
    if (line == what) ++count;
  return what.empty() ? 1 : count;
}

void Job::share_cores(RunConfig& config) const {
  if (config.threads_per_rank > 0 || local_size_ == 1) return;
  config.threads_per_rank = std::min(resolve_threads(config), std::max(1, cpus_));
}

// A launcher that sees one rank end with a code kills the others, and may then report their end instead of the code: so
// rank 0 says it for all, when all are ready.
void Job::leave_together(ExitCode code) {
  if (size() == 1) return;
  std::fflush(nullptr);
  control_.barrier();
  if (!first()) std::this_thread::sleep_for(std::chrono::seconds(20));  // until the launcher ends us
  std::this_thread::sleep_for(kLastLines);
  transport_->abort(static_cast<int>(code));
}

void Job::end_all(ExitCode code, const std::string& message) {
  if (size() == 1) return;
  std::fprintf(stderr, "error: rank %d: %s\n", rank(), message.c_str());
  std::fflush(nullptr);
  std::this_thread::sleep_for(kLastLines);
  transport_->abort(static_cast<int>(code));
}

}  // namespace thinwire
