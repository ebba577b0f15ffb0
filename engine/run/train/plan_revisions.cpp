// Revisions to lines of JSON and back, and which of them fit a configuration.
#include "engine/run/train/plan_revisions.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/shallow_json.h"
#include "engine/run/config/check_value.h"
#include "engine/run/config/resolved_json.h"

namespace thinwire {
namespace {

using nlohmann::json;

constexpr CodingWay kAllWays[] = {CodingWay::kCoded, CodingWay::kLight, CodingWay::kBf16, CodingWay::kPlain};

json line_of(const Revision& r) {
  json line = {{"after", r.after}};
  if (r.partition)
    line["partition"] = *r.partition;
  else
    line["coding"] = name_of(r.way);
  if (r.site) line["site"] = name_of(*r.site);
  if (!r.why.empty()) line["why"] = r.why;
  return line;
}

// Throws std::string: what is wrong with the line. ways: nullptr for any.
Revision revision_of(const json& line, const SiteWays* ways) {
  if (!line.is_object()) throw std::string("is no object");
  for (const auto& [name, value] : line.items())
    if (name != "after" && name != "site" && name != "coding" && name != "partition" && name != "why")
      throw "has an unknown field \"" + name + "\" (known: after, site, coding, partition, why)";
  Revision r;
  const json& after = line.value("after", json());
  if (!after.is_number_integer() || after.get<int64_t>() < 0)
    throw std::string("\"after\" must be the number of updates before it, 0 or more");
  r.after = after.get<int64_t>();
  if (line.contains("why")) {
    if (!line["why"].is_string()) throw std::string("\"why\" must be text");
    r.why = line["why"].get<std::string>();
  }
  if (line.contains("coding") == line.contains("partition"))
    throw std::string("must have one of \"coding\" and \"partition\"");
  if (line.contains("site")) {
    const auto known = std::find_if(kSiteNames.begin(), kSiteNames.end(),
                                    [&](std::string_view name) { return line["site"] == std::string(name); });
    if (known != kSiteNames.end()) r.site = static_cast<Site>(known - kSiteNames.begin());
    if (!r.site || line.contains("partition") || (ways != nullptr && ways->count(*r.site) == 0))
      throw "\"site\" is " + line["site"].dump() + ", and nothing is coded there";
  }
  if (line.contains("partition")) {
    const json& costs = line["partition"];
    const auto good = [](const json& ms) { return ms.is_number() && ms.get<double>() >= 0.0; };
    if (!costs.is_array() || costs.size() != 3 || !std::all_of(costs.begin(), costs.end(), good))
      throw std::string("\"partition\" must be three times in milliseconds: of a layer, the embedding and the head");
    r.partition = costs.get<std::array<double, 3>>();
    return r;
  }
  const auto has = [&](CodingWay way) {  // without a site: somebody
    if (ways == nullptr || (!r.site && (way == CodingWay::kCoded || way == CodingWay::kPlain))) return true;
    return std::any_of(ways->begin(), ways->end(), [&](const auto& site) {
      return (!r.site || site.first == *r.site) &&
             std::find(site.second.begin(), site.second.end(), way) != site.second.end();
    });
  };
  std::string known;
  for (const CodingWay way : kAllWays) {
    if (!has(way)) continue;
    if (line["coding"] == name_of(way)) {
      r.way = way;
      return r;
    }
    known += (known.empty() ? "" : ", ") + std::string(name_of(way));
  }
  throw "\"coding\" is " + line["coding"].dump() + "; these rules have: " + known;
}

}  // namespace

const char* name_of(CodingWay way) {
  constexpr const char* kNames[] = {"coded", "plain", "light", "bf16"};
  return kNames[static_cast<size_t>(way)];
}

void PlanRevisions::add(Revision revision) {
  TW_CHECK(list_.empty() || list_.back().after <= revision.after, "revisions go backwards");
  list_.push_back(std::move(revision));
}

CodingWays PlanRevisions::ways_at(int64_t update) const {
  CodingWays ways{};
  for (const Revision& r : list_) {
    if (r.partition || r.after >= update) continue;
    if (r.site)
      ways[static_cast<size_t>(*r.site)] = r.way;
    else
      ways.fill(r.way);
  }
  return ways;
}

std::optional<std::array<double, 3>> PlanRevisions::partition() const {
  std::optional<std::array<double, 3>> found;
  for (const Revision& r : list_)
    if (r.partition) found = r.partition;
  return found;
}

std::string PlanRevisions::text(int64_t updates) const {
  std::string lines = "{\"run\":" + run_ + "}\n";
  for (const Revision& r : list_)
    if (r.after <= updates) lines += line_of(r).dump() + "\n";
  return lines;
}

std::string PlanRevisions::begun_with(int64_t update) const {
  json list = json::array();
  const auto is_before = [](const Revision& r, int64_t after) { return r.after < after; };
  auto r = std::lower_bound(list_.begin(), list_.end(), update - 1, is_before);
  for (; r != list_.end() && r->after == update - 1; ++r) list.push_back(line_of(*r));
  return list.empty() ? "" : list.dump();
}

void PlanRevisions::visit(StateVisitor& visitor) {
  if (replays_ || !kept_) return;
  json list = json::array();
  for (const Revision& r : list_) list.push_back(line_of(r));
  const std::string before = list.dump();
  std::string now = before;
  visitor.text("revision/list", now);
  if (now == before) return;
  list_.clear();
  const json stored = parse_shallow(now);
  if (!stored.is_array()) throw_bad_data("the checkpoint's revision/list is no list");
  try {
    for (const json& line : stored) list_.push_back(revision_of(line, nullptr));
  } catch (const std::string& what) {
    throw_bad_data("an entry of the checkpoint's revision/list " + what);
  }
}

PlanRevisions PlanRevisions::replayed(const std::string& path, const std::string& text, const ResolvedConfig& config,
                                      const SiteWays& ways) {
  PlanRevisions revisions(revisions_run(config));
  revisions.replays_ = true;
  std::istringstream lines(text);
  int number = 0;
  const auto refuse = [&](const std::string& what) {
    throw_bad_config(path + ":" + std::to_string(number) + ": " + what);
  };
  for (std::string each; std::getline(lines, each);) {
    ++number;
    const json line = parse_shallow(each);
    if (line.is_discarded()) refuse("is no line of JSON");
    if (number == 1) {
      if (!line.is_object() || !line.contains("run"))
        refuse(
            "does not say which run it belongs to: compression.revisions is a revisions.jsonl that a run has written");
      const json &there = line["run"], here = json::parse(revisions.run_);
      for (const char* part : {"layout", "rules"}) {
        const json said = there.is_object() ? there.value(part, json()) : there;
        const json difference = json::diff(said, here.at(part));
        if (difference.empty()) continue;
        json::json_pointer where(difference.front()["path"].get<std::string>());
        if (!where.empty() && where.back() == "-") where.pop_back();  // behind a shorter list: both are shown
        const auto value = [&](const json& of) { return of.contains(where) ? shown(of.at(where)) : "not said"; };
        refuse(std::string("belongs to a run with another \"") + part + "\": " + where.to_string() + " is " +
               value(said) + ", here " + value(here.at(part)) +
               "; replay it with the configuration that it was written under");
      }
      continue;
    }
    try {
      Revision r = revision_of(line, &ways);
      if (!revisions.list_.empty() && r.after < revisions.list_.back().after)
        refuse("\"after\" is " + std::to_string(r.after) + ", less than in the line before");
      if (r.partition && (config.run.layout.partition != PartitionMethod::kTime || config.run.layout.costs_given))
        refuse("cuts stages by measured times; say pipe_partition_method time without pipe_partition_costs");
      if (r.partition && r.after > 0)
        refuse("stages were cut anew when the run went on elsewhere, after update " + std::to_string(r.after) +
               ": such a run cannot be replayed in one");
      revisions.list_.push_back(std::move(r));
    } catch (const std::string& what) {
      refuse(what);
    }
  }
  number = std::max(number, 1);
  if (text.empty()) refuse("is empty");
  const LayoutConfig& l = config.run.layout;
  if (l.partition == PartitionMethod::kTime && !l.costs_given && l.pipeline > 1 && !revisions.partition())
    refuse("has no line with \"partition\", which pipe_partition_method time needs");
  return revisions;
}

std::string revisions_run(const ResolvedConfig& config) {
  const LayoutConfig& l = config.run.layout;
  return json{{"layout", {{"pipeline", l.pipeline}, {"tensor", l.tensor}, {"data", l.data}, {"context", l.context}}},
              {"rules", coding_rules(resolved_json(config))}}
      .dump();
}

json coding_rules(const json& config) {
  json rules = config.value("compression", json::object());
  for (const char* key : {"adapt", "adapt_interval", "preset", "revisions"}) rules.erase(key);
  return rules;
}

std::string read_revisions(const std::string& path) {
  try {
    return read_file(path);
  } catch (const Error& e) {
    throw_bad_config(std::string("compression.revisions: ") + e.what());
  }
}

}  // namespace thinwire
