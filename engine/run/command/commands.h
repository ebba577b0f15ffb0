// The commands of `thinwire`, and what is written from them and from the programs' own tables: manual and completion.
#pragma once

#include <span>
#include <string>

namespace thinwire {

struct Command {
  const char* name;
  const char* about;
  const char* script = nullptr;  // a file under scripts/, for Python; without it a program of that name
};

// In the order of the help.
std::span<const Command> commands();
// nullptr where there is none of that name.
const Command* find_command(const std::string& name);
// Whether thinwire answers to this name itself: its own help and page say how.
bool is_own(const std::string& name);

// The program or script itself, whether it is there or not.
std::string path_of(const Command& command);

std::string thinwire_help();
// Pages in roff, of `thinwire` itself and of a command; asks the program for its options. Throws Error(kIo) where that
// fails.
std::string thinwire_man();
std::string man_page(const Command& command);
// A script for bash, which completes commands, options, configuration keys and their values.
std::string bash_completion();

}  // namespace thinwire
