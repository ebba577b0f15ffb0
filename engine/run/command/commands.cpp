// The table of commands; the manual and the completion of bash come from it and from what each program says of itself.
#include "engine/run/command/commands.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <sstream>
#include <vector>

#include "engine/base/core/command_docs.h"
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/shipped.h"
#include "engine/base/core/text.h"
#include "engine/base/core/version.h"

namespace thinwire {
namespace {

constexpr Command kCommands[] = {
    {"train", "trains a model, or prices a configuration (--dry-run)"},
    {"tokenize", "turns text into token files for training"},
    {"generate", "continues a prompt with a trained model"},
    {"checkpoint", "verifies, shows, exports and imports checkpoints"},
    {"report", "makes an HTML page of one or more runs"},
    {"plan", "predicts a step on a cluster, or searches the fastest layout"},
    {"sweep", "runs many configurations and reads them as one table", "sweep"},
    {"lab", "emulates a cluster on this machine (needs root)", "lab"},
    {"bench", "proves and times ops, codecs, collectives and whole steps"},
    {"calibrate", "measures this machine for plan", "calibrate"},
    {"reference_check", "compares our numbers with another framework's dump"},
    {"check_configs", "compares a folder of GPT-NeoX files with NeoX's arithmetic", "check_configs"},
    {"trace_picture", "draws the traces of a run as a picture", "trace_picture.py"},
};
// Those that thinwire runs itself.
constexpr Command kBuiltIn[] = {
    {"help", "prints the help of a command"},
    {"where", "prints the folder of the shipped configurations and scripts"},
    {"completion", "prints the completion of bash"},
    {"man", "prints a page of the manual, for man -l -"},
};

constexpr const char* kAbout =
    "Trains GPT-style transformers over many machines, and compresses what goes between them.";
constexpr const char* kUse =
    "  thinwire COMMAND --help        what a command takes\n"
    "  mpirun -n 4 thinwire train --config gpt2_tiny.json compression=thinwire\n";
constexpr const char* kFiles =
    "Configurations, presets, clusters and plans that are not in the current folder are those that ship under this "
    "name; a note says which file is read. `thinwire where` prints their folder; batch scripts for Slurm, LSF, PBS and "
    "Flux are in its scripts/ and find the rest by the variable THINWIRE_SHARE.";

std::string quoted(const std::string& path) {
  if (path.find('\'') != std::string::npos)
    throw Error(ExitCode::kIo, "thinwire: " + path + ": a ' in this path cannot be passed to a shell");
  return "'" + path + "'";
}

std::string output_of(const Command& command, const std::string& word) {
  const std::string path = path_of(command);
  const std::string line = (command.script == nullptr ? "" : "python3 ") + quoted(path) + " " + word;
  std::string text;
  FILE* pipe = popen(line.c_str(), "r");
  char part[4096];
  while (pipe != nullptr && std::fgets(part, sizeof part, pipe) != nullptr) text += part;
  if (pipe == nullptr || pclose(pipe) != 0 || text.empty()) throw Error(ExitCode::kIo, "thinwire: " + line + " failed");
  return text;
}

std::string title(std::string name, const std::string& about) {
  const std::string shown = name;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  return ".TH " + name + " 1 " TW_BUILD_DATE " \"thinwire " + version_string() + "\" \"Thinwire\"\n.ad l\n.SH NAME\n" +
         shown + " \\- " + roff(about);
}

std::string see_also(const std::string& but) {
  std::string out = ".SH SEE ALSO\n", line;
  for (const Command& c : kCommands)
    if (c.name != but) line += std::string(line.empty() ? "" : ",\n") + ".BR thinwire-" + c.name + " (1)";
  if (!but.empty()) out += ".BR thinwire (1),\n";
  return out + line + "\n";
}

// bash_completion's tables are filled into it.
constexpr const char* kBash = R"BASH(
_thinwire() {
  local word words=() place=thinwire previous= cur key
  # Bash cuts words at = (COMP_WORDBREAKS); key=value is one here.
  for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
    if [[ ${#words[@]} -gt 0 && ( $word == = || ${words[-1]} == *= ) ]]; then words[-1]+=$word; else words+=("$word"); fi
  done
  [[ ${#words[@]} -gt 0 ]] || words=("")
  cur=${words[-1]}
  unset 'words[-1]'
  [[ ${#words[@]} -eq 0 ]] || previous=${words[-1]}
  for word in "${words[@]}"; do
    [[ $word == -* || -z ${_thinwire_words["$place $word"]+set} ]] || place+=" $word"
  done
  local here=" ${_thinwire_words["$place"]} "
  COMPREPLY=()
  if [[ $previous == --config || $previous == --cluster ]]; then
    mapfile -t COMPREPLY < <(compgen -W "${_thinwire_words["$previous"]}" -- "$cur"; compgen -f -- "$cur")
  elif [[ $previous == -* && -n ${_thinwire_words["$place $previous"]-} ]]; then
    mapfile -t COMPREPLY < <(compgen -W "${_thinwire_words["$place $previous"]}" -- "$cur")
  elif [[ $here == *" = "* && $cur == *=* ]]; then
    key=${cur%%=*}
    mapfile -t COMPREPLY < <(compgen -W "${_thinwire_words["=${key//-/_}"]-}" -- "${cur#*=}")
    [[ $COMP_WORDBREAKS == *=* ]] || COMPREPLY=("${COMPREPLY[@]/#/$key=}")
  elif [[ $here == *" = "* && -n $cur && $cur != -* ]]; then
    mapfile -t COMPREPLY < <(compgen -S = -W "$_thinwire_keys" -- "$cur")
    compopt -o nospace 2>/dev/null
  else
    mapfile -t COMPREPLY < <(compgen -W "${here// = / }" -- "$cur")
  fi
}
complete -o bashdefault -o default -F _thinwire thinwire
)BASH";

std::string files_of(const std::string& folder) {
  std::vector<std::string> names = list_directory(share_folder() + folder);
  std::sort(names.begin(), names.end());
  std::string out;
  for (const std::string& name : names)
    if (name.ends_with(".json")) out += (out.empty() ? "" : " ") + name;
  return out;
}

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

const Command* find_command(const std::string& name) {
  const auto found =
      std::find_if(std::begin(kCommands), std::end(kCommands), [&](const Command& c) { return name == c.name; });
  return found == std::end(kCommands) ? nullptr : found;
}

bool is_built_in(const std::string& name) {
  return std::any_of(std::begin(kBuiltIn), std::end(kBuiltIn), [&](const Command& c) { return name == c.name; });
}

std::string path_of(const Command& command) {
  if (command.script != nullptr) return share_folder() + "/scripts/" + command.script;
  return programs_folder() + "/" + command.name;
}

std::string thinwire_help() {
  std::string out = filled(kAbout, 0, 80) + "\n" + kUse + "\nCommands:\n";
  for (const Command& c : kCommands) out += printed("  %-16s %s\n", c.name, c.about);
  for (const Command& c : kBuiltIn) out += printed("  %-16s %s\n", c.name, c.about);
  return out;
}

std::string thinwire_man() {
  std::string out = title("thinwire", "trains transformers over many machines with compressed communication") +
                    ".SH SYNOPSIS\n.B thinwire\n\\fICOMMAND\\fR [...]\n.br\n.B thinwire\n\\-\\-help | \\-\\-version\n" +
                    ".SH DESCRIPTION\n" + roff(kAbout) + ".SH COMMANDS\n";
  for (const Command& c : kCommands) out += roff_entry(c.name, c.about);
  for (const Command& c : kBuiltIn) out += roff_entry(c.name, c.about);
  return out + ".SH FILES\n" + roff(kFiles) + ".SH EXIT STATUS\n" +
         roff("That of the command; 64 for a command that there is not, 74 where a program or script is missing.") +
         ".SH EXAMPLES\n.nf\n" + roff_lines(kUse) + ".fi\n" + see_also("");
}

std::string man_page(const Command& command) {
  std::string body;
  if (command.script == nullptr)
    body = output_of(command, "--help-man");
  else
    body = ".SH DESCRIPTION\n.nf\n" + roff_lines(output_of(command, "--help")) + ".fi\n";
  return title(std::string("thinwire-") + command.name, command.about) + body + see_also(command.name);
}

std::string bash_completion() {
  std::string names, keys, table;
  const auto row = [&table](const std::string& place, const std::string& words) {
    table += "[" + quoted(place) + "]=" + quoted(words) + "\n";
  };
  for (const Command& c : kCommands) {
    if (access(path_of(c).c_str(), R_OK) != 0) continue;  // this build leaves it out
    names += std::string(c.name) + " ";
    std::istringstream lines(c.script == nullptr ? output_of(c, "--help-words") : std::string(c.name) + "\t--help\n");
    for (std::string line; std::getline(lines, line);) {
      const size_t tab = std::min(line.find('\t'), line.size() - 1);
      const std::string place = line.substr(0, tab), words = line.substr(tab + 1);
      if (place.front() != '=') {
        row("thinwire " + place, words);
      } else {
        keys += place.substr(1) + " ";
        if (!words.empty()) row(place, words);
      }
    }
  }
  row("thinwire help", names);
  row("thinwire man", names);
  row("--config", files_of("/configs"));
  row("--cluster", files_of("/configs/clusters"));
  for (const Command& c : kBuiltIn) names += std::string(c.name) + " ";
  row("thinwire", names + "--help --version");
  return "# Completion of thinwire for bash, as `thinwire completion` prints it.\ndeclare -gA _thinwire_words=(\n" +
         table + ")\n_thinwire_keys=" + quoted(keys) + "\n" + kBash;
}

}  // namespace thinwire
