// What every program does around its work: its command line, and exceptions that become exit codes or words for others.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace thinwire {

// How an action failed, for whoever passes it on to other ranks or to a log; code 0: it did not.
struct Failure {
  int code = 0;
  std::string message;
};
Failure failure_of(const std::function<void()>& action, const std::string& without_memory = "out of memory");

// Runs body(); an Error becomes "error: ..." on stderr and its exit code, anything else 70. Returns the exit code.
// memory_hint: what stands behind "out of memory".
int run_program(const std::string& name, const std::function<int()>& body, const char* memory_hint = "");

// Behind the last that a program prints for others to keep. Throws Error(kIo) where standard output was not written.
void finish_printing(const std::string& name);

// Adds --version, which prints version_text(program, isa()).
void add_version(CLI::App& app, const std::string& program, const std::function<std::string()>& isa);

// What a program adds to its page of the manual, and to the words that complete its command line (command_docs.h).
struct MoreDocs {
  std::function<std::string()> man = {}, words = {};
};
// Reads the command line; the exit code where help or the version was all that was asked for. Throws Error(kUsage).
// `thinwire man` and `thinwire completion` ask by the only words --help-man and --help-words.
std::optional<int> parse_command_line(CLI::App& app, const std::string& program, int argc, char** argv,
                                      const MoreDocs& more = {});

}  // namespace thinwire
