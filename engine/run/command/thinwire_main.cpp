// The program `thinwire`: becomes the program or script that its first word names, wherever the tree was installed.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/core/program.h"
#include "engine/base/core/shipped.h"
#include "engine/base/core/text.h"
#include "engine/base/core/version.h"
#include "engine/run/command/commands.h"

namespace {

using namespace thinwire;

const Command& known(const std::string& name) {
  if (const Command* command = find_command(name)) return *command;
  const auto all = commands();
  const auto nearest = std::min_element(all.begin(), all.end(), [&](const Command& a, const Command& b) {
    return edit_distance(a.name, name) < edit_distance(b.name, name);
  });
  const bool near = edit_distance(nearest->name, name) <= static_cast<int>(name.size() + 1) / 2;
  throw_usage("thinwire: no command \"" + name + "\"" + (near ? std::string("; nearest: ") + nearest->name : "") +
              " (thinwire --help lists them)");
}

// words[0] is replaced, nullptr ends them. Comes back only by an Error.
[[noreturn]] void become(const Command& command, char** words) {
  std::string path = path_of(command);
  if (command.script == nullptr) {
    words[0] = path.data();
    execv(path.c_str(), words);  // without a fork: a rank of mpirun stays the process that mpirun started
  } else if (access(path.c_str(), R_OK) == 0) {
    std::vector<char*> with_python = {const_cast<char*>("python3"), path.data()};
    do with_python.push_back(*++words);
    while (*words != nullptr);
    execvp("python3", with_python.data());
    path = "python3 (3.9 or newer)";
  }
  throw Error(ExitCode::kIo, std::string("thinwire ") + command.name + ": " + path + ": " + std::strerror(errno));
}

int print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  finish_printing("thinwire");
  return 0;
}

int run(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "--help", second = argc > 2 ? argv[2] : "";
  const bool own = second.empty() || second == "thinwire" || is_built_in(second);
  if (name == "--help" || name == "-h" || (name == "help" && own)) return print(thinwire_help());
  if (name == "--version") return print(version_text("thinwire", "chosen by each program"));
  if (name == "completion") return print(bash_completion());
  if (name == "man") return print(own ? thinwire_man() : man_page(known(second)));
  if (name == "where") {
    if (share_folder().empty()) throw Error(ExitCode::kIo, "thinwire where: nothing ships with this program");
    return print(share_folder() + "\n");
  }
  if (name == "help") {
    char* words[] = {argv[0], const_cast<char*>("--help"), nullptr};
    become(known(second), words);
  }
  become(known(name), argv + 1);
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("thinwire", [&] { return run(argc, argv); });
}
