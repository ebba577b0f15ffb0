// Reads the sources in order, then resolves what they say together.
#include "engine/run/config/load_config.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/core/file.h"
#include "engine/base/core/shipped.h"
#include "engine/run/config/megatron_args.h"
#include "engine/run/config/resolver.h"

namespace thinwire {
namespace {

// No configuration of ours comes near this; it keeps a mistaken path (a data file) from being read whole.
constexpr size_t kMaxConfigBytes = 4 << 20;

// reader: has merged.
ResolvedConfig finish(SettingsReader& reader, const std::string& first_name, const ConfigOptions& options) {
  const std::string stem = std::filesystem::path(first_name).stem().string();
  ResolvedConfig resolved = resolve(reader, stem, options);
  if (!reader.problems().empty()) throw_problems(std::move(reader.problems()));
  for (const auto& [name, value] : resolved.values) {
    try {
      static_cast<void>(value.dump());
    } catch (const nlohmann::json::exception&) {  // bytes of a command line, which nothing has read as JSON
      throw_bad_config(name + ": its value is not UTF-8");
    }
  }
  resolved.resumed_at = [reader, stem, options](int64_t iters, int64_t samples) {
    SettingsReader again = reader;
    ConfigOptions there = options;
    there.done_iters = iters, there.done_samples = samples;
    ResolvedConfig other = resolve(again, stem, there);
    if (!again.problems().empty()) throw_problems(std::move(again.problems()));
    return other;
  };
  return resolved;
}

}  // namespace

std::vector<std::string> note_lines(const ResolvedConfig& config) {
  std::vector<std::pair<std::string, std::string>> groups;  // reason, keys
  for (const ConfigNote& n : config.notes) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == n.text; });
    if (same == groups.end())
      groups.emplace_back(n.text, n.key);
    else
      same->second += ", " + n.key;
  }
  std::vector<std::string> lines;
  for (const auto& [reason, keys] : groups) lines.push_back(keys + ": " + reason);
  return lines;
}

ResolvedConfig load_config(const std::vector<std::string>& names, const std::vector<std::string>& overrides,
                           const ConfigOptions& options) {
  SettingsReader reader;
  std::vector<ConfigNote> notes;
  const auto found = [&notes](const std::vector<std::string>& names) {
    std::vector<std::string> paths = names;
    for (std::string& path : paths) {
      const std::string other = shipped_file(path);
      if (other.empty()) continue;
      notes.push_back({path, shipped_note(other)});
      path = other;
    }
    return paths;
  };
  const std::vector<std::string> files = found(names), args_files = found(options.args_files);
  const auto read = [&reader](const std::string& from, const auto& how) {
    try {
      how();
    } catch (const Error& e) {
      reader.add_unreadable(from, e.what());
    }
  };
  std::vector<MegatronFlag> flags;
  const auto add_flags = [&flags](const std::string& from, const std::vector<std::string>& words) {
    for (const MegatronFlag& flag : megatron_flags(words)) flags.push_back({from + ": " + flag.spelled, flag.override});
  };
  for (const std::string& file : args_files)
    read(file, [&] { add_flags(file, shell_words(read_file(file, kMaxConfigBytes))); });
  const size_t of_files = flags.size();
  read("command line", [&] { add_flags("command line", options.megatron_words); });
  const bool megatron = !flags.empty() && files.empty();
  if (megatron) reader.add_text(kMegatronDefaults, megatron_defaults(flags));
  for (const std::string& file : files) read(file, [&] { reader.add_text(file, read_file(file, kMaxConfigBytes)); });
  const bool groups = !megatron || reads_query_groups(flags);
  const auto add_flag = [&](const MegatronFlag& flag) {
    if (flag.override.starts_with("iterations_to_skip="))
      notes.push_back({"iterations_to_skip",
                       "counted from 1, as in the log; most versions of Megatron-LM count from 0: their N is N + 1 "
                       "here"});
    if (!groups && flag.override.starts_with("num_query_groups="))
      notes.push_back({"num_query_groups", "has no effect without --group-query-attention, as in Megatron"});
    else if (!is_idle_warm_up(flag, flags))
      reader.add_override(flag.override, flag.spelled);
  };
  for (size_t i = 0; i < of_files; ++i) add_flag(flags[i]);
  for (const std::string& text : overrides) reader.add_override(text);
  for (size_t i = of_files; i < flags.size(); ++i) add_flag(flags[i]);
  reader.merge();
  // One file of flags serves runs that are saved apart: with --save it names none of them.
  const bool unnamed = args_files.empty() || reader.settings().contains("save");
  const std::string first = !files.empty() ? files.front() : unnamed ? "" : args_files.front();
  ResolvedConfig resolved = finish(reader, first, options);
  resolved.notes.insert(resolved.notes.begin(), notes.begin(), notes.end());
  return resolved;
}

ResolvedConfig load_config_text(const std::vector<ConfigSource>& sources, const std::vector<std::string>& overrides,
                                const ConfigOptions& options) {
  SettingsReader reader;
  for (const ConfigSource& source : sources) reader.add_text(source.name, source.text);
  for (const std::string& text : overrides) reader.add_override(text);
  reader.merge();
  return finish(reader, sources.empty() ? "" : sources.front().name, options);
}

}  // namespace thinwire
