// The commands of `thinwire`; its help, manual pages and shell completion, written from them and the programs' options.
#pragma once

#include <span>
#include <string>

namespace thinwire {

struct Command {
  const char* name;
  const char* about;
  const char* script = nullptr;  // a Python file under scripts/; nullptr: the command is a program of its name
};

// In the order of the help.
std::span<const Command> commands();
// nullptr: there is none of that name.
const Command* find_command(const std::string& name);
// Whether thinwire runs this command itself (help, man ...); thinwire's own help and manual page describe it.
bool is_built_in(const std::string& name);

// Where the program or script of a command should be; it may not be there.
std::string path_of(const Command& command);

std::string thinwire_help();
// Manual pages (roff) of `thinwire` and of a command, whose program is run to ask for its options. Throws Error(kIo)
// where that fails.
std::string thinwire_man();
std::string man_page(const Command& command);
// A bash script that completes commands, options, configuration keys and their values.
std::string bash_completion();

}  // namespace thinwire
