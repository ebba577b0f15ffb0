// Revisions to lines of JSON and back, and which of them fit a configuration.
#include "engine/run/train/plan_revisions.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/shallow_json.h"
#include "engine/run/config/resolved_json.h"

namespace thinwire {
namespace {

using nlohmann::json;

std::string word_of(CodingWay way) {
  if (way == CodingWay::kCoded) return "coded";
  if (way == CodingWay::kPlain) return "plain";
  const auto variant = static_cast<int64_t>(way) - static_cast<int64_t>(CodingWay::kPlain);
  return variant == 1 ? "light" : "light " + std::to_string(variant);
}

json line_of(const Revision& r) {
  json line = {{"after", r.after}};
  if (r.partition)
    line["partition"] = *r.partition;
  else
    line["coding"] = word_of(r.way);
  if (!r.why.empty()) line["why"] = r.why;
  return line;
}

// Throws std::string: what is wrong with the line.
Revision revision_of(const json& line, int variants) {
  if (!line.is_object()) throw std::string("is no object");
  for (const auto& [name, value] : line.items())
    if (name != "after" && name != "coding" && name != "partition" && name != "why")
      throw "has an unknown field \"" + name + "\" (known: after, coding, partition, why)";
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
  if (line.contains("partition")) {
    const json& costs = line["partition"];
    const auto good = [](const json& ms) { return ms.is_number() && ms.get<double>() >= 0.0; };
    if (!costs.is_array() || costs.size() != 3 || !std::all_of(costs.begin(), costs.end(), good))
      throw std::string("\"partition\" must be three times in milliseconds: of a layer, the embedding and the head");
    r.partition = costs.get<std::array<double, 3>>();
    return r;
  }
  std::string known;
  for (int64_t way = 0; way <= variants; ++way) {
    const std::string word = word_of(static_cast<CodingWay>(way));
    if (line["coding"] == word) {
      r.way = static_cast<CodingWay>(way);
      return r;
    }
    known += (known.empty() ? "" : ", ") + word;
  }
  throw "\"coding\" is " + line["coding"].dump() + "; these rules have: " + known;
}

}  // namespace

void PlanRevisions::add(Revision revision) {
  TW_CHECK(list_.empty() || list_.back().after <= revision.after, "revisions go backwards");
  list_.push_back(std::move(revision));
}

CodingWay PlanRevisions::way_at(int64_t update) const {
  CodingWay way = CodingWay::kCoded;
  for (const Revision& r : list_)
    if (!r.partition && r.after < update) way = r.way;
  return way;
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
  for (const Revision& r : list_)
    if (r.after == update - 1) list.push_back(line_of(r));
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
  constexpr int kAny = 1 << 20;
  const json stored = parse_shallow(now);
  if (!stored.is_array()) throw_bad_data("the checkpoint's revision/list is no list");
  try {
    for (const json& line : stored) list_.push_back(revision_of(line, kAny));
  } catch (const std::string& what) {
    throw_bad_data("an entry of the checkpoint's revision/list " + what);
  }
}

PlanRevisions PlanRevisions::replayed(const std::string& path, const std::string& text, const ResolvedConfig& config,
                                      int variants) {
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
      for (const char* part : {"layout", "rules"})
        if (!there.is_object() || there.value(part, json()) != here.at(part))
          refuse(std::string("belongs to a run with another \"") + part +
                 "\": " + (there.is_object() ? there.value(part, json()).dump() : there.dump()) + ", here " +
                 here.at(part).dump() + "; replay it with the configuration that it was written under");
      continue;
    }
    try {
      Revision r = revision_of(line, variants);
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
  json rules = resolved_json(config).value("compression", json::object());
  for (const char* key : {"adapt", "adapt_interval", "preset", "revisions"}) rules.erase(key);
  return json{{"layout", {{"pipeline", l.pipeline}, {"tensor", l.tensor}, {"data", l.data}, {"context", l.context}}},
              {"rules", std::move(rules)}}
      .dump();
}

PlanRevisions read_revisions(const ResolvedConfig& config, int variants) {
  const std::string& path = config.run.compression.revisions;
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& e) {
    throw_bad_config(std::string("compression.revisions: ") + e.what());
  }
  return PlanRevisions::replayed(path, text, config, variants);
}

}  // namespace thinwire
