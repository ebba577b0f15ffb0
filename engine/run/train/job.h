// The job as one rank sees it: the ranks that were started together, how they agree, and - once the configuration is
// known - the mesh they form.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/core/text.h"
#include "engine/run/config/run_config.h"
#include "parallel/channel/mesh.h"
#include "parallel/sites/control.h"
#include "parallel/wire/keeper.h"
#include "parallel/wire/transport.h"
#include "parallel/wire/watch_net.h"

namespace thinwire {

class Job {
 public:
  // What the launcher started; without one, this process alone. The keeper watches the start, the end, and the
  // watchdog.
  explicit Job(Keeper* keeper = nullptr);
  // Ranks as threads, for tests.
  explicit Job(Transport& transport);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  bool first() const { return rank() == 0; }
  // UTC. Taken before the ranks first meet, so on no rank later than what rank 0 writes of the run.
  const std::string& began() const { return began_; }

  // Runs body on every rank; an Error on any of them becomes an AgreedError on all, with the message of the first.
  void agree(const std::function<void()>& body) { control_.agree(body); }
  Control& control() { return control_; }

  // Builds the mesh for a configuration, after agreeing that all ranks have the same one (`fingerprint`), and starts
  // the watchdog. May be called again with nothing under way.
  void form_mesh(const RunConfig& config, const std::string& fingerprint);
  Mesh* mesh() { return mesh_.get(); }  // nullptr for one rank
  const std::vector<int>& nodes() const { return nodes_; }
  // Consecutive ranks on each node; 0: they differ, or lie otherwise.
  int ranks_per_node() const;

  int machines() const;  // that the ranks are on, whatever the configuration pretends
  const std::vector<std::string>& hosts() const { return world_.hosts; }  // by rank; empty where ranks are threads

  // Ranks of this node, and which of them this is.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }

  // All ranks together: how many of them, this one too, say the same. What is empty is shared with nobody.
  int sharers(const std::string& what);

  // Threads of a rank, where the configuration leaves them open: the cores of the node divided by its ranks.
  void share_cores(RunConfig& config) const;

  // What to do, on the rank that speaks for all, before the watchdog ends a job in which nothing moves, and where there
  // is no keeper that does it. Before form_mesh.
  void on_hang(std::function<void(const std::string& message)> hook) { on_hang_ = std::move(hook); }
  const std::function<void(const std::string& message)>& hang_hook() const { return on_hang_; }
  // For the keeper, should the kernel kill this rank for it.
  void plans_memory(const std::string& planned) {
    if (keeper_ != nullptr) keeper_->plans(planned);
  }

  // All ranks call it with the same code that is not 0; does not return with several ranks.
  void leave_together(ExitCode code);
  // Ends all ranks with this code, after this rank's message. For one rank it returns, and the caller leaves by itself.
  void end_all(ExitCode code, const std::string& message);

 private:
  void open_watch_net();

  const std::string began_ = utc_text(std::time(nullptr));
  Keeper* keeper_ = nullptr;
  std::unique_ptr<WatchNet> watch_net_;
  World world_;
  Transport* transport_ = nullptr;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Mesh> mesh_;
  Control control_;
  std::vector<int> nodes_;
  std::function<void(const std::string&)> on_hang_;
  int local_rank_ = 0, local_size_ = 1;
  int cpus_ = 0;  // that this rank may count on; 0: it shares one with others
};

}  // namespace thinwire
