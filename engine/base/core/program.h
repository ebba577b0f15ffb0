// What every program does around its work: parse its command line, and turn exceptions into exit codes and messages.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace thinwire {

// How an action failed, as an exit code and a message for other ranks or a log; code 0: it did not.
struct Failure {
  int code = 0;
  std::string message;
};
Failure failure_of(const std::function<void()>& action, const std::string& out_of_memory = "out of memory");

// Runs body(); an Error becomes "error: ..." on stderr and its exit code, anything else 70. Returns the exit code.
// memory_hint: follows "out of memory" in the message.
int run_program(const std::string& name, const std::function<int()>& body, const char* memory_hint = "");

// Call after the last output that matters: throws Error(kIo) where standard output could not be written.
void finish_printing(const std::string& name);

// Adds --version, which prints version_text(program, isa()).
void add_version(CLI::App& app, const std::string& program, const std::function<std::string()>& isa);

// What a program adds to its manual page, and to the words of its shell completion (command_docs.h).
struct MoreDocs {
  std::function<std::string()> man = {}, words = {};
};
// Parses the command line; returns an exit code if it asked only for help or the version. Throws Error(kUsage).
// `thinwire man` and `thinwire completion` call the program with --help-man or --help-words as its only argument.
std::optional<int> parse_command_line(CLI::App& app, const std::string& program, int argc, char** argv,
                                      const MoreDocs& more = {});

}  // namespace thinwire
