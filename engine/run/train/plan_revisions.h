// What timing has decided in a run, as data: written to revisions.jsonl, kept in checkpoints, and replayed from a file.
//
// revisions.jsonl: a first line {"run": {"layout": ..., "rules": ...}} says what it belongs to; every further line is a
// revision, {"after": N, "site": ..., "coding": "coded" | "light" | "bf16" | "plain", "why": ...} (from update N + 1 on
// the site's messages are coded so; without "site": those of all sites) or {"after": N, "partition": [layer_ms,
// embedding_ms, head_ms], "why": ...} (stages are cut by these costs).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/core/state_visitor.h"
#include "engine/run/config/load_config.h"
#include "parallel/channel/channel_compression.h"

namespace thinwire {

// "coded", "plain", "light", "bf16".
const char* name_of(CodingWay way);
// What the rules of a layout let sites be coded by: first as they say, last plain (compression_setup.h).
using SiteWays = std::map<Site, std::vector<CodingWay>>;

struct Revision {
  int64_t after = 0;         // updates applied before it
  std::optional<Site> site;  // nothing: all of them
  CodingWay way = CodingWay::kCoded;
  std::optional<std::array<double, 3>> partition;  // a revision of this instead of the way
  std::string why;
};

class PlanRevisions {
 public:
  // run: what the first line says (revisions_run).
  explicit PlanRevisions(std::string run = "{}") : run_(std::move(run)) {}
  // Of a file's text. Throws Error(kBadConfig) naming `path` and the line for text that is none, or that belongs to
  // another layout, other rules or a cut that this configuration lacks.
  static PlanRevisions replayed(const std::string& path, const std::string& text, const ResolvedConfig& config,
                                const SiteWays& ways);

  bool replays() const { return replays_; }
  // Timing decides something here: it is part of checkpoints.
  void keep() { kept_ = true; }
  bool empty() const { return list_.empty(); }
  void add(Revision revision);
  // In force in this update (1 is the first).
  CodingWays ways_at(int64_t update) const;
  std::optional<std::array<double, 3>> partition() const;
  // The file's text, with what is in force once `updates` are done.
  std::string text(int64_t updates) const;
  // The revisions that this update is the first one under, as a list in JSON; empty: none.
  std::string begun_with(int64_t update) const;

  // What a checkpoint keeps. A replay keeps what its file says.
  void visit(StateVisitor& visitor);

 private:
  std::string run_;
  std::vector<Revision> list_;  // ascending; the last of equals counts
  bool replays_ = false, kept_ = false;
};

// The layout and the rules of a run: what decisions belong to.
std::string revisions_run(const ResolvedConfig& config);
// The part of a resolved configuration that says how sites are coded, but for what may change in the middle of a run.
nlohmann::json coding_rules(const nlohmann::json& config);
// The text of the file that compression.revisions names. Throws Error(kBadConfig) where it cannot be read.
std::string read_revisions(const std::string& path);

}  // namespace thinwire
