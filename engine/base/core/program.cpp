// The one place where exceptions become exit codes, and where command lines are parsed.
#include "engine/base/core/program.h"

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <new>

#include "engine/base/core/command_docs.h"
#include "engine/base/core/error.h"
#include "engine/base/core/shipped.h"
#include "engine/base/core/version.h"

namespace thinwire {

Failure failure_of(const std::function<void()>& action, const std::string& out_of_memory) {
  const auto failed = [](ExitCode code, const std::string& message) {
    return Failure{static_cast<int>(code), message};
  };
  try {
    action();
    return {};
  } catch (const Error& e) {
    return failed(e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return failed(ExitCode::kIo, out_of_memory);
  } catch (const std::filesystem::filesystem_error& e) {
    return failed(ExitCode::kIo, e.what());
  } catch (const std::exception& e) {
    return failed(ExitCode::kInternal,
                  std::string("internal error: ") + e.what() + "; this is a fault of thinwire, please report it");
  }
}

int run_program(const std::string& name, const std::function<int()>& body, const char* memory_hint) {
  std::signal(SIGXFSZ, SIG_IGN);  // past a limit of file size write() fails, and the process goes on
  int code = 0;
  const Failure failure = failure_of([&] { code = body(); }, name + ": out of memory" + memory_hint);
  if (failure.code == 0) return code;
  std::fprintf(stderr, "error: %s\n", failure.message.c_str());
  return failure.code;
}

void finish_printing(const std::string& name) {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw_io(name + ": standard output cannot be written");
}

void add_version(CLI::App& app, const std::string& program, const std::function<std::string()>& isa) {
  const auto text = [=] {
    std::string version = version_text(program, isa());
    version.pop_back();  // CLI11 prints the newline
    return version;
  };
  app.set_version_flag("--version", text, "version, git hash, backends and instruction set");
}

std::optional<int> parse_command_line(CLI::App& app, const std::string& program, int argc, char** argv,
                                      const MoreDocs& more) {
  const std::string command = command_name(program), asked = argc == 2 ? argv[1] : "";
  app.name(command);
  set_help_style(app);
  if (asked == "--help-man" || asked == "--help-words") {
    const bool man = asked == "--help-man";
    const std::string text = man ? man_body(app, "thinwire " + program) : completion_words(app, program);
    std::fputs(text.c_str(), stdout);
    if (const auto& extra = man ? more.man : more.words) std::fputs(extra().c_str(), stdout);
    return 0;
  }
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    throw_usage(program + ": " + e.what() + " (" + command + " --help)");
  }
}

}  // namespace thinwire
